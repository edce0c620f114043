"""
Readings: files, links, listings and the output of commands, each as text or as the error in its place.

This file imports its neighbours only and runs on Python 3.6 and later with the standard library only.
It travels with the probe (probe.py says what items and readings are).
"""

import errno
import json
import os
import subprocess
import time

from probe_bounds import STDERR_MAX, name_text, names_in, read_start, run_bounded
from probe_environ import filter_environ, filter_lines
from probe_mask import mask_argv, mask_text
from safe_path import UnsafeError, resolve

FILE_MAX = 262144
COMMAND_MAX = 4194304
LOG_MAX = 8388608
JOURNAL_FIELDS = "--output-fields=MESSAGE,PRIORITY,_SOURCE_MONOTONIC_TIMESTAMP,_BOOT_ID"
# What the kernel said, and journald's own notes of what it was too slow to take from the kernel
# (systemd's sd-messages.h: SD_MESSAGE_JOURNAL_MISSED).
KERNEL_ENTRIES = ["_TRANSPORT=kernel", "+", "MESSAGE_ID=e9bf28e6e834481bb6f48f548ad13606"]
COMMAND_TIMEOUT_S = 10.0
KMSG_S = 10.0


def decode(data):
    return data.decode("utf-8", "backslashreplace")


def refused(error):
    number = getattr(error, "errno", None)
    name = errno.errorcode.get(number, "") if number else ""
    reason = (error.strerror or os.strerror(number)) if number else str(error)
    return {"e": (name + ": " if name else type(error).__name__ + ": ") + reason}


def kept(data, limit):
    answer = {"t": decode(data[:limit])}
    if len(data) > limit:
        answer["cut"] = len(data) - limit
    return answer


def read_file(path, limit, as_hex=False):
    try:
        data = read_start(path, limit)
    except (OSError, ValueError) as error:
        return refused(error)
    if not as_hex:
        return kept(data, limit)
    answer = {"t": data[:limit].hex()}
    if len(data) > limit:
        answer["cut"] = len(data) - limit
    return answer


def read_link(path):
    try:
        return {"t": name_text(os.readlink(path))}
    except OSError as error:
        return refused(error)


def read_list(path, patterns):
    try:
        return {"t": "\n".join(name_text(name) for name in names_in(path, patterns))}
    except OSError as error:
        return refused(error)


def read_stat(path):
    try:
        found = os.stat(path)
        seen = {
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "size": found.st_size,
            "mtime": found.st_mtime,
            "major": os.major(found.st_rdev),
            "minor": os.minor(found.st_rdev),
        }
        return {"t": json.dumps(seen, sort_keys=True)}
    except OSError as error:
        return refused(error)


def read_statvfs(path):
    try:
        found = os.statvfs(path)
        seen = {
            "size": found.f_blocks * found.f_frsize,
            "available": found.f_bavail * found.f_frsize,
            "inodes": found.f_files,
            "inodes_available": found.f_favail,
        }
        return {"t": json.dumps(seen, sort_keys=True)}
    except OSError as error:
        return refused(error)


def read_sample(path, patterns):
    """Read the first 4 KiB of up to three files of a directory, or of the file that the path names."""
    names = read_list(path, patterns)
    if "t" not in names and not names["e"].startswith("ENOTDIR"):
        return names
    files = [os.path.join(path, name) for name in names["t"].split("\n") if name] if "t" in names else [path]
    seen = {}
    for file in files:
        if len(seen) < 3 and os.path.isfile(file):
            first = read_file(file, 4096, as_hex=True)
            seen[os.path.basename(file)] = len(first["t"]) // 2 if "t" in first else first["e"]
    return {"t": json.dumps(seen, sort_keys=True)}


def read_bytes(path, limit):
    """Give (a whole file, None) or (b"", the reading that says why not); one that is too long is not had in part."""
    try:
        data = read_start(path, limit)
    except (OSError, ValueError) as error:
        return b"", refused(error)
    return (data, None) if len(data) <= limit else (b"", {"e": "EFBIG: longer than %d bytes" % limit})


def read_environ(path, names, limit):
    data, failure = read_bytes(path, limit)
    return failure or {"t": json.dumps(filter_environ(data, names), sort_keys=True)}


def read_assignments(path, names, limit):
    answer = read_file(path, limit)
    if "t" in answer:
        answer["t"] = filter_lines(answer["t"], names)
    return answer


