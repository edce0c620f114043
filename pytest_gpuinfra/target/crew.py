"""
Workers of the GPU programs: forked processes, each in a process group of its own, and the parent's view of them.

This file imports supervisor.py only and runs on Python 3.6 and later with the standard library only.
It touches on the target its own children,
and those /dev/shm/nccl-* files that its own killed workers held open and NCCL can no longer remove.
"""

import ctypes
import json
import os
import selectors
import signal
import socket
import time
import traceback

import supervisor

LOG_LINES_KEPT = 400
LOG_LINE_MAX = 1 << 16
REPORT_MAX = 1 << 20
PIECES_A_TURN = 16


class Port:
    """A worker's side of its pipes."""

    def __init__(self, report, gate):
        self.report = report
        self.gate = gate
        self.pending = b""

    def say(self, **fields):
        """Tell the parent."""
        data = json.dumps(fields).encode() + b"\n"
        while data:
            data = data[os.write(self.report, data) :]

    def wait(self):
        """Wait for the parent's next message; the parent being gone ends the worker."""
        while b"\n" not in self.pending:
            data = os.read(self.gate, 65536)
            if not data:
                os._exit(4)
            self.pending += data
        line, self.pending = self.pending.split(b"\n", 1)
        return json.loads(line.decode())


class Worker:
    """The parent's view of one worker process."""

    def __init__(self, name, pid, report, log, gate):
        self.name = name
        self.pid = pid
        self.report = report
        self.log = log
        self.gate = gate
        self.log_lines = []
        self.log_lines_left_out = 0
        self.last_line = ""
        self.status = None
        self.buffers = {report: b"", log: b""}
        self.shm_files = set()

    def tell(self, message):
        """Send the worker a message; if it is dead, its end tells."""
        try:
            os.write(self.gate, json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def how_it_ended(self):
        """Give (exit status or None, name of the signal or None)."""
        if self.status is None:
            return None, None
        if not os.WIFSIGNALED(self.status):
            return os.WEXITSTATUS(self.status), None
        try:
            return None, signal.Signals(os.WTERMSIG(self.status)).name
        except ValueError:
            return None, "signal %d" % os.WTERMSIG(self.status)

    def collect(self):
        """Whether it has ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status is not None

    def keep_line(self, line):
        """Take one line of its output."""
        text = line.decode("utf-8", "backslashreplace").rstrip()
        if text:
            self.last_line = text[-400:]
            if len(self.log_lines) < LOG_LINES_KEPT:
                self.log_lines.append(text[:400])
            else:
                self.log_lines_left_out += 1
        return text


class Crew:
    """
    All workers of a program.

    `turn` moves their messages and watches standard input,
    so a parent that only ever waits in `turn` dies with its controller,
    and its workers with it (by the kernel's parent-death signal, too).
    """

    def __init__(self):
        self.workers = []
        self.channels = []
        self.removed_files = []
        self.last_look = 0.0
        self.selector = selectors.DefaultSelector()
        try:
            self.selector.register(0, selectors.EVENT_READ, None)
        except (PermissionError, ValueError):
            pass  # a plain file: it never ends while we run
        supervisor.at_abandon.append(self.close)

    def channel(self):
        """Make a socket pair for two workers to talk over; hand one end to each, then `drop` both."""
        pair = socket.socketpair()
        self.channels.extend(pair)
        return pair

    def drop(self, pair):
        """Close the parent's copies of a channel."""
        for end in pair:
            self.channels.remove(end)
            end.close()

    def start(self, name, function, *arguments, keep=()):
        """
        Fork a worker that runs function(port, *arguments).

        Its standard output and error come back as log lines. `keep` are the channel ends that it may use.
        """
        report_read, report_write = os.pipe()
        log_read, log_write = os.pipe()
        gate_read, gate_write = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            for descriptor in (report_read, log_read, gate_write):
                os.close(descriptor)
            self._become_worker(parent, log_write, keep)
            run_worker(Port(report_write, gate_read), function, arguments)
        try:
            os.setpgid(pid, pid)
        except OSError:
            pass  # it did so itself already
        for descriptor in (report_write, log_write, gate_read):
            os.close(descriptor)
        worker = Worker(name, pid, report_read, log_read, gate_write)
        self.workers.append(worker)
        for descriptor in (report_read, log_read):
            os.set_blocking(descriptor, False)
            self.selector.register(descriptor, selectors.EVENT_READ, worker)
        return worker

    def _become_worker(self, parent, log_write, keep):
        del supervisor.at_abandon[:]
        os.setpgid(0, 0)
        die_with_parent(parent)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log_write, 1)
        os.dup2(log_write, 2)
        for descriptor in (nothing, log_write):
            os.close(descriptor)
        for end in self.channels:
            if end not in keep:
                end.close()
        for other in self.workers:
            for descriptor in (other.report, other.log, other.gate):
                os.close(descriptor)

    def turn(self, timeout_s=0.05):
        """
        Wait a moment.

        Returns:
            What happened: (worker, "said", dict), (worker, "log", text) or (worker, "ended", None).
        """
        supervisor.check_deadline()
        happened = []
        for key, _ in self.selector.select(timeout_s):
            if key.data is not None:
                happened += self._drain(key.data, key.fd)
            elif not os.read(0, 65536):
                supervisor.abandon(4)
        for worker in self.workers:
            if worker.status is None and worker.collect():
                for descriptor in list(worker.buffers):
                    happened += self._drain(worker, descriptor)
                happened.append((worker, "ended", None))
        now = time.monotonic()
        if now - self.last_look > 0.05:
            self.last_look = now
            for worker in self.workers:
                if worker.status is None:
                    worker.shm_files |= nccl_files(worker.pid)
        return happened

    def _drain(self, worker, descriptor, pieces=PIECES_A_TURN):
        """Take what a worker wrote, so many pieces at most: one that never stops must not keep the parent here."""
        happened = []
        while descriptor in worker.buffers and pieces:
            pieces -= 1
            try:
                data = os.read(descriptor, 65536)
            except BlockingIOError:
                break
            lines = (worker.buffers[descriptor] + data).split(b"\n")
            if data:
                rest = lines.pop()
                if descriptor == worker.log:
                    rest = rest[:LOG_LINE_MAX]
                elif len(rest) > REPORT_MAX:
                    lines, rest = [*lines, rest[:100]], b""
                worker.buffers[descriptor] = rest
            else:
                self.selector.unregister(descriptor)
                del worker.buffers[descriptor]
            for line in lines:
                if descriptor == worker.log:
                    happened.append((worker, "log", worker.keep_line(line)))
                elif line:
                    happened.append((worker, "said", read_report(line)))
        return happened

    @staticmethod
    def all_ended(workers):
        """Whether all of them have ended; collects those that have."""
        ended = [worker.collect() for worker in workers]
        return all(ended)

    def kill(self, workers):
        """
        Kill the process groups of these workers and forget them; what they left in /dev/shm is removed.

        Returns:
            Names of those that not even SIGKILL ended within 5 s: stuck in the kernel.
        """
        for worker in workers:
            if not worker.collect():
                worker.shm_files |= nccl_files(worker.pid)
            for ask in (os.killpg, os.kill) if worker.status is None else (os.killpg,):
                try:
                    ask(worker.pid, signal.SIGKILL)
                except OSError:
                    pass  # gone already
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline and not self.all_ended(workers):
            time.sleep(0.002)
        for worker in workers:
            self._forget(worker)
        for name in sorted(set().union(*[worker.shm_files for worker in workers])):
            try:
                os.unlink(name)
                self.removed_files.append(name)
            except OSError:
                pass  # NCCL removed it itself
        return ["%s (process %d)" % (worker.name, worker.pid) for worker in workers if worker.status is None]

    def _forget(self, worker):
        for descriptor in list(worker.buffers):
            self._drain(worker, descriptor)
            if worker.buffers.pop(descriptor, None) is not None:
                self.selector.unregister(descriptor)
        for descriptor in (worker.report, worker.log, worker.gate):
            os.close(descriptor)
        self.workers.remove(worker)

    def close(self):
        """Kill everybody."""
        return self.kill(list(self.workers))


def read_report(line):
    """Read what a worker said; one in which a library of others writes there, too, is in trouble."""
    try:
        report = json.loads(line.decode())
    except (ValueError, RecursionError):
        report = None
    if not isinstance(report, dict):
        shown = line[:100].decode("utf-8", "backslashreplace")
        return {"trouble": "its report is no JSON object: %s" % shown, "kind": "program"}
    return report


def run_worker(port, function, arguments):
    """Run a worker's function; never returns."""
    status = 1
    try:
        function(port, *arguments)
        status = 0
    except supervisor.TroubleError as trouble:
        port.say(trouble=str(trouble), kind=trouble.kind)
    except Exception as error:
        traceback.print_exc()
        port.say(trouble="%s: %s" % (type(error).__name__, error), kind="program")
    finally:
        os._exit(status)


def die_with_parent(parent):
    """Ask the kernel to kill this process when its parent ends. Source: prctl(2), PR_SET_PDEATHSIG."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # the group is killed all the same, unless the parent is killed first
    if os.getppid() != parent:
        os._exit(4)


def nccl_files(pid):
    """Give the /dev/shm/nccl-* files that a process holds open; empty where that cannot be read."""
    found = set()
    directory = "/proc/%d/fd" % pid
    try:
        names = os.listdir(directory)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(directory + "/" + name)
        except OSError:
            continue
        if target.startswith("/dev/shm/nccl-") and not target.endswith(" (deleted)"):
            found.add(target)
    return found
