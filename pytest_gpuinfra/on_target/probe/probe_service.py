"""
A systemd unit as it stands: what systemd holds of it, its files, its processes, and what its Python starts with.

This file imports its neighbours only and runs on Python 3.6 and later with the standard library only.
One thing leads to the next (the unit names its files, its control group holds the processes), hence a kind of its own.

Request: {"kind": "service", "unit": str, "properties": "Id,...", "names": [variable or "PREFIX*", ...],
          "opened": [beginning of a path, or "*PART" for one that holds PART, ...]}
Answer, by entry:
    ""                  show (systemctl show), verify, journal (since the unit's last start; one JSON object a line; its
                        last 4000 lines), startup (its first MiB, where there is more),
                        manager (systemctl show-environment, by the list of names), paths (UnitPath), clock,
                        processes (how many there are; the answer holds the first 1024),
                        pulled (what the default target pulls in), starts (microseconds from boot to each of the last
                        starts, one a line)
    "file PATH"         text (masked), stat: the unit file and every drop-in that systemd names
    "directory PATH"    names: each directory of drop-ins that exists for this unit, whether systemd knows it or not
    "drop-in PATH"      text, stat: what is in those directories and systemd does not name
    "program PATH"      stat: what ExecStart runs, and scripts among its arguments
    "nccl PATH"         text (by the list of names, masked), stat: the files that NCCL reads, in its order
    "environment PATH"  text (by the list of names, masked), stat: each EnvironmentFile, and /etc/environment
    "process PID"       comm, argv, environ, stat, status, exe, cwd, limits, opened (JSON list of paths)
    "python"            startup: JSON of what a new interpreter of the unit's own Python starts with, in the
                        environment of its main process: version, executable, files, environ (by the list of names)

The interpreter's start runs the sitecustomize that the service's own start ran, as the process that it belongs to
(as_process.py), writing no bytecode; nothing else is imported.
"""

import errno
import json
import os
import pwd
import re
import stat
import threading

from as_process import PYTHON, Refused, Subject, interpreter_argv, output_of
from probe_bounds import lines_of, name_text
from probe_environ import allowed, filter_lines, mask_value
from probe_mask import mask_text
from probe_reading import (
    decode,
    read_argv,
    read_assignments,
    read_bytes,
    read_clock,
    read_environ,
    read_file,
    read_item,
    read_link,
    read_list,
    read_stat,
    refused,
    run_command,
)

UNIT_PATH = (
    "/etc/systemd/system.control /run/systemd/system.control /run/systemd/transient /etc/systemd/system "
    "/run/systemd/system /run/systemd/generator /usr/local/lib/systemd/system /usr/lib/systemd/system "
    "/lib/systemd/system"
)
PROCESSES_MAX = 1024
OPENED_MAX = 16384
MAPS_MAX = 1 << 26
JOURNAL_LINES = 4000
PULLED = ["systemctl", "list-dependencies", "--plain", "--no-pager", "default.target"]
UNIT_STARTED = "MESSAGE_ID=39f53479d3a045ac8e11786248231fbf"  # systemd's sd-messages.h: SD_MESSAGE_UNIT_STARTED
STARTS = 32
PROGRAMS = 16
SCRIPT = re.compile(r"\.(?:py|pyz|sh|bash|pl|rb|lua)\Z")
STARTUP_MAX = 1 << 20
STARTUP = """
import json, os, sys
found = {}
for name in ("sitecustomize", "usercustomize"):
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None)
    if path:
        found[name] = os.path.abspath(path)
times = {name: os.stat(path).st_mtime for name, path in found.items() if os.path.exists(path)}
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable, "prefix": sys.prefix,
                  "files": found, "times": times, "environ": dict(os.environ)}))
"""