def read_argv(path):
    data, failure = read_bytes(path, FILE_MAX)
    if failure:
        return failure
    bare = data.rstrip(b"\0")
    seen = {"argv": mask_argv([decode(word) for word in bare.split(b"\0")] if bare else [])}
    seen["trailing_nul"] = len(data) - len(bare)
    return {"t": json.dumps(seen)}


def read_clock():
    boot = getattr(time, "CLOCK_BOOTTIME", 7)
    seen = {"realtime": time.time(), "monotonic": time.clock_gettime(time.CLOCK_MONOTONIC)}
    seen["boottime"] = time.clock_gettime(boot)
    seen["ticks_a_second"] = os.sysconf("SC_CLK_TCK")
    return {"t": json.dumps(seen, sort_keys=True)}


def run_command(argv, limit, timeout_s, masked=False):
    env = dict(os.environ, LC_ALL="C", LANG="C", SYSTEMD_PAGER="", SYSTEMD_COLORS="0", PAGER="cat")
    try:
        seen = run_bounded([resolve(argv[0]), *argv[1:]], limit, timeout_s, env=env, cwd="/")
    except UnsafeError as error:
        return {"e": "EPERM: %s" % error}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return refused(error)
    if seen.over == "err":
        answer = {"e": "EFBIG: it printed more than %d bytes on standard error, and was killed" % STDERR_MAX}
    elif not seen.in_time:
        answer = {"e": "ETIMEDOUT: did not end within %g s" % timeout_s}
        last = mask_text(decode(seen.out + seen.err))[-400:].strip()
        if last:
            answer["e"] += "; its last output: " + last
        return answer
    else:
        answer = kept(seen.out, limit)
        if not seen.over:
            answer["x"] = seen.status
    answer["s"] = decode(seen.err[:STDERR_MAX])
    return mask_reading(answer) if masked else answer


def mask_reading(answer):
    for key in ("t", "s"):
        if key in answer:
            answer[key] = mask_text(answer[key])
    return answer


def read_kmsg(limit):
    """Read the ring buffer record by record; one read gives one record, EAGAIN is the end."""
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return refused(error)
    parts = []
    size = 0
    until = time.monotonic() + KMSG_S
    try:
        while True:
            if time.monotonic() > until:
                return {"e": "ETIMEDOUT: the kernel logs faster than it can be read"}
            try:
                record = os.read(descriptor, 16384)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten while we read: the next record has a later number
                    continue
                return refused(error)
            if not record:
                break
            parts.append(record)
            size += len(record)
            while size > limit and len(parts) > 1:
                size -= len(parts.pop(0))
    finally:
        os.close(descriptor)
    return {"t": decode(b"".join(parts))}


def starts_at_boot(kmsg):
    fields = kmsg.get("t", "").split(";", 1)[0].split(",")
    return len(fields) > 1 and fields[1] == "0"


def read_kernel_log(limit):
    node = {"kmsg": read_kmsg(limit)}
    if starts_at_boot(node["kmsg"]):
        return node
    node["journal"] = run_command(
        ["journalctl", "-b", "0", "-q", "-a", "--no-pager", "-o", "json", JOURNAL_FIELDS, *KERNEL_ENTRIES],
        limit,
        20.0,
    )
    if "t" not in node["kmsg"]:
        node["dmesg"] = run_command(["dmesg"], limit, 10.0)
    return node


def read_item(item, base):
    kind = item["kind"]
    masked = item.get("mask", False)
    if kind == "command":
        timeout_s = item.get("timeout_s", COMMAND_TIMEOUT_S)
        return run_command(item["argv"], item.get("max", COMMAND_MAX), timeout_s, masked)
    if kind == "clock":
        return read_clock()
    path = item["path"]
    if base:
        path = base if path == "." else os.path.join(base, path)
    if kind == "file":
        answer = read_file(path, item.get("max", FILE_MAX))
        return mask_reading(answer) if masked else answer
    if kind == "hex":
        return read_file(path, item.get("max", 4096), as_hex=True)
    if kind == "link":
        return read_link(path)
    if kind == "list":
        return read_list(path, item.get("match"))
    if kind == "stat":
        return read_stat(path)
    if kind == "statvfs":
        return read_statvfs(path)
    if kind == "sample":
        return read_sample(path, item.get("match"))
    if kind == "environ":
        return read_environ(path, item["names"], item.get("max", COMMAND_MAX))
    if kind == "assignments":
        return read_assignments(path, item["names"], item.get("max", FILE_MAX))
    if kind == "argv":
        return read_argv(path)
    return {"e": "EINVAL: the probe knows no kind %r" % (kind,)}
