"""What every connection offers, and the framing that commands on the target share."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
import secrets
import selectors
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol
from weakref import WeakSet

from pytest_gpuinfra.connection.rights import READ_PYTHONS, Sudo, sudo_prefix
from pytest_gpuinfra.errors import CommandTimeout, ProbeError
from pytest_gpuinfra.on_target.bundle import packed
from pytest_gpuinfra.on_target.session.safe_path import FIXED
from pytest_gpuinfra.wire import WireError, load_object

OnOutput = Callable[[str, str], None]
"""Called with ("stdout" or "stderr", text) as output arrives, in the thread that runs the command."""

SAFE = ":".join(FIXED)
"""Where root looks for what it runs, before what of its login's PATH nobody else may write."""
NOISE_LIMIT = 8 << 20
"""Bytes that a session may print, as its login shell does, beside what the runner says."""
OUTPUT_LIMIT = 16 << 20
"""Bytes that one command may print, and have kept; a capture of a large host has a few, and 12 MiB at most."""
FRAME_LIMIT = 1 << 16
"""Bytes of one frame; the runner passes on what it reads in pieces of that size."""
NO_PYTHON = "gpuinfra-no-python3"
UNSAFE = "gpuinfra-unsafe"
MARK = "gpuinfra-refused: "
HOST_REACHED = "gpuinfra-host-reached"
_BOOTSTRAP = """
import sys
import os
def take(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            sys.exit(3)
        data += part
    return data
line = b""
while not line.endswith(b"\\n"):
    line += take(1)
exec(compile(take(int(line)), "<pytest-gpuinfra runner>", "exec"), {"__name__": "__main__"})
"""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """
    What a command on the target did.

    Attributes:
        argv: The command.
        exit_status: Its exit status; negative: the signal that ended it; 127 where it could not be started.
        stdout: Standard output, undecodable bytes as backslash escapes.
        stderr: Standard error, likewise.
        took_s: Seconds from the controller's point of view, the connection included.
        stdout_bytes: Standard output as it came.
    """

    argv: tuple[str, ...]
    exit_status: int
    stdout: str
    stderr: str
    took_s: float
    stdout_bytes: bytes = b""