def answer_service(request, answers):
    unit = request["unit"]
    names = request["names"]
    show = run_command(["systemctl", "show", "--no-pager", "-p", request["properties"], "--", unit], 1 << 20, 10.0)
    shown = {}
    for line in show.get("t", "").split("\n"):
        key, _, value = line.partition("=")
        shown.setdefault(key, []).append(value)
    if "t" in show:
        show["t"] = mask_text(show["t"])
    first = {"show": show, "clock": read_clock()}
    identity = request["id"]
    commands = {
        "verify": lambda: run_command(
            ["systemd-analyze", "verify", "--man=no", one(shown, "FragmentPath") or unit], 1 << 16, 20.0, True
        ),
        "journal": lambda: read_journals(unit, one(shown, "InvocationID"), first),
        "manager": lambda: manager_environment(names),
        "pulled": lambda: run_command(PULLED, 1 << 19, 10.0),
        "starts": lambda: read_starts(unit),
    }
    threads = []
    for name in commands:
        thread = threading.Thread(target=lambda n: first.__setitem__(n, commands[n]()), args=(name,))
        thread.daemon = True
        thread.start()
        threads.append(thread)
    first["paths"] = run_command(["systemctl", "show", "--no-pager", "-p", "UnitPath"], 1 << 16, 10.0)
    for entry, node in read_files(unit, shown, names, first["paths"]):
        answers.put(identity, entry, node)
    pids = find_processes(one(shown, "ControlGroup"))
    first["processes"] = {"t": str(len(pids))}
    for pid in pids[:PROCESSES_MAX]:
        answers.put(identity, "process %d" % pid, read_process(pid, names, request["opened"]))
    main = int(one(shown, "MainPID") or 0)
    for entry, node in read_beside(shown, main, names):
        answers.put(identity, entry, node)
    answers.put(identity, "python", {"startup": start_python(main, pids, names)})
    for thread in threads:
        thread.join()
    answers.put(identity, "", first)


def one(shown, key):
    return shown.get(key, [""])[0]


def read_masked(path):
    return read_item({"kind": "file", "path": path, "mask": True}, "")


def read_files(unit, shown, names, paths):
    """Give (entry, node) of each file that makes up a unit."""
    known = [one(shown, "FragmentPath"), *one(shown, "DropInPaths").split()]
    for path in known:
        if path:
            yield "file " + path, {"text": read_masked(path), "stat": read_stat(path)}
    roots = paths.get("t", "").partition("=")[2].split() or UNIT_PATH.split()
    for root in roots:
        for name in drop_in_names(unit):
            directory = os.path.join(root, name)
            listing = read_list(directory, ["*.conf"])
            if "t" not in listing and listing["e"].startswith("ENOENT"):
                continue
            yield "directory " + directory, {"names": listing}
            for file in filter(None, listing.get("t", "").split("\n")):
                path = os.path.join(directory, file)
                if path not in known:
                    yield "drop-in " + path, {"text": read_masked(path), "stat": read_stat(path)}
    files = [value.partition(" (ignore_errors=")[0] for value in shown.get("EnvironmentFiles", []) if value]
    for path in [*files, "/etc/environment"]:
        yield "environment " + path, {"text": read_assignments(path, names, 1 << 18), "stat": read_stat(path)}


def read_beside(shown, main, names):
    """Give (entry, node) of what the unit's command runs, and of what NCCL reads beside the environment."""
    for path in programs_of(shown.get("ExecStart", [])):
        yield "program " + path, {"stat": read_change(path)}
    try:
        home = pwd.getpwuid(os.stat("/proc/%d" % main).st_uid).pw_dir if main else ""
    except (OSError, KeyError):
        home = ""
    environ, _ = read_bytes("/proc/%d/environ" % main, 1 << 22)
    own = [piece.partition(b"=")[2] for piece in environ.split(b"\0") if piece.startswith(b"NCCL_CONF_FILE=")]
    first = decode(own[0]) if own and own[0] else home and os.path.join(home, ".nccl.conf")
    for path in (first, "/etc/nccl.conf"):
        if os.path.isabs(path):
            yield "nccl " + path, {"text": read_assignments(path, names, 1 << 18), "stat": read_stat(path)}


def read_change(path):
    """Give when a file's text, and when the file at this path, was last changed: a copy may keep an old mtime."""
    try:
        found = os.stat(path)
    except OSError as error:
        return refused(error)
    return {"t": json.dumps({"mtime": found.st_mtime, "ctime": found.st_ctime}, sort_keys=True)}


