"""
The probe: answers a list of requests with raw text. It runs on the target and has no opinions.

This file imports nothing of ours and runs on Python 3.6 and later with the standard library only.
It is sent on standard input, leaves no file, changes nothing, and needs no lock.
It writes one JSON document to standard output: {"schema": 1, "answers": {...}, "took_s": float}.

Plan (first line of standard input, JSON):
    {"requests": [request, ...], "deadline_s": float}

Request: {"id": str, "kind": "node" | "tree" | "kernel_log", ...}
    node        "items": [item, ...]; answer: {"": {name: reading}}
    tree        "root": directory, "items": [item, ...] with paths relative to each of its entries,
                "where": {"file": path in the entry, "prefixes": [str, ...], "or": [entry, ...]} or absent;
                answer: {entry: {name: reading}}, {"!": {"": reading}} if unreadable
    kernel_log  answer: {"": {"kmsg": reading, "journal": reading, "dmesg": reading}}, the later ones
                only where the earlier one does not reach back to the beginning of this boot

Item: {"name": str, "kind": "file" | "hex" | "link" | "list" | "stat" | "command", "path": str or "argv": [str],
       "max": bytes kept, "timeout_s": float}

Reading: {"t": text} or {"e": "ERRNO: reason"}; of a command also {"x": exit status, "s": standard error};
         {"cut": bytes dropped} where the text was longer than "max".
"""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time

SCHEMA = 1
FILE_MAX = 262144
COMMAND_MAX = 4194304
LOG_MAX = 8388608
JOURNAL_FIELDS = "--output-fields=MESSAGE,PRIORITY,_SOURCE_MONOTONIC_TIMESTAMP,_BOOT_ID"
COMMAND_TIMEOUT_S = 10.0


def decode(data):
    return data.decode("utf-8", "backslashreplace")


def refused(error):
    number = getattr(error, "errno", None)
    name = errno.errorcode.get(number, "") if number else ""
    reason = os.strerror(number) if number else str(error)
    return {"e": (name + ": " if name else type(error).__name__ + ": ") + reason}


def kept(data, limit):
    answer = {"t": decode(data[:limit])}
    if len(data) > limit:
        answer["cut"] = len(data) - limit
    return answer


def read_file(path, limit, as_hex=False):
    try:
        with open(path, "rb", 0) as stream:
            parts = []
            size = 0
            while size <= limit:
                part = stream.read(min(65536, limit + 1 - size))
                if not part:
                    break
                parts.append(part)
                size += len(part)
        data = b"".join(parts)
        if as_hex:
            return {"t": data.hex()}
        return kept(data, limit)
    except (OSError, ValueError) as error:
        return refused(error)


def read_link(path):
    try:
        return {"t": os.readlink(path)}
    except OSError as error:
        return refused(error)


def read_list(path):
    try:
        return {"t": "\n".join(sorted(os.listdir(path)))}
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


def run_command(argv, limit, timeout_s):
    env = dict(os.environ, LC_ALL="C", LANG="C", SYSTEMD_PAGER="", SYSTEMD_COLORS="0", PAGER="cat")
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd="/",
        )
    except (OSError, ValueError) as error:
        return refused(error)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            out, err = process.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            out, err = b"", b""  # not even SIGKILL ended it: it hangs in the kernel, and its pipes with it
        answer = {"e": "ETIMEDOUT: did not end within %g s" % timeout_s}
        said = decode((out + err)[-400:]).strip()
        if said:
            answer["e"] += "; its last output: " + said
        return answer
    answer = kept(out, limit)
    answer["x"] = process.returncode
    answer["s"] = decode(err[-4096:])
    return answer


def read_kmsg(limit):
    """Read the ring buffer record by record; one read gives one record, EAGAIN is the end."""
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return refused(error)
    parts = []
    size = 0
    try:
        while True:
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
        ["journalctl", "-k", "-b", "0", "-q", "-a", "--no-pager", "-o", "json", JOURNAL_FIELDS],
        limit,
        20.0,
    )
    if "t" not in node["kmsg"]:
        node["dmesg"] = run_command(["dmesg"], limit, 10.0)
    return node


def read_item(item, base):
    kind = item["kind"]
    if kind == "command":
        return run_command(item["argv"], item.get("max", COMMAND_MAX), item.get("timeout_s", COMMAND_TIMEOUT_S))
    path = item["path"]
    if base:
        path = base if path == "." else os.path.join(base, path)
    if kind == "file":
        return read_file(path, item.get("max", FILE_MAX))
    if kind == "hex":
        return read_file(path, item.get("max", 4096), as_hex=True)
    if kind == "link":
        return read_link(path)
    if kind == "list":
        return read_list(path)
    if kind == "stat":
        return read_stat(path)
    return {"e": "EINVAL: the probe knows no kind %r" % (kind,)}


def answer_tree(request):
    root = request["root"]
    try:
        entries = sorted(os.listdir(root))
    except OSError as error:
        return {"!": {"": refused(error)}}
    where = request.get("where")
    if where:
        wanted = tuple(where["prefixes"])
        entries = [
            entry
            for entry in entries
            if entry in where["or"]
            or read_file(os.path.join(root, entry, where["file"]), 256).get("t", "").startswith(wanted)
        ]
    return {
        entry: {item["name"]: read_item(item, os.path.join(root, entry)) for item in request["items"]}
        for entry in entries
    }


def answer(request):
    kind = request["kind"]
    if kind == "tree":
        return answer_tree(request)
    if kind == "kernel_log":
        return {"": read_kernel_log(request.get("max", LOG_MAX))}
    if kind == "node":
        return {"": {item["name"]: read_item(item, "") for item in request["items"]}}
    return {"!": {"": {"e": "EINVAL: the probe knows no request kind %r" % (kind,)}}}


def runs_commands(request):
    return request["kind"] == "kernel_log" or any(i["kind"] == "command" for i in request.get("items", ()))


def answer_all(requests):
    """Answer every request; those that start programs wait side by side, the rest take their turn meanwhile."""
    answers = {}

    def keep(request):
        answers[request["id"]] = answer(request)

    waiting = []
    for request in requests:
        if runs_commands(request):
            thread = threading.Thread(target=keep, args=(request,))
            thread.daemon = True
            thread.start()
            waiting.append(thread)
    for request in requests:
        if not runs_commands(request):
            keep(request)
    for thread in waiting:
        thread.join()
    return answers


def main():
    started = time.time()
    plan = json.loads(sys.stdin.readline())
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    answers = answer_all(plan["requests"])
    json.dump(
        {
            "schema": SCHEMA,
            "python": "%d.%d.%d" % sys.version_info[:3],
            "uid": os.getuid(),
            "took_s": round(time.time() - started, 4),
            "answers": answers,
        },
        sys.stdout,
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
