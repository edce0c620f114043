"""
Workers of the GPU programs: forked processes, each in a process group of its own, and the parent's view of them.

This file imports supervisor.py and as_process.py only and runs on Python 3.6 and later with the standard library only.
It touches on the target its own children,
and those /dev/shm/nccl-* files that its own killed workers held open and NCCL can no longer remove.
"""

import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback

import supervisor
from as_process import (
    GRACE_S,
    PYTHON,
    Refused,
    Subject,
    begin,
    descendants,
    interpreter_argv,
    output_of,
    relay,
    send,
)

LOG_LINES_KEPT = 400
LOG_LINE_MAX = 1 << 16
REPORT_MAX = 1 << 20
PIECES_A_TURN = 16
MESSAGES_MAX = 20000
NEEDED = 1 << 30  # bytes of the host's memory that a rank comes to
SOURCES = {}  # the modules' texts by name, where they came as one text (packing.py)
BOOTSTRAP = """
import os
def take(size):
    data = b""
    while len(data) < size:
        part = os.read(0, min(65536, size - len(data)))
        if not part:
            os._exit(4)
        data += part
    return data
line = b""
while not line.endswith(b"\\n"):
    line += take(1)
exec(compile(take(int(line)), "<pytest-gpuinfra worker>", "exec"), {"__name__": "__main__"})
"""
WORKER = """
import sys, types
sources = %r
for name in sources:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(sources[name], "<pytest-gpuinfra " + name + ".py>", "exec"), module.__dict__)
sys.gpuinfra_as_another = True
import crew
port = crew.Port(3, 0)
crew.run_worker(port, getattr(sys.modules[%r], %r), port.wait())
"""
SHAPES = {
    "stage": (str,), "ready": (dict,), "done": (bool,), "trouble": (str,), "kind": (str,), "id": (str,),
    "run": (dict,), "speed": (dict,),
}  # fmt: skip
INNER = {
    "run": {
        "wrong_elements": (int,), "unreduced_elements": (int,), "zero_elements": (int,),
        "first_wrong_index": (int, type(None)), "type": (str,), "size_bytes": (int,), "elements": (int,),
        "repeat": (int,),
    },
    "speed": {"type": (str,), "size_bytes": (int,), "time_s": (float,)},
    "ready": {
        "path": (str, type(None)), "version": (str,), "sham": (bool,), "stand_in": (str, type(None)),
    },
}  # fmt: skip


def is_message(value):
    """Whether what a rank wrote that is as a service's process has the shape of what a rank of cuda_program reports."""
    if not isinstance(value, dict) or not value:
        return False
    for name, one in value.items():
        if name not in SHAPES or type(one) not in SHAPES[name] or (type(one) is str and len(one) > 8192):
            return False
        inner = INNER.get(name)
        if inner and (set(one) != set(inner) or any(type(one[key]) not in inner[key] for key in inner)):
            return False
    return True


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
        self.process = None  # (number, start time) of the service's process that it is like
        self.messages = 0
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

    def start(self, name, function, *arguments, keep=(), process=None):
        """
        Fork a worker that runs function(port, *arguments).

        Its standard output and error come back as log lines. `keep` are the channel ends that it may use.
        With `process`, (number, start time), the worker is a new interpreter as that process; what it reports is
        then checked for its shape.
        """
        report_read, report_write = os.pipe()
        log_read, log_write = os.pipe()
        gate_read, gate_write = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            for descriptor in (report_read, log_read):
                os.close(descriptor)
            self._become_worker(parent, log_write, keep)
            if process:
                run_as_process(process, (report_write, gate_read, gate_write), function, arguments)
            os.close(gate_write)
            run_worker(Port(report_write, gate_read), function, arguments)
        try:
            os.setpgid(pid, pid)
        except OSError:
            pass  # it did so itself already
        for descriptor in (report_write, log_write, gate_read):
            os.close(descriptor)
        worker = Worker(name, pid, report_read, log_read, gate_write)
        worker.process = process
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
                    worker.shm_files |= nccl_files(worker)
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
                    happened.append((worker, "said", read_message(worker, line)))
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
                worker.shm_files |= nccl_files(worker)
                if worker.process:
                    send(worker.pid, signal.SIGTERM)
        relays = [worker for worker in workers if worker.process]
        deadline = time.monotonic() + 2 * GRACE_S
        while time.monotonic() < deadline and not self.all_ended(relays):
            time.sleep(0.002)
        for worker in workers:
            if not worker.collect():
                for child in descendants(worker.pid) if worker.process else ():
                    send(child, signal.SIGKILL)
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
        for process in {worker.process for worker in workers}:
            left = sorted(set().union(*[one.shm_files for one in workers if one.process == process]))
            self.removed_files += remove_files(left, process) if left else []
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


