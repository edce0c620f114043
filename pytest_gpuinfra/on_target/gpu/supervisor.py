"""
What the parent of every GPU program does: events, the plan, the controller's end, the target's lock.

This file imports nothing of ours and runs on Python 3.6 and later with the standard library only.
It travels in front of the programs (bundle.py).
It touches on the target one abstract socket and a lock on /dev/nvidiactl; both vanish with the process.

Events go to standard output, one JSON object a line, flushed at once.
The first line of standard input is the plan; standard input then stays open,
and its end means that the controller is gone: everything is killed at once.
"""

import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import threading
import time

SCHEMA = 1
LOCK_NAME = b"\0pytest-gpuinfra-gpu"
STARTED = time.monotonic()

end_at = []  # the overall deadline, seconds since STARTED; empty for none
at_abandon = []  # called, in order, before the program ends for want of a controller


class TroubleError(Exception):
    """
    Something that keeps a worker from going on, as opposed to a wrong result.

    Attributes:
        kind: "cuda", "nccl" (the library returned an error), "memory", "library", "device" or "program".
    """

    def __init__(self, kind, text):
        Exception.__init__(self, text)
        self.kind = kind


def since_start():
    """Give the seconds since the program started."""
    return round(time.monotonic() - STARTED, 4)


def emit(event, **fields):
    """Write one event; the controller's end of the pipe being gone ends the program."""
    data = json.dumps(dict(fields, event=event)).encode() + b"\n"
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        abandon(4)


def progress(phase, text, done=None, total=None):
    """Say what begins now."""
    emit("progress", phase=phase, text=text, done=done, total=total, at_s=since_start())


def read_plan():
    """Read the plan; from here on signals that ask for the end give one."""
    line = sys.stdin.buffer.readline()
    if not line.strip():
        sys.exit(3)
    plan = json.loads(line.decode())
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: abandon(5))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if plan.get("schema") != SCHEMA:
        emit(
            "error",
            fatal=True,
            reason="this program speaks schema %d, the plan %r" % (SCHEMA, plan.get("schema")),
        )
        sys.exit(3)
    return plan


def controller_is_gone(timeout_s=0.0):
    """Whether standard input has ended; what else is written there is thrown away."""
    if select.select([0], [], [], timeout_s)[0]:
        return not os.read(0, 65536)
    return False


def check_deadline():
    """End at the plan's overall deadline."""
    if end_at and since_start() > end_at[0]:
        emit("error", fatal=True, kind="deadline", reason="no end within the overall deadline, %g s" % end_at[0])
        abandon(6)


def abandon(status):
    """Kill every worker, remove what they left, and end."""
    for close in at_abandon:
        close()
    os._exit(status)


class WatchedByThread:
    """Watch standard input while the main thread is busy with something that cannot be interrupted."""

    def __enter__(self):
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.daemon = True
        self.thread.start()
        return self

    def _watch(self):
        while not self.over.is_set():
            if controller_is_gone(0.1):
                abandon(4)
            check_deadline()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class TargetLock:
    """
    The target's lock: two runs must not disturb each other.

    It is held as long as this object, or any process forked meanwhile, is there.
    An abstract socket covers one network namespace;
    the lock on the driver's control device also covers containers that share that device.

    Args:
        wait_s: Seconds to wait for another run to end.
    """

    def __init__(self, wait_s):
        self.wait_s = wait_s
        self.deadline = time.monotonic() + wait_s
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.device = None

    def take(self):
        """Give None, or the reason why the lock was not had."""
        return self._take_socket() or self._take_device()

    def _again(self):
        if controller_is_gone(0.1):
            abandon(4)
        check_deadline()
        return time.monotonic() < self.deadline

    def _take_socket(self):
        told = False
        while True:
            try:
                self.socket.bind(LOCK_NAME)
                self.socket.listen(8)
                return None
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    return "the lock could not be taken: %s" % error
            holder = self._holder()
            if not told:
                progress("lock", "waiting for another run on this machine to end (%s)" % holder)
                told = True
            if not self._again():
                return "another run on this machine (%s) kept the GPUs' lock for %g s" % (holder, self.wait_s)

    def _take_device(self):
        try:
            self.device = os.open("/dev/nvidiactl", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None  # no driver, or not to be opened: the driver's own error will tell
        told = False
        while True:
            try:
                fcntl.flock(self.device, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return None
            except OSError as error:
                if error.errno != errno.EWOULDBLOCK:
                    return None  # a device that cannot be locked: the socket has to do
            if not told:
                progress("lock", "waiting for another run on this machine to end (in another container)")
                told = True
            if not self._again():
                return "another run, in another container, kept the GPUs' lock for %g s" % self.wait_s

    @staticmethod
    def _holder():
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as ask:
                ask.settimeout(1.0)
                ask.connect(LOCK_NAME)
                credentials = ask.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError:
            return "process unknown"
        return "process %d" % int.from_bytes(credentials[:4], sys.byteorder)
