"""What every connection offers."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

OnOutput = Callable[[str, str], None]
"""Called with ("stdout" or "stderr", text) as output arrives, in the thread that runs the command."""

OUTPUT_LIMIT = 16 << 20
"""Bytes that one command may print, and have kept; a capture of a large host has a few, and 12 MiB at most."""


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
