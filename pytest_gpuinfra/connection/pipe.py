"""Connections whose commands are local processes, the pipes of which lead to the target."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from weakref import WeakSet

from pytest_gpuinfra.connection.bootstrap import BOOTSTRAP
from pytest_gpuinfra.connection.framing import Exchange
from pytest_gpuinfra.connection.protocol import CommandResult, Feed, OnOutput
from pytest_gpuinfra.connection.rights import Sudo
from pytest_gpuinfra.errors import CommandTimeout, ProbeError
from pytest_gpuinfra.on_target.bundle import packed

MARK = "gpuinfra-refused: "
RIGHTS_REMEDY = (
    "what belongs to a service runs only with that service's own rights, and what root runs only where nobody else "
    "may write it: docs/levels.md says what that takes"
)


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
            order = {"process": process, "python": python, "bootstrap": BOOTSTRAP}
            stdin = b"%b\n%d\n%b%b" % (json.dumps(order).encode(), len(program), program, stdin)
            program = packed("launch").encode()
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
        with self._lock:
            self._closed = True
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
        runner = packed("runner").encode()
        outgoing = b"".join((b"%d\n" % len(runner), runner, json.dumps(header).encode(), b"\n", program, stdin))
        exchange = Exchange(self.name, token.encode(), on_output, keep_output)
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
            closed = self._closed
        if closed:  # meanwhile: whoever closed the connection has not seen it
            self.kill()
            _end(process)
            with self._lock:
                self._processes.discard(process)
            raise ProbeError(f"{self.name}: the connection was closed already")
        return process

    def kill(self) -> None:
        """End what runs of it at once, without a word to the target."""
        with self._lock:
            processes = list(self._processes)
        for process in processes:
            if process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _unfinished(self, status: int | None, exchange: Exchange, said: str) -> Exception:
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
        exchange: Exchange,
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
    """
    End all connections of this process, at the same time, so that one that hangs holds up no other.

    What has not ended by then is killed: it would outlive this process.
    """
    connections = list(_ALL)
    threads = [threading.Thread(target=one.close, daemon=True, name=f"close {one.name}") for one in connections]
    for thread in threads:
        thread.start()
    limit = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, limit - time.monotonic()))
    for one in connections:
        one.kill()


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
