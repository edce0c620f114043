"""
Entering a container: the probe runs itself in there, at the same time as it answers for the host.

This file imports its neighbours probe_*.py and runs on Python 3.6 and later with the standard library only.
What comes out of the container is others' word: it is bounded while it is read, checked before it is used, and may
speak of nothing but what was asked in there. The runner goes in, too, and holds the inner probe: it ends with the
session, whoever ends that.
"""

import json
import os
import select
import signal
import struct
import subprocess
import time

from probe_answer import ANSWER_MAX, flaw_of
from probe_bounds import STDERR_MAX
from safe_path import UnsafeError, resolve

END_SLACK_S = 5.0
NOISE_MAX = 1 << 20


def answer_inside(request, plan, answers):
    """Answer a request's own requests by a probe inside; the session's own reading says what kept it from that."""
    reading, inner = enter(request, plan)
    for identity, entries in inner.items():
        answers.empty(identity)
        for entry, node in entries.items():
            answers.put(identity, entry, node)
    answers.put(request["id"], "", {"session": reading})


def enter(request, plan):
    token = "gpuinfra-inside-%d" % os.getpid()
    deadline_s = request["deadline_s"]
    inner_plan = {"requests": request["requests"], "source": plan["source"], "runner": plan["runner"]}
    stdin = json.dumps(inner_plan).encode() + b"\n"
    program, runner = plan["source"].encode(), plan["runner"].encode()
    header = {"argv": None, "program": True, "stdin_open": True, "env": None, "token": token}
    header.update(stdin_length=len(stdin), timeout_s=deadline_s)
    outgoing = b"".join(
        (b"%d\n" % len(runner), runner, json.dumps(header).encode(), b"\n%d\n" % len(program), program, stdin)
    )
    try:
        process = subprocess.Popen(
            [resolve(request["enter"][0]), *request["enter"][1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
    except UnsafeError as error:
        return {"e": "EPERM: %s" % error}, {}
    except (OSError, ValueError) as error:
        return {"e": "%s: %s" % (request["enter"][0], getattr(error, "strerror", None) or error)}, {}
    try:
        out, err, trouble = talk(process, outgoing, time.time() + deadline_s + END_SLACK_S)
    finally:
        end(process)
    if trouble == "time":
        trouble = "ETIMEDOUT: no answer from inside within %g s" % deadline_s
    return understand(out, err, trouble, token, (deadline_s, process.returncode), inner_ids(request))


def inner_ids(request):
    """Give the ids that a probe inside may answer."""
    return {inner["id"] for inner in request["requests"]}


def talk(process, outgoing, limit):
    """
    Move bytes until both outputs end; standard input stays open, since its end would end the runner inside.

    Returns:
        Standard output and error, as far as their limits went, and "" or what broke it off; "time" for the deadline.
    """
    streams = {process.stdout.fileno(): [], process.stderr.fileno(): []}
    sizes = dict.fromkeys(streams, 0)
    order = list(streams)
    limits = {order[0]: ANSWER_MAX + NOISE_MAX, order[1]: STDERR_MAX}
    stdin = process.stdin.fileno()
    os.set_blocking(stdin, False)
    still = set(order)
    trouble = ""
    while still and not trouble:
        left = limit - time.time()
        if left <= 0:
            trouble = "time"
            break
        readable, writable, _ = select.select(list(still), [stdin] if outgoing else [], [], left)
        if writable:
            try:
                outgoing = outgoing[os.write(stdin, outgoing[:65536]) :]
            except BlockingIOError:
                pass
            except OSError:
                outgoing = b""
        for descriptor in readable:
            data = os.read(descriptor, 65536)
            streams[descriptor].append(data)
            sizes[descriptor] += len(data)
            if sizes[descriptor] > limits[descriptor]:
                trouble = "EFBIG: it printed more than %d bytes, and was ended" % limits[descriptor]
            if not data:
                still.discard(descriptor)
    out, err = (b"".join(streams[descriptor]) for descriptor in order)
    return out, err, trouble


def end(process):
    process.stdin.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass  # nobody is left
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        pass  # it hangs in the kernel
    process.stdout.close()
    process.stderr.close()


def frames_of(data):
    """Give (kind, payload) of each whole frame of the runner (runner.py)."""
    place = 0
    while len(data) - place >= 5:
        kind, size = struct.unpack_from(">cI", data, place)
        yield kind, data[place + 5 : place + 5 + size]
        place += 5 + size


def understand(out, err, trouble, token, sent, asked):
    """
    Read the runner's frames; give the session's reading and the inner probe's answers.

    Args:
        out: What was read.
        err: The same of standard error.
        trouble: What broke the reading off; "" if nothing did.
        token: What the runner begins with.
        sent: The deadline in seconds, and the exit status of what entered.
        asked: Ids that may be answered.
    """
    deadline_s, status = sent
    noise, started, rest = out.partition(token.encode() + b"\n")
    texts = {b"o": [], b"e": []}
    last = b"null"
    for kind, payload in frames_of(rest):
        if kind == b"x":
            last = payload
        elif kind in texts:
            texts[kind].append(payload)
    inner_err = b"".join(texts[b"e"])
    said = (err[-400:] + b" " + (inner_err if started else noise)[-400:]).decode("utf-8", "backslashreplace")
    said = said.strip()[-400:]
    ended = load(last)
    if trouble:
        return {"e": trouble, "s": said}, {}
    if ended is not None and ended.get("timed_out") is True:
        return {"e": "ETIMEDOUT: no answer from inside within %g s" % deadline_s, "s": said}, {}
    if ended is not None and type(ended.get("status")) is int:
        status = ended["status"]
    if not started or ended is None or ended.get("status") != 0:
        return {"e": "exit status %s: %s" % (status, said or "it said nothing"), "x": status, "s": said}, {}
    document = load(b"".join(texts[b"o"]))
    answers = document.pop("answers", None) if document is not None else None
    flaw = flaw_of(answers, asked) if document is not None else "it is no JSON object"
    if flaw:
        return {"e": "the answer from inside is no answer of a probe: %s" % flaw, "s": said}, {}
    return {"t": "python %s" % str(document.get("python", "?"))[:40]}, answers


def load(data):
    """Read a JSON object, of ASCII as the probe writes it; None if it is none."""
    try:
        value = json.loads(data.decode("ascii"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
