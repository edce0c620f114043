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
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_gpuinfra.connection.base import Connection, Feed
from pytest_gpuinfra.errors import GpuInfraError, UnreachableError

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
        self._rest = ""
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
                _source(), self._plan, timeout_s=_LIFETIME_S, on_output=self._heard, feed=self._feed, site=False
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
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            message = json.loads(line)
            identity = message["id"]
            with self._lock:
                end = self._near.get(identity)
                waiting = self._opened.get(identity)
                if "error" in message or message.get("end"):
                    self._near.pop(identity, None)
                if "error" in message and end is None:
                    self._errors[identity] = message["error"]
            if end is not None:
                with contextlib.suppress(OSError):
                    if "data" in message:
                        end.sendall(base64.b64decode(message["data"]))
                    elif message.get("end"):
                        end.shutdown(socket.SHUT_WR)
                    elif "error" in message:
                        _shut(end)
            if waiting is not None and ("error" in message or message.get("opened")):
                waiting.set()


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@cache
def _source() -> str:
    return (Path(__file__).parent.parent / "target" / "tunnel.py").read_text(encoding="utf-8")