class Feed:
    """
    Bytes for the standard input of a program that already runs; `send` may be called from any thread.

    A feed serves one call of `run_program`.
    """

    def __init__(self) -> None:
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._closed = False

    def fileno(self) -> int:
        """Give the descriptor that is readable when there is something to take."""
        return self._wake

    def send(self, data: bytes) -> None:
        """Append bytes."""
        with self._lock, contextlib.suppress(OSError):  # the pipe is full: it will wake up all the same
            if not self._closed:
                self._waiting += data
                os.write(self._waker, b"x")

    def take(self) -> bytes:
        """Take what has been appended."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        with self._lock:
            data, self._waiting = bytes(self._waiting), bytearray()
        return data

    def close(self) -> None:
        """Give the descriptors back; nothing is sent any more. May be called twice."""
        with self._lock:
            if not self._closed:
                os.close(self._wake)
                os.close(self._waker)
            self._closed = True


class Connection(Protocol):
    """
    A way to run programs on one target.

    Every call has a deadline; a command that outlives it is killed on the target with its process group,
    and so is one whose controller dies. Calls may come from several threads.

    Attributes:
        name: Alias of the host, for messages.
        round_trips: Commands that were run on the target so far.
    """

    name: str
    round_trips: int

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        on_output: OnOutput | None = None,
    ) -> CommandResult:
        """
        Run a command and wait for it.

        Args:
            argv: Program and arguments; no shell reads them.
            stdin: Bytes for its standard input, which is closed after them.
            timeout_s: Deadline on the target, from the moment the command starts there.
            env: Variables to add to the login environment.
            on_output: Called with each piece of output as it arrives.

        Raises:
            CommandTimeout: The deadline passed; the command was killed.
            UnreachableError: No session with the target.
            ProbeError: The session ended before the command did.
        """
        ...

    def run_program(
        self,
        source: str,
        plan: object,
        *,
        timeout_s: float,
        on_output: OnOutput | None = None,
        feed: Feed | None = None,
        python: str | None = None,
        process: tuple[int, int] | None = None,
        site: bool = True,
        keep_output: bool = True,
    ) -> CommandResult:
        """
        Run a Python program that is sent along, in the target's own python3, or in another Python there.

        The program gets its plan as one line of JSON on standard input, which then stays open:
        its end tells the program that the controller is gone. What is sent to `feed` follows there.
        No compiled file is written there, and nothing is imported from the directory that it starts in.

        Args:
            source: The program's text.
            plan: What it is given, as JSON.
            timeout_s: Deadline on the target, from the moment the program starts there.
            on_output: Called with each piece of output as it arrives.
            feed: Where more for its standard input comes from.
            python: Path of another Python there, sitecustomize included; as root only where nobody else may write it.
            process: (number, start time in clock ticks) of a process: run in its Python, as that process, in its
                environment. `python` has no effect then.
            site: Whether the login's python3 gets its site-packages; without them it starts sooner, and runs
                nothing that the machine's owner has put there. Of no effect with `python` and `process`.
            keep_output: Whether its standard output is kept for the result, OUTPUT_LIMIT at most; without, it goes to
                `on_output` alone, and may go on for ever.

        Raises:
            ProbeError: That Python may not be started (on_target/session/launch.py).
            As `run`.
        """
        ...

    def close(self) -> None:
        """End the session; nothing stays on the target. May be called twice."""
        ...


@cache
def runner_source() -> str:
    """Give the text of the on-target runner, with the module that it imports in front."""
    return packed(("safe_path",), "runner")


@cache
def launcher_source() -> str:
    """Give the text of what starts another Python on the target, its modules in front."""
    return packed(("safe_path", "as_process"), "launch")


RIGHTS_REMEDY = (
    "what belongs to a service runs only with that service's own rights, and what root runs only where nobody else "
    "may write it: docs/levels.md says what that takes"
)


def remote_command(*, sudo: Sudo = False) -> str:
    """
    Give the one line that a login shell of any kind on the target is asked to run.

    It looks for python3 also where a restricted PATH does not, and starts the bootstrap; as root, and through sudo,
    only a python3 that nobody else may write.
    Within single quotes it holds no quote, newline, "!" or backslash, so sh, bash, zsh, csh and fish read it alike.
    """
    return f"exec /bin/sh -c '{_python_script(sudo=sudo)}'"


def inside_argv(enter: Sequence[str]) -> list[str]:
    """Give the command that starts the bootstrap in a container: what enters it, and sh with the same text."""
    return [*enter, "/bin/sh", "-c", _python_script()]


def nested_command(enter: Sequence[str], *, sudo: bool = False) -> str:
    """
    Give the line for a login shell on the host that starts the bootstrap in a container.

    It says HOST_REACHED first, so that a failure of the way in is told apart from one of the way to the host.

    Args:
        enter: What enters the container; its words hold nothing that double quotes do not keep (containers.py).
        sudo: Enter through `sudo -n`.
    """
    words = " ".join(word if re.fullmatch(r"[\w./:=-]+", word) else f'"{word}"' for word in enter[1:])
    prefix = "sudo -n " if sudo else ""
    return (
        f"exec /bin/sh -c '{_FIND}echo {HOST_REACHED}; {_look_as(sudo=sudo)}f {enter[0]}; "
        f'case $f$z in "") f={enter[0]};; esac; '
        f'case $f in "") echo {UNSAFE} $z; exit 126;; esac; '
        f"exec {prefix}$f {words} /bin/sh -c \"$0\"' '{_python_script()}'"
    )


# sh: `k FILE` is true where root alone may write a file, along its path and its links; else w says what is wrong.
# `f NAME` puts the first such file of that name into f, or into z why those that there are were not taken.
# With R an ordinary user's number whatever the PATH has will do. No quote, newline, "!" or backslash in it.
_FIND = (
    "k() { q=$1; n=.; while :; do n=$n.; case $n in ...........*) w=links; return 1;; esac; d=${q%/*}; "
    'c=$(cd -P "$d/" && pwd -P) || return 1; set -- "$q"; '
    'for b in "$d" "$c"; do while [ "$b" ]; do set -- "$@" "$b"; b=${b%/*}; done; done; '
    'w=$(ls -ldn / "$@" | { y=unreadable; while read m l u g x; do y=; '
    'case $u in 0) ;; *) y="owner $u: $m $x"; break;; esac; '
    'case $m in l*|d????????[tT]*) ;; ?????w*|????????w*) y="writable by others: $m $x"; break;; esac; '
    'done; echo "$y"; }); case $w in "") ;; *) return 1;; esac; '
    'if [ -L "$q" ]; then t=$(readlink "$q"); case $t in /*) q=$t;; *) q=$c/$t;; esac; else return 0; fi; done; }; '
    'f() { f=; z=; set -f; IFS=:; for o in $P; do IFS=" "; '
    'p=$o/$1; case $p in /*) if [ -f "$p" ] && [ -x "$p" ]; then '
    'case $R in [1-9]*) f=$p;; *) if k "$p"; then f=$p; else z="$p: $w"; fi;; esac; fi;; esac; '
    'case $f in ?*) break;; esac; done; IFS=" "; }; '
)


def _look_as(*, sudo: Sudo) -> str:
    """Give the sh text that says as whom (R) and where (P) to look, and leaves a PATH for what is run."""
    who = "R=0" if sudo is True else f"R=$(PATH={SAFE}; id -u)"
    return f"cd /; P=$PATH:{SAFE}; {who}; case $R in [1-9]*) PATH=$P;; *) PATH={SAFE};; esac; export PATH; "


def _python_script(*, sudo: Sudo = False) -> str:
    code = _BOOTSTRAP.encode().hex()
    start = f'-ISB -c "import sys;exec(bytes.fromhex(sys.argv[1]).decode())" {code} pytest-gpuinfra'
    look = f"L=$PATH; {_FIND}{_look_as(sudo=sudo)}"
    if sudo == "read":  # the sudoers file names the interpreters
        pythons = " ".join(READ_PYTHONS)
        found = f"for f in {pythons}; do if [ -x $f ]; then exec {sudo_prefix(sudo)}$f {start}; fi; done; "
    else:
        found = (
            "f python3; "
            'case $f in "") P=/usr/libexec; v=$z; f platform-python; z=$z$v;; esac; '
            f'case $f in ?*) PATH=$PATH:$L; exec {sudo_prefix(sudo)}"$f" {start};; esac; '
            f"case $z in ?*) echo {UNSAFE} python3 $z; exit 126;; esac; "
        )
    return f"{look}{found}echo {NO_PYTHON}; exit 127"


@dataclass(frozen=True, slots=True)
class _End:
    """
    What the runner's last frame says.

    Attributes:
        status: The job's exit status; -1 where it has none, as one that was killed at its deadline.
        timed_out: Whether that was so.
    """

    status: int
    timed_out: bool


def _read_end(name: str, payload: bytes) -> _End:
    """Read the last frame; ProbeError if it has another shape than the runner's."""
    try:
        fields = load_object(payload.decode("ascii"))
        status, timed_out, error = (fields.pop(key) for key in ("status", "timed_out", "error"))
        if fields or type(timed_out) is not bool or error is not None:
            raise WireError("has other fields")
        if type(status) is int and -256 <= status < 256:
            return _End(status, timed_out)
        if status is not None or not timed_out:
            raise WireError(f"has the exit status {status!r}")
        return _End(-1, timed_out)
    except (ValueError, KeyError) as error:
        raise ProbeError(
            f"{name}: the session's last frame is none of the runner's: {error}: {payload[:100]!r}",
            remedy="something on the target writes to the session's standard output, or is not what it seems",
        ) from None