def programs_of(commands):
    """
    Give the programs of a unit's commands, what they run in turn, and scripts among their arguments.

    Other arguments are not asked for: a model on a dead mount would hold up the answer.
    """
    found = []
    for command in commands:
        match = re.match(r"\{ path=(.*?) ; argv\[\]=(.*?) ; ", command)
        words = match.group(2).split() if match else []
        leading = True
        for place, word in enumerate([match.group(1), *words[1:]] if match else []):
            if os.path.isabs(word) and (leading or SCRIPT.search(word)):
                try:
                    regular = stat.S_ISREG(os.stat(word).st_mode)
                except (OSError, ValueError):
                    regular = False
                if regular and word not in found:
                    found.append(word)
            leading = leading and (place == 0 or (word.startswith("-") and "=" in word))
    return found[:PROGRAMS]


def read_starts(unit):
    argv = ["journalctl", "-q", "-b", "--no-pager", "-o", "json", "--output-fields=UNIT", "-n", str(STARTS)]
    answer = run_command([*argv, UNIT_STARTED, "UNIT=" + unit], 1 << 18, 20.0)
    times = []
    for line in answer.get("t", "").split("\n"):
        try:
            times.append(str(int(json.loads(line)["__MONOTONIC_TIMESTAMP"])))
        except (ValueError, KeyError, TypeError):
            continue
    if "t" in answer:
        answer["t"] = "\n".join(times)
    return answer


def drop_in_names(unit):
    """Give the names of the directories that may hold drop-ins of a unit (systemd.unit(5))."""
    stem, _, kind = unit.rpartition(".")
    found = [unit + ".d"]
    prefix, at, _ = stem.partition("@")
    if at:
        found.append(prefix + "@." + kind + ".d")
    words = prefix.split("-")
    for count in range(len(words) - 1, 0, -1):
        found.append("-".join(words[:count]) + "-." + kind + ".d")
    return found


def manager_environment(names):
    answer = run_command(["systemctl", "show-environment"], 1 << 18, 10.0)
    if "t" in answer:
        answer["t"] = filter_lines(answer["t"], names)
    return answer


def read_journals(unit, invocation, first):
    """Give the end of a unit's log since its start; where that is not all of it, its beginning goes into `first`."""
    answer = read_journal(unit, invocation, ["-n", str(JOURNAL_LINES)], 1 << 22)
    if answer.get("t", "").count("\n") + 1 >= JOURNAL_LINES:
        first["startup"] = read_journal(unit, invocation, [], STARTUP_MAX)
    return answer


def read_journal(unit, invocation, more, limit):
    fields = "--output-fields=MESSAGE,PRIORITY,_PID,SYSLOG_IDENTIFIER"
    argv = ["journalctl", "-q", "-a", "--no-pager", "-o", "json", fields, *more]
    if invocation:
        argv += ["_SYSTEMD_INVOCATION_ID=" + invocation, "+", "INVOCATION_ID=" + invocation]
    else:
        argv += ["-b", "-u", unit]
    answer = run_command(argv, limit, 20.0)
    if "t" not in answer:
        return answer
    if not more and answer.pop("cut", 0):
        answer["x"] = 0  # it was ended by us, with what is wanted of it
    kept = []
    for line in answer["t"].split("\n"):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        message = entry.get("MESSAGE")
        if isinstance(message, list):
            message = decode(bytes(byte for byte in message if isinstance(byte, int)))
        seen = {"message": str(message or ""), "priority": entry.get("PRIORITY"), "pid": entry.get("_PID")}
        kept.append(seen)
    mask_messages(kept)
    answer["t"] = "\n".join(json.dumps(seen, sort_keys=True) for seen in kept)
    return answer


def mask_messages(entries):
    """Mask a journal's messages as one text, in place: a key may go over many of them."""
    lines = mask_text("\n" + "\n".join(seen["message"] for seen in entries)).split("\n")[1:]
    place = 0
    for seen in entries:
        count = seen["message"].count("\n") + 1
        seen["message"] = "\n".join(lines[place : place + count])
        place += count


