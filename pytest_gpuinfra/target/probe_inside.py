"""
Entering a container: the probe runs itself in there, at the same time as it answers for the host.

This file imports safe_path.py only and runs on Python 3.6 and later with the standard library only.
The runner goes in, too, and holds the inner probe: it ends with the session, whoever ends that.
"""

import json
import os
import select
import struct
import subprocess
import time

from safe_path import UnsafeError, resolve

END_SLACK_S = 5.0


def answer_inside(request, plan):
    """Answer a request's own requests by a probe inside; the session's own reading says what kept it from that."""
    reading, inner = enter(request, plan)
    answers = dict(inner)
    answers[request["id"]] = {"": {"session": reading}}
    return answers


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
        )
    except UnsafeError as error:
        return {"e": "EPERM: %s" % error}, {}
    except (OSError, ValueError) as error:
        return {"e": "%s: %s" % (request["enter"][0], getattr(error, "strerror", None) or error)}, {}
    try:
        out, err, in_time = talk(process, outgoing, time.time() + deadline_s + END_SLACK_S)
    finally:
        end(process)
    return understand(out, err, in_time, token, deadline_s, process.returncode)


def talk(process, outgoing, limit):
    """Move bytes until both outputs end; standard input stays open, since its end would end the runner inside."""
    streams = {process.stdout.fileno(): [], process.stderr.fileno(): []}
    order = list(streams)
    stdin = process.stdin.fileno()
    os.set_blocking(stdin, False)
    still = set(order)
    while still:
        left = limit - time.time()
        if left <= 0:
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
            if data:
                streams[descriptor].append(data)
            else:
                still.discard(descriptor)
    out, err = (b"".join(streams[descriptor]) for descriptor in order)
    return out, err, not still


def end(process):
    process.stdin.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    process.stderr.close()


def understand(out, err, in_time, token, deadline_s, status):
    """Read the runner's frames; give the session's reading and the inner probe's answers."""
    noise, started, rest = out.partition(token.encode() + b"\n")
    texts = {b"o": b"", b"e": b""}
    ended = None
    while len(rest) >= 5:
        kind, size = struct.unpack(">cI", rest[:5])
        payload, rest = rest[5 : 5 + size], rest[5 + size :]
        if kind == b"x":
            ended = json.loads(payload.decode())
        elif kind in texts:
            texts[kind] += payload
    said = (err + b" " + (texts[b"e"] if started else noise)).decode("utf-8", "backslashreplace").strip()[-400:]
    if not in_time or (ended and ended["timed_out"]):
        return {"e": "ETIMEDOUT: no answer from inside within %g s" % deadline_s, "s": said}, {}
    if not started or ended is None or ended["status"] != 0:
        status = ended["status"] if ended else status
        return {"e": "exit status %s: %s" % (status, said or "it said nothing"), "x": status, "s": said}, {}
    try:
        document = json.loads(texts[b"o"].decode())
        answers = document.pop("answers")
    except (ValueError, KeyError):
        return {"e": "the answer from inside is no answer of a probe", "s": said}, {}
    return {"t": json.dumps(document, sort_keys=True)}, answers