def explain_unsafe(name: str, noise: str) -> ProbeError | None:
    """Say that root would have had to run what others may write; None where that is not what a session printed."""
    what = noise.partition(f"{UNSAFE} ")[2].partition("\n")[0].strip()
    if not what:
        return None
    return ProbeError(
        f"{name}: root runs only what nobody else may write, and this is all that there is: {what[:400]}",
        remedy="install it in /usr/bin, or give file and directories to root (chown root, chmod go-w)",
    )


@dataclass
class _Exchange:
    """Bytes of one session as they came: noise before the token, then frames. What floods is cut off."""

    name: str
    token: bytes
    on_output: OnOutput | None
    keep_output: bool = True
    noise: bytes = b""
    started: bool = False
    end: _End | None = None
    raw: dict[str, list[bytes]] = field(default_factory=lambda: {"stdout": [], "stderr": []})
    said: bytes = b""
    _noise_bytes: int = 0
    _output_bytes: int = 0
    _buffer: bytes = b""
    _decoders: dict[str, codecs.IncrementalDecoder] = field(
        default_factory=lambda: {
            name: codecs.getincrementaldecoder("utf-8")("backslashreplace") for name in ("stdout", "stderr")
        }
    )

    def feed(self, data: bytes) -> None:
        self._buffer += data
        if not self.started:
            before, found, after = self._buffer.partition(self.token + b"\n")
            self.noise = before[-65536:]
            if not found:
                self._buffer = self.noise
                self._count_noise(data)
                return
            self._buffer, self.started = after, True
        place = 0
        while self.end is None and len(self._buffer) >= place + 5:
            kind, size = struct.unpack_from(">cI", self._buffer, place)
            self._check_frame(kind, size)
            if len(self._buffer) < place + 5 + size:
                break
            self._take(kind, self._buffer[place + 5 : place + 5 + size])
            place += 5 + size
        self._buffer = self._buffer[place:]

    def hear(self, data: bytes) -> None:
        """Take what the session itself printed on standard error."""
        self.said = (self.said + data)[-16384:]
        self._count_noise(data)

    def _count_noise(self, data: bytes) -> None:
        self._noise_bytes += len(data)
        if self._noise_bytes > NOISE_LIMIT:
            raise ProbeError(
                f"{self.name}: the session printed more than {NOISE_LIMIT >> 20} MiB that nobody asked for, and was "
                f"cut off; it ended in {self.text_of((self.noise + self.said)[-100:])!r}",
                remedy="see what its login shell prints: `ssh HOST true | head`",
            )

    def _check_frame(self, kind: bytes, size: int) -> None:
        if kind not in (b"o", b"e", b"x") or size > FRAME_LIMIT:
            what = f"{kind!r}" if kind not in (b"o", b"e", b"x") else f"{kind!r} of {size} bytes"
            raise ProbeError(
                f"{self.name}: the session with the target broke off into bytes that are no frame ({what})",
                remedy="something on the target writes to the session's standard output: look at its shell set-up",
            )

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == b"x":
            self.end = _read_end(self.name, payload)
            return
        name = {b"o": "stdout", b"e": "stderr"}[kind]
        if self.keep_output or name == "stderr":
            self._keep(name, payload)
        if self.on_output:
            self.on_output(name, self._decoders[name].decode(payload))

    def _keep(self, name: str, payload: bytes) -> None:
        self._output_bytes += len(payload)
        if self._output_bytes > OUTPUT_LIMIT:
            raise ProbeError(
                f"{self.name}: the command printed more than {OUTPUT_LIMIT >> 20} MiB, and was ended",
                remedy="see what is so large there (a log? a file that a plugin's request reads?)",
            )
        self.raw[name].append(payload)

    def bytes_of(self, name: str) -> bytes:
        """Give what the command printed, once: it is not held twice."""
        joined = b"".join(self.raw[name])
        self.raw[name] = [joined]
        return joined

    @staticmethod
    def text_of(data: bytes) -> str:
        return data.decode("utf-8", "backslashreplace")