def read_message(worker, line):
    """Read one report of a worker; one that is as a service's process may write anything, and so may any library."""
    worker.messages += 1
    as_another = worker.process is not None
    try:
        value = json.loads(line.decode()) if not as_another or worker.messages <= MESSAGES_MAX else None
    except (ValueError, RecursionError):
        value = None
    if not (is_message(value) if as_another else isinstance(value, dict)):
        shown = line[:100].decode("utf-8", "backslashreplace")
        return {"trouble": "it reported what a rank does not report: %s" % shown, "kind": "program"}
    return value


def run_as_process(process, pipes, function, arguments):
    """Be the parent of a worker that is as a service's process: start it, hand it its program, end as it ends."""
    report, gate_read, gate_write = pipes
    os.dup2(gate_read, 0)
    os.close(gate_read)
    try:
        subject = Subject(*process)
        argv, executable = worker_python(subject)
        environment = subject.child_environment(without=(b"CUDA_VISIBLE_DEVICES",))
        environment.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_CACHE_DISABLE="1")
        environment.pop(b"CUDA_DEVICE_ORDER", None)
        environment.pop(b"CUDA_CACHE_DISABLE", None)
        started = begin(
            subject, [*argv, "-B", "-c", BOOTSTRAP], environment, keep=(report,), needed=NEEDED, executable=executable
        )
    except Refused as refusal:
        Port(report, 0).say(trouble=str(refusal), kind="rights")
        os._exit(1)
    program = (WORKER % (SOURCES, function.__module__, function.__name__)).encode()
    os.close(0)
    left = b"%d\n%b%b\n" % (len(program), program, json.dumps(arguments).encode())
    try:
        while left:
            left = left[os.write(gate_write, left) :]
    except OSError:
        pass  # it has ended, and its end tells
    os.close(gate_write)
    os.close(report)
    relay(started)


def worker_python(subject):
    """Give the argv of a process's Python and None, or of our own and its descriptor where it is no Python."""
    if PYTHON.match(os.path.basename(subject.executable)):
        return interpreter_argv(subject), None
    return [sys.executable, "-I", "-S"], os.open("/proc/self/exe", 0o10000000 | os.O_CLOEXEC)


def remove_files(paths, process):
    """Remove what killed workers left in /dev/shm, as the process that they were like; gives what was removed."""
    removed = []
    if process is None:
        for path in paths:
            try:
                os.unlink(path)
                removed.append(path)
            except OSError:
                pass  # NCCL removed it itself
        return removed
    code = "import os, sys\nfor path in sys.argv[1:]:\n    os.path.exists(path) and (os.unlink(path), print(path))"
    try:
        subject = Subject(*process)
        argv, executable = worker_python(subject)
        argv = [*argv, "-B", "-c", code, *paths]
        out = output_of(subject, argv, subject.child_environment(), 10.0, 1 << 16, executable)[0]
        return [path for path in out.decode("utf-8", "replace").splitlines() if path in paths]
    except Refused:
        return removed


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


def nccl_files(worker):
    """Give the /dev/shm/nccl-* files that a worker holds open; empty where that cannot be read."""
    if worker.process:
        return set().union(*[files_of(pid) for pid in descendants(worker.pid)])
    return files_of(worker.pid)


def files_of(pid):
    """Give the /dev/shm/nccl-* files that a process holds open."""
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
