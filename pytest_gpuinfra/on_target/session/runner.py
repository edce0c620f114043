"""
The runner: runs one job on the target, streams what it writes, and leaves nothing behind.

This file imports safe_path.py only, which travels in front of it, and runs on Python 3.6 and later with the standard
library only. It is sent on standard input to a bootstrap of a few lines and is the parent of every job:

- the job gets a session of its own, so that its whole process group dies with it;
- on the deadline, and when standard input closes (the controller ended, was killed, or the connection was cut),
  the job is asked to end, then its group is killed, and so is every process that it left behind;
- standard output starts with a token, so that whatever login shells print before is told apart.

Header (first line of standard input, JSON):
    {"token": str, "argv": [str] or null, "program": bool, "stdin_length": int, "stdin_open": bool,
     "timeout_s": float, "env": {name: value} or null}
As root it runs a command only where nobody else may write it (safe_path.py); the working directory is "/".
Then, where "program" is true, one line with the length of a Python program and the program itself, which a fork of
this interpreter executes, with the standard library alone; then "stdin_length" bytes for the job's standard
input, which is closed after them unless "stdin_open"; what the controller sends later goes to the job, too, as long
as that is open.

Frames on standard output after the token: one byte of type, four bytes of length (big endian), payload.
    o, e   standard output and error of the job
    x      JSON {"status": int or null, "timed_out": bool, "error": str or null}; always the last
"""

import json
import os
import select
import signal
import struct
import sys
import time

from safe_path import UnsafeError, clean_environment, resolve

GRACE_S = 1.5


def read_exactly(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            sys.exit(3)
        data += part
    return data


def read_line():
    line = b""
    while not line.endswith(b"\n"):
        line += read_exactly(1)
    return line


def write_all(descriptor, data):
    while data:
        data = data[os.write(descriptor, data) :]


def frame(kind, payload):
    write_all(1, struct.pack(">cI", kind, len(payload)) + payload)


def prctl(option, value):
    """Ask the kernel for a parent-death signal (1) or to be a subreaper (36); do without where it cannot be had."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def execute(program, argv, env):
    """Become the job; never returns."""
    prctl(1, signal.SIGKILL)
    if env:
        os.environ.update(env)
    for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    if program is None:
        try:
            os.execvp(resolve(argv[0]), argv)
        except UnsafeError as error:
            write_all(2, ("%s\n" % error).encode("utf-8", "backslashreplace"))
            os._exit(126)
        except OSError as error:
            write_all(2, ("%s: %s\n" % (argv[0], error.strerror)).encode())
            os._exit(127)
    sys.argv = ["pytest-gpuinfra"]
    status = 1
    try:
        exec(
            compile(program, "<pytest-gpuinfra>", "exec"),
            {"__name__": "__main__", "__builtins__": __builtins__},
        )
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else (0 if end.code is None else 1)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            pass
        os._exit(status)


def descendants(root):
    """Give the processes below root, from /proc; empty where that cannot be read."""
    parents = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    for name in names:
        try:
            with open("/proc/" + name + "/stat", "rb") as stream:
                parents[int(name)] = int(stream.read().rsplit(b")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            continue
    found = []
    wanted = [root]
    while wanted:
        parent = wanted.pop()
        children = [pid for pid, its_parent in parents.items() if its_parent == parent]
        found += children
        wanted += children
    return found


def ask_to_end(child, stdin):
    """Close the job's input and ask it to end; one that keeps things in order has a moment to put them so."""
    for ask in (lambda: os.close(stdin), lambda: os.kill(child, signal.SIGTERM)):
        try:
            ask()
        except OSError:
            pass
    until = time.time() + GRACE_S
    while time.time() < until and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        time.sleep(0.01)


def kill_everything(child):
    for _ in range(20):
        if not reap():
            return
        try:
            os.killpg(child, signal.SIGKILL)
        except OSError:
            pass
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.01)


def reap():
    """Collect the dead; whether any child is left (orphans of the job are ours: we are a subreaper)."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except OSError:
        return False
    return True


def start(header, program):
    """Fork the job; gives (pid, its stdin, its stdout, its stderr)."""
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        for source, target in ((in_read, 0), (out_write, 1), (err_write, 2)):
            os.dup2(source, target)
        for descriptor in (in_read, in_write, out_read, out_write, err_read, err_write):
            if descriptor > 2:
                os.close(descriptor)
        execute(program, header["argv"], header.get("env"))
    for descriptor in (in_read, out_write, err_write):
        os.close(descriptor)
    return child, in_write, out_read, err_read


def supervise(child, stdin, streams, pending, keep_open, deadline):
    """Move bytes until the job has ended and its output was read; gives (wait status or None, timed out)."""
    os.set_blocking(stdin, False)
    feeding = True
    status = None
    ended_at = None
    while streams or status is None:
        if feeding and not pending and not keep_open:
            os.close(stdin)
            feeding = False
        now = time.time()
        if now > deadline:
            if status is None:
                ask_to_end(child, stdin)
            return status, True
        if ended_at is not None and now - ended_at > 1.0:
            break  # a process that it left behind still holds its output
        readable, writable, _ = select.select(
            [0, *streams],
            [stdin] if feeding and pending else [],
            [],
            min(0.05, max(0.0, deadline - now)),
        )
        if writable:
            try:
                pending = pending[os.write(stdin, pending) :]
            except BlockingIOError:
                pass
            except OSError:
                pending = b""
                keep_open = False
        for descriptor in readable:
            data = os.read(descriptor, 65536)
            if descriptor == 0:
                if not data:
                    if status is None:
                        ask_to_end(child, stdin)
                    kill_everything(child)
                    os._exit(4)
                if keep_open:
                    pending += data
            elif data:
                frame(streams[descriptor], data)
            else:
                del streams[descriptor]
        if status is None:
            pid, result = os.waitpid(child, os.WNOHANG)
            if pid:
                status = result
                ended_at = time.time()
    return status, False


def main():
    os.chdir("/")
    clean_environment()
    header = json.loads(read_line().decode())
    program = read_exactly(int(read_line())) if header["program"] else None
    pending = read_exactly(header["stdin_length"])
    write_all(1, header["token"].encode() + b"\n")
    prctl(36, 1)
    sys.stdout.flush()
    child, stdin, stdout, stderr = start(header, program)

    def stop(_number, _frame):
        kill_everything(child)
        os._exit(5)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        status, timed_out = supervise(
            child,
            stdin,
            {stdout: b"o", stderr: b"e"},
            pending,
            header["stdin_open"],
            time.time() + header["timeout_s"],
        )
    except OSError:  # our own standard output is gone: so is the controller
        ask_to_end(child, stdin)
        kill_everything(child)
        os._exit(4)
    kill_everything(child)
    code = None
    if status is not None:
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    frame(b"x", json.dumps({"status": code, "timed_out": timed_out, "error": None}).encode())


if __name__ == "__main__":
    main()