class PipeConnection:
    """
    A connection whose every command is one local process, the pipes of which lead to the target.

    Subclasses say which process (`_session_argv`) and what its failures mean (`_explain_failure`).

    Args:
        name: Alias of the host, for messages.
        sudo: Which rights everything runs with.
        connect_timeout_s: Seconds until the runner must have spoken; covers login and slow shells.
        max_sessions: Commands at the same time at most, below sshd's MaxSessions (10 by default).
    """

    def __init__(
        self, name: str, *, sudo: Sudo = False, connect_timeout_s: float = 30.0, max_sessions: int = 8
    ) -> None:
        self.name = name
        self.round_trips = 0
        self.sudo = sudo
        self.connect_timeout_s = connect_timeout_s
        self.sessions = threading.BoundedSemaphore(max_sessions)
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._early: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False
        _ALL.add(self)

    def _session_argv(self) -> list[str]:
        raise NotImplementedError

    def _explain_failure(self, exit_status: int | None, said: str, noise: str) -> Exception:
        raise NotImplementedError

    def open_early(self) -> None:
        """
        Begin the session of the first command now, so that the target logs in while the caller still prepares.

        Failures show with that command.
        """
        with contextlib.suppress(ProbeError):
            self._early = self._start()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        on_output: OnOutput | None = None,
    ) -> CommandResult:
        header = {
            "argv": list(argv),
            "program": False,
            "stdin_open": False,
            "env": dict(env) if env else None,
        }
        return self._job(tuple(argv), header, b"", stdin, timeout_s, on_output)

    def run_program(
        self,
        source: str,
        plan: object,
        *,
        timeout_s: float,
        on_output: OnOutput | None = None,
        feed: Feed | None = None,
        python: str | None = None,
        process: tuple[int, int] | None = None,
        site: bool = True,
        keep_output: bool = True,
    ) -> CommandResult:
        program = source.encode()
        stdin = json.dumps(plan).encode() + b"\n"
        other = python is not None or process is not None or site
        if other:
            order = {"process": process, "python": python, "bootstrap": _BOOTSTRAP}
            stdin = b"%b\n%d\n%b%b" % (json.dumps(order).encode(), len(program), program, stdin)
            program = launcher_source().encode()
        header: dict[str, object] = {"argv": None, "program": True, "stdin_open": True, "env": None}
        argv = (python or "python3", "-")
        result = self._job(
            argv, header, b"%d\n%b" % (len(program), program), stdin, timeout_s, on_output, feed, keep_output
        )
        refusal = result.stderr.partition(MARK)[2].partition("\n")[0] if other and result.exit_status == 126 else ""
        if refusal and not result.stdout:
            raise ProbeError(f"{self.name}: {refusal}", remedy=RIGHTS_REMEDY)
        return result

    def close(self) -> None:
        self._closed = True
        with self._lock:
            processes = list(self._processes)
        for process in processes:  # each is in the hands of the thread that runs it; this makes it come to an end
            if process.stdin:
                with contextlib.suppress(OSError, ValueError):
                    process.stdin.close()
        limit = time.monotonic() + 2.0
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, limit - time.monotonic()))
                continue
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        unused = self._take_early()
        if unused is not None:
            _end(unused)

    def _job(
        self,
        argv: tuple[str, ...],
        header: dict[str, object],
        program: bytes,
        stdin: bytes,
        timeout_s: float,
        on_output: OnOutput | None,
        feed: Feed | None = None,
        keep_output: bool = True,
    ) -> CommandResult:
        token = f"gpuinfra-{secrets.token_hex(8)}"
        header |= {"token": token, "stdin_length": len(stdin), "timeout_s": timeout_s}
        runner = runner_source().encode()
        outgoing = b"".join((b"%d\n" % len(runner), runner, json.dumps(header).encode(), b"\n", program, stdin))
        exchange = _Exchange(self.name, token.encode(), on_output, keep_output)
        started = time.monotonic()
        with self.sessions:
            process = self._take_early() or self._start()
            self.round_trips += 1
            try:
                said = self._talk(process, exchange, outgoing, timeout_s, feed)
            finally:
                _end(process)
                with self._lock:
                    self._processes.discard(process)
        if exchange.end is None:
            raise self._unfinished(process.returncode, exchange, said)
        stdout = exchange.bytes_of("stdout")
        texts = exchange.text_of(stdout), exchange.text_of(exchange.bytes_of("stderr"))
        if exchange.end.timed_out:
            raise CommandTimeout(argv, timeout_s, "".join(texts))
        return CommandResult(argv, exchange.end.status, *texts, time.monotonic() - started, stdout)

    def _take_early(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            process, self._early = self._early, None
            return process

    def _start(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise ProbeError(f"{self.name}: the connection was closed already")
        argv = self._session_argv()
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,  # Ctrl-C is ours to handle: it must not reach the sessions first
            )
        except OSError as error:
            raise ProbeError(
                f"{self.name}: {argv[0]} cannot be started here: {error.strerror}",
                remedy="see whether it is installed, and whether this machine has processes and descriptors left",
            ) from None
        with self._lock:
            self._processes.add(process)
        return process

    def _unfinished(self, status: int | None, exchange: _Exchange, said: str) -> Exception:
        noise = exchange.text_of(exchange.noise)
        if exchange.started:
            tail = exchange.text_of((exchange.bytes_of("stdout") + exchange.bytes_of("stderr"))[-400:]).strip()
            return ProbeError(
                f"{self.name}: the session ended before the command did"
                + (f"; the connection said {said.strip()!r}" if said.strip() else "")
                + (f"; the command's last output: {tail!r}" if tail else ""),
                remedy="see whether the host went down or the network was cut, then run again",
            )
        return self._explain_failure(status, said, noise)

    def _talk(
        self,
        process: subprocess.Popen[bytes],
        exchange: _Exchange,
        outgoing: bytes,
        timeout_s: float,
        feed: Feed | None,
    ) -> str:
        """Move bytes until the last frame, the end of the session, or the deadline; gives the session's stderr."""
        assert process.stdin
        assert process.stdout
        assert process.stderr
        os.set_blocking(process.stdin.fileno(), False)
        connect_by = time.monotonic() + self.connect_timeout_s
        end_by: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdin, selectors.EVENT_WRITE)
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(process.stderr, selectors.EVENT_READ)
            if feed is not None:
                selector.register(feed, selectors.EVENT_READ)
            open_streams = 2
            while exchange.end is None and open_streams:
                if exchange.started and end_by is None:
                    end_by = time.monotonic() + timeout_s + 10.0  # the runner's own deadline comes first
                limit = end_by if end_by is not None else connect_by
                left = limit - time.monotonic()
                if left <= 0:
                    return exchange.text_of(exchange.said) + (
                        "" if exchange.started else f"\n{TIMED_OUT_MARK} {self.connect_timeout_s:g} s"
                    )
                for key, _ in selector.select(left):
                    if key.fileobj is feed and feed is not None:
                        more = feed.take()  # nothing, where an earlier look took what this one was called for
                        if more and not outgoing and not process.stdin.closed:
                            selector.register(process.stdin, selectors.EVENT_WRITE)
                        outgoing += more
                        continue
                    if key.fileobj is process.stdin:
                        try:
                            outgoing = outgoing[os.write(key.fd, outgoing[:65536]) :]
                        except BlockingIOError:
                            continue
                        except OSError:
                            outgoing = b""
                        if not outgoing:  # stays open: its end would tell the runner that we are gone
                            selector.unregister(process.stdin)
                        continue
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(key.fileobj)
                        open_streams -= 1
                    elif key.fileobj is process.stdout:
                        exchange.feed(data)
                    else:
                        exchange.hear(data)
        if exchange.end is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2.0)
        return exchange.text_of(exchange.said)


_ALL: WeakSet[PipeConnection] = WeakSet()


def close_all(timeout_s: float) -> None:
    """End all connections of this process, at the same time, so that one that hangs holds up no other."""
    threads = [threading.Thread(target=one.close, daemon=True, name=f"close {one.name}") for one in list(_ALL)]
    for thread in threads:
        thread.start()
    limit = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, limit - time.monotonic()))


TIMED_OUT_MARK = "gpuinfra: no sign of the runner within"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the session's pipes, so that the runner sees the end, and see it off."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            with contextlib.suppress(OSError):
                stream.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            process.wait(1.0)
            return
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)  # longer, and it hangs in the kernel
