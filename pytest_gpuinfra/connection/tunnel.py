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
from types import TracebackType
from typing import Self

from pytest_gpuinfra.connection.protocol import Connection, Feed
from pytest_gpuinfra.errors import GpuInfraError, ProbeError, UnreachableError
from pytest_gpuinfra.on_target.bundle import packed
from pytest_gpuinfra.wire import Lines, WireError, load_object

_LIFETIME_S = 86400.0
_JOIN_S = 1.0


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
        self._ends: dict[int, _End] = {}
        self._lock = threading.Lock()
        self._coming = Lines()
        self._failure: GpuInfraError | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._listener: socket.socket | None = None
        self._threads = [
            threading.Thread(target=self._run, daemon=True, name="gpuinfra-tunnel"),
            threading.Thread(target=self._accept, daemon=True, name="gpuinfra-tunnel-accept"),
        ]
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
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the tunnel and every connection through it. May be called twice."""
        if self._listener is None:
            return
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._say(0, quit=True)
        self._cut_all()
        for thread in self._threads:
            thread.join(_JOIN_S)
        self._listener.close()
        self._listener = None
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
        identity, end = self._new_end(None)
        self._say(identity, open=True)
        made = self._failure is not None or end.settled.wait(timeout_s)
        self._say(identity, close=True)
        with self._lock:
            self._ends.pop(identity, None)
        if self._failure is not None:
            raise self._failure
        if end.error:
            raise ConnectionRefusedError(end.error) if "ECONNREFUSED" in end.error else OSError(end.error)
        if not made:
            raise TimeoutError(f"no connection there within {timeout_s:g} s")

    def _new_end(self, near: socket.socket | None) -> tuple[int, _End]:
        end = _End(near)
        with self._lock:
            identity = next(self._ids)
            self._ends[identity] = end
        return identity, end

    def _cut_all(self) -> None:
        """Have every connection end; the threads that serve them close what they hold."""
        with self._lock:
            ends = list(self._ends.values())
        for end in ends:
            end.cut()

    def _run(self) -> None:
        try:
            self._connection.run_program(
                packed("tunnel"),
                self._plan,
                timeout_s=_LIFETIME_S,
                on_output=self._heard,
                feed=self._feed,
                site=False,
                keep_output=False,
            )
        except GpuInfraError as error:
            self._failure = error
        finally:
            self._failure = self._failure or UnreachableError(self._connection.name, "the tunnel's far end has ended")
            self._feed.close()
            self._cut_all()

    def _accept(self) -> None:
        listener, serving = self._listener, list[threading.Thread]()
        while listener is not None:
            try:
                near, _ = listener.accept()
            except OSError:
                break
            identity, end = self._new_end(near)
            if self._failure is not None:
                end.cut()
            serving = [thread for thread in serving if thread.is_alive()]
            serving.append(threading.Thread(target=self._pass_on, args=(identity, end, near), daemon=True))
            serving[-1].start()
        self._cut_all()
        for thread in serving:
            thread.join(_JOIN_S)

    def _pass_on(self, identity: int, end: _End, near: socket.socket) -> None:
        """Pass on what comes from the near side, once the far side is there to take it, and close both at its end."""
        self._say(identity, open=True)
        end.settled.wait()
        with contextlib.suppress(OSError):
            while data := near.recv(32768):
                self._say(identity, data=base64.b64encode(data).decode("ascii"))
        self._say(identity, close=True)  # a client of HTTP does not close one direction alone
        with self._lock:
            self._ends.pop(identity, None)
        end.close()

    def _say(self, identity: int, **words: object) -> None:
        self._feed.send(json.dumps({"id": identity, **words}).encode() + b"\n")

    def _heard(self, name: str, text: str) -> None:
        if name != "stdout":
            return
        try:
            messages = [_read_message(line) for line in self._coming.feed(text)]
        except ValueError as error:
            raise ProbeError(f"{self._connection.name}: the tunnel's far end sent no message: {error}") from None
        for message in messages:
            with self._lock:
                end = self._ends.get(message.identity)
            if end is not None:
                end.take(message)


@dataclass(frozen=True, slots=True)
class _Message:
    """
    What the far end says (on_target/session/tunnel.py).

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
    raise WireError(f"is no message: {line[:100]!r}")


class _End:
    """The near end of one connection; without a socket, a mere attempt to make one there."""

    def __init__(self, near: socket.socket | None) -> None:
        self.settled = threading.Event()
        self.error = ""
        self._near = near
        self._lock = threading.Lock()

    def take(self, message: _Message) -> None:
        """Act on what the far end sent."""
        if message.kind == "error":
            self.error = message.error
            self.cut()
        elif message.kind == "opened":
            self.settled.set()
        with self._lock, contextlib.suppress(OSError):
            if self._near is not None and message.kind == "data":
                self._near.sendall(message.data)
            elif self._near is not None and message.kind == "end":
                self._near.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Have the thread that reads the near side come to its end; it closes the socket."""
        near = self._near
        if near is not None:
            with contextlib.suppress(OSError):
                near.shutdown(socket.SHUT_RDWR)
        self.settled.set()

    def close(self) -> None:
        """Close the socket."""
        with self._lock:
            near, self._near = self._near, None
        if near is not None:
            near.close()
