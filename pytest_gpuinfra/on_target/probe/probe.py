"""
The probe: answers a list of requests with raw text. It runs on the target and has no opinions.

It imports its neighbours probe_*.py, which travel with it (bundle.py), and runs on Python 3.6 and later
with the standard library only. It is sent on standard input, leaves no file, changes nothing, and needs no lock.
It writes one JSON document to standard output: {"schema": 1, "answers": {...}, "took_s": float}.

Plan (first line of standard input, JSON):
    {"requests": [request, ...], "source": the probe's own text, "runner": the runner's; both only for "inside"}

Request: {"id": str, "kind": "node" | "tree" | "kernel_log" | "service" | "inside", ...}
    node        "items": [item, ...]; answer: {"": {name: reading}}
    tree        "root": directory, "items": [item, ...] with paths relative to each of its entries,
                "where": {"file": path in the entry, "prefixes": [str, ...], "or": [entry, ...]} or absent,
                "match": [pattern of an entry's name, ...] or absent;
                answer: {entry: {name: reading}}, {"!": {"": reading}} if unreadable
    kernel_log  answer: {"": {"kmsg": reading, "journal": reading, "dmesg": reading}}, the later ones
                only where the earlier one does not reach back to the beginning of this boot
    service     a systemd unit, its files and its processes: probe_service.py
    inside      "enter": argv, "deadline_s": float, "requests": [request, ...] for a container: probe_inside.py;
                their answers stand beside those of the host, under their own ids; answer: {"": {"session": reading}}

Item: {"name": str, "kind": "file" | "hex" | "link" | "list" | "stat" | "statvfs" | "sample" | "argv" | "environ" |
       "assignments" | "clock" | "command", "path": str or "argv": [str], "max": bytes kept, "timeout_s": float,
       "match": [pattern of a name, ...] of "list" and "sample", "names": [variable or "PREFIX*", ...] of "environ" and
       "assignments", which keep no others, "mask": whether to mask secrets in a file or output}

Reading: {"t": text} or {"e": "ERRNO: reason"}; of a command also {"x": exit status, "s": standard error};
         {"cut": bytes that were read beyond "max"} where the text was longer: nobody may take it for the whole.
         What all answers together may hold: probe_answer.py.
"""

import json
import os
import signal
import sys
import threading
import time

from probe_answer import Answers
from probe_bounds import name_text, names_in
from probe_inside import answer_inside
from probe_reading import LOG_MAX, read_file, read_item, read_kernel_log, refused
from probe_service import answer_service

SCHEMA = 1


def answer_tree(request, answers):
    root = request["root"]
    try:
        entries = names_in(root, request.get("match"))
    except OSError as error:
        answers.refuse(request["id"], refused(error)["e"])
        return
    where = request.get("where")
    if where:
        wanted = tuple(where["prefixes"])
        entries = [
            entry
            for entry in entries
            if entry in where["or"]
            or read_file(os.path.join(root, entry, where["file"]), 256).get("t", "").startswith(wanted)
        ]
    answers.empty(request["id"])
    for entry in entries:
        node = {item["name"]: read_item(item, os.path.join(root, entry)) for item in request["items"]}
        answers.put(request["id"], name_text(entry), node)


def answer(request, plan, answers):
    """Answer one request; what nobody thought of keeps this one from being answered, and no other."""
    kind, identity = request["kind"], request["id"]
    try:
        if kind == "tree":
            answer_tree(request, answers)
        elif kind == "kernel_log":
            answers.put(identity, "", read_kernel_log(request.get("max", LOG_MAX)))
        elif kind == "node":
            answers.put(identity, "", {item["name"]: read_item(item, "") for item in request["items"]})
        elif kind == "service":
            answer_service(request, answers)
        elif kind == "inside":
            answer_inside(request, plan, answers)
        else:
            answers.refuse(identity, "EINVAL: the probe knows no request kind %r" % (kind,))
    except Exception as error:
        answers.refuse(identity, "%s: %s" % (type(error).__name__, error))


def runs_commands(request):
    return request["kind"] in ("kernel_log", "service", "inside") or any(
        i["kind"] == "command" for i in request.get("items", ())
    )


def answer_all(requests, plan):
    """Answer every request; those that start programs wait side by side, the rest take their turn meanwhile."""
    answers = Answers()
    waiting = []
    for request in requests:
        if runs_commands(request):
            thread = threading.Thread(target=answer, args=(request, plan, answers))
            thread.daemon = True
            thread.start()
            waiting.append(thread)
    for request in requests:
        if not runs_commands(request):
            answer(request, plan, answers)
    for thread in waiting:
        thread.join()
    return answers


def main():
    started = time.time()
    plan = json.loads(sys.stdin.readline())
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a container that cannot be entered reads nothing
    answers = answer_all(plan["requests"], plan)
    about = {
        "schema": SCHEMA,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "uid": os.getuid(),
        "took_s": round(time.time() - started, 4),
    }
    sys.stdout.write(json.dumps(about)[:-1] + ', "answers": ')
    answers.write(sys.stdout)
    sys.stdout.write("}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