def find_processes(group):
    """Give the processes of a control group and of those below it, lowest first; [] without a group."""
    if not group or group == "/":
        return []
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            data, _ = read_bytes("/proc/" + name + "/cgroup", 1 << 16)
            paths = [decode(line).split(":", 2)[-1] for line in data.splitlines()]
            if any(path == group or path.startswith(group + "/") for path in paths):
                found.append(int(name))
    return sorted(found)


def read_process(pid, names, prefixes):
    home = "/proc/%d/" % pid
    seen = {name: read_file(home + name, 1 << 16) for name in ("comm", "stat", "status", "limits")}
    seen["argv"] = read_argv(home + "cmdline")
    seen["environ"] = read_environ(home + "environ", names, 1 << 22)
    for name in ("exe", "cwd"):
        seen[name] = read_link(home + name)
    seen["opened"] = read_opened(home, prefixes)
    return seen


def read_opened(home, prefixes):
    """Give the paths that a process has open or mapped and that begin so; each as often as it is open."""
    wanted = tuple(prefix for prefix in prefixes if not prefix.startswith("*"))
    parts = [prefix[1:] for prefix in prefixes if prefix.startswith("*")]
    opened, mapped = [], set()

    def take(path, places):
        if path.startswith(wanted) or any(part in path for part in parts):
            (places.append if places is opened else places.add)(path)
        if len(places) > OPENED_MAX:
            raise OSError(errno.EFBIG, "more than %d such paths" % OPENED_MAX)

    try:
        with os.scandir(home + "fd") as entries:
            for entry in entries:
                try:
                    take(name_text(os.readlink(entry.path)), opened)
                except FileNotFoundError:
                    pass  # closed meanwhile
        for line in lines_of(home + "maps", MAPS_MAX):
            words = line.split(None, 5)
            if len(words) > 5:
                take(decode(words[5]), mapped)
    except OSError as error:
        return refused(error)
    return {"t": json.dumps(sorted([*opened, *mapped.difference(opened)]))}


def start_python(main, pids, names):
    """Start the unit's own Python as the process that it belongs to, and see what it starts with."""
    unread = None
    for pid in [main] * (main in pids) + [pid for pid in pids if pid != main]:
        link = read_link("/proc/%d/exe" % pid)
        if "e" in link and not link["e"].startswith("ENOENT"):  # it has ended
            unread = {"e": "%s: /proc/%d/exe" % (link["e"], pid)}
        if PYTHON.match(os.path.basename(link.get("t", ""))):
            try:
                return run_startup(Subject(pid), names)
            except Refused as refusal:
                return {"e": "EPERM: the service's Python was not started: %s" % refusal}
    return unread or {"e": "ENOENT: none of the unit's %d processes is a Python" % len(pids)}


def run_startup(subject, names):
    argv = [*interpreter_argv(subject), b"-B", b"-c", STARTUP.encode()]
    try:
        out, err, status = output_of(subject, argv, subject.child_environment(), 15.0, 1 << 20)
    finally:
        subject.close()
    if status is None:
        return {"e": "ETIMEDOUT: %s did not start within 15 s, or wrote too much" % subject.executable}
    try:
        seen = json.loads(decode(out).strip().split("\n")[-1])
        if not is_start(seen):
            raise ValueError("another shape")
    except (ValueError, IndexError, RecursionError):
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        return {"e": "exit status %d: %s" % (code, mask_text(decode(err))[-400:])}
    seen["environ"] = {n: mask_value(n, v) for n, v in seen["environ"].items() if allowed(n, names)}
    seen["pid"] = subject.pid
    return {"t": json.dumps(seen, sort_keys=True)}


def is_start(seen):
    """Whether what the service's Python reported has the shape of STARTUP's answer; it may write anything."""
    texts = {"version", "executable", "prefix"}
    maps = {"files": str, "environ": str, "times": (int, float)}
    return (
        isinstance(seen, dict)
        and set(seen) == texts | set(maps)
        and all(isinstance(seen[name], str) for name in texts)
        and all(isinstance(seen[name], dict) for name in maps)
        and all(isinstance(value, kind) for name, kind in maps.items() for value in seen[name].values())
    )
