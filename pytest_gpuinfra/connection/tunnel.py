"""A tunnel to a port as seen from the target or its container, through the one connection that there is."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import socket
import tempfile
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_gpuinfra.connection.base import Connection, Feed
from pytest_gpuinfra.errors import GpuInfraError, ProbeError, UnreachableError
from pytest_gpuinfra.wire import Lines, WireError, load_object

_LIFETIME_S = 86400.0


class Tunnel:
    """
    Listens on a Unix socket of this machine and joins every connection to HOST:PORT as the target sees it.

    All of them share one session of the connection, so they count as one of sshd's MaxSessions.
    No forwarding has to be allowed by sshd.

    Args:
        connection: Connection to the target, or into its container.
        host: Host name or address, resolved there.
        port: TCP port there.

    Attributes:
        path: The Unix socket; "" until it is open.
    """

    def __init__(self, connection: Connection, host: str, port: int) -> None:
        self._connection = connection
        self._plan = {"host": host, "port": port}
        self._feed = Feed()
        self._ids = itertools.count(1)
        self._near: dict[int, socket.socket] = {}
        self._opened: dict[int, threading.Event] = {}
        self._errors: dict[int, str] = {}
        self._lock = threading.Lock()
        self._coming = Lines()
        self._failure: GpuInfraError | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._listener: socket.socket | None = None
        self._session = threading.Thread(target=self._run, daemon=True, name="gpuinfra-tunnel")
        self.path = ""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Start listening; the target is reached with the first connection."""
        base = tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp"
        self._directory = tempfile.TemporaryDirectory(prefix="gpuinfra-tunnel-", dir=base)
        self.path = os.path.join(self._directory.name, "s")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(128)
        self._session.start()
        threading.Thread(target=self._accept, daemon=True, name="gpuinfra-tunnel-accept").start()

    def close(self) -> None:
        """End the tunnel and every connection through it."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            near, self._near = dict(self._near), {}
        for end in near.values():
            _shut(end)
        self._say(0, quit=True)
        self._session.join(5.0)
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def probe(self, timeout_s: float) -> None:
        """
        Make one connection there and close it.

        Raises:
            OSError: It was refused, or not made in time.
            UnreachableError: There is no session with the target.
        """
        identity = next(self._ids)
        waiting = self._opened[identity] = threading.Event()
        self._say(identity, open=True)
        made = waiting.wait(timeout_s)
        self._say(identity, close=True)
        self._opened.pop(identity, None)
        if self._failure is not None:
            raise self._failure
        error = self._errors.pop(identity, None)
        if error:
            raise ConnectionRefusedError(error) if "ECONNREFUSED" in error else OSError(error)
        if not made:
            raise TimeoutError(f"no connection there within {timeout_s:g} s")

    def _run(self) -> None:
        try:
            self._connection.run_program(
                _source(),
                self._plan,
                timeout_s=_LIFETIME_S,
                on_output=self._heard,
                feed=self._feed,
                site=False,
                keep_output=False,
            )
        except GpuInfraError as error:
            self._failure = error
        else:
            self._failure = UnreachableError(self._connection.name, "the tunnel's far end has ended")
        for waiting in list(self._opened.values()):
            waiting.set()
        with self._lock:
            near, self._near = dict(self._near), {}
        for end in near.values():
            _shut(end)

    def _accept(self) -> None:
        listener = self._listener
        while listener is not None:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            identity = next(self._ids)
            with self._lock:
                self._near[identity] = end
                self._opened[identity] = threading.Event()
            self._say(identity, open=True)
            threading.Thread(target=self._pass_on, args=(identity, end), daemon=True).start()

    def _pass_on(self, identity: int, end: socket.socket) -> None:
        """Pass on what comes from the near side, once the far side is there to take it."""
        self._opened[identity].wait()
        with contextlib.suppress(OSError):
            while data := end.recv(32768):
                self._say(identity, data=base64.b64encode(data).decode("ascii"))
        self._say(identity, end=True)
        self._opened.pop(identity, None)

    def _say(self, identity: int, **words: object) -> None:
        self._feed.send(json.dumps({"id": identity, **words}).encode() + b"\n")

    def _heard(self, name: str, text: str) -> None:
        if name != "stdout":
            return
        try:
            messages = [_read_message(line) for line in self._coming.feed(text)]
        except ValueError as error:
            raise ProbeError(f"{self._connection.name}: the tunnel's far end says: {error}") from None
        for message in messages:
            self._take(message)

    def _take(self, message: _Message) -> None:
        with self._lock:
            end = self._near.get(message.identity)
            waiting = self._opened.get(message.identity)
            if message.kind in ("error", "end"):
                self._near.pop(message.identity, None)
            if message.kind == "error" and end is None and waiting is not None:
                self._errors[message.identity] = message.error
        if end is not None:
            with contextlib.suppress(OSError):
                if message.kind == "data":
                    end.sendall(message.data)
                elif message.kind == "end":
                    end.shutdown(socket.SHUT_WR)
                elif message.kind == "error":
                    _shut(end)
        if waiting is not None and message.kind in ("error", "opened"):
            waiting.set()


@dataclass(frozen=True, slots=True)
class _Message:
    """
    What the far end says (target/tunnel.py).

    Attributes:
        identity: Of the connection.
        kind: "opened", "data", "end" or "error".
        data: Bytes, of "data".
        error: Why, of "error".
    """

    identity: int
    kind: str
    data: bytes = b""
    error: str = ""


def _read_message(line: str) -> _Message:
    """Read one message; ValueError if it is none."""
    fields = load_object(line)
    identity = fields.pop("id", None)
    match (identity, *fields.items()):
        case (int(), ("opened" | "end" as kind, True)):
            return _Message(identity, kind)
        case (int(), ("data", str() as text)):
            return _Message(identity, "data", data=base64.b64decode(text, validate=True))
        case (int(), ("error", str() as text)):
            return _Message(identity, "error", error=text[:400])
    raise WireError(f"it is no message: {line[:100]!r}")


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@cache
def _source() -> str:
    return (Path(__file__).parent.parent / "target" / "tunnel.py").read_text(encoding="utf-8")
