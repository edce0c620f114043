"""
Transcripts: every exchange with an endpoint, written down, and a server made of them.

A transcript is a list, in the order in which the exchanges ended, of
    {"method": str, "path": str, "request": str, "status": int, "headers": {name: value}, "pieces": [str],
     "took_s": float}
or, where there was no whole answer, with "failed": name of httpx's exception and "reason" beside what had come by then.
Bytes that are no UTF-8 stand as backslash escapes. The API key is masked; it travels in a header that is not kept.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

MAX_PIECE_BYTES = 1024 * 1024
MAX_BYTES = 8 * MAX_PIECE_BYTES
"""Of all bodies together; of what comes afterwards the beginnings are kept."""
_BEGINNING_BYTES = 4096
_KEPT_HEADERS = ("content-type", "content-encoding", "server", "location", "retry-after")
_FAILURES: dict[str, type[httpx.RequestError]] = {
    error.__name__: error
    for error in (
        httpx.ConnectError,
        httpx.ConnectTimeout,
        httpx.ReadError,
        httpx.ReadTimeout,
        httpx.WriteError,
        httpx.WriteTimeout,
        httpx.PoolTimeout,
        httpx.CloseError,
        httpx.RemoteProtocolError,
        httpx.LocalProtocolError,
        httpx.UnsupportedProtocol,
        httpx.DecodingError,
    )
}


class RecordingTransport(httpx.BaseTransport):
    """
    Passes everything on and writes it down.

    Args:
        inner: Transport that reaches the server.
        mask: Takes secrets out of a text.

    Attributes:
        exchanges: The transcript so far.
    """

    def __init__(self, inner: httpx.BaseTransport, mask: Callable[[str], str] = str) -> None:
        self._inner = inner
        self._mask = mask
        self._lock = threading.Lock()
        self._paused = 0
        self._kept = 0
        self.exchanges: list[dict[str, Any]] = []

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Write nothing down of what begins within the block: a load that nobody judges answer by answer."""
        with self._lock:
            self._paused += 1
        try:
            yield
        finally:
            with self._lock:
                self._paused -= 1

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; the answer is written down when it has been read, or has broken off."""
        if self._paused:
            return self._inner.handle_request(request)
        entry: dict[str, Any] = {
            "method": request.method,
            "path": request.url.raw_path.decode("ascii"),
            "request": self._mask(request.read().decode("utf-8", "backslashreplace")),
        }
        started = time.monotonic()
        try:
            response = self._inner.handle_request(request)
        except httpx.RequestError as error:
            self.keep(entry, started, error)
            raise
        entry |= {
            "status": response.status_code,
            "headers": {name: self._mask(response.headers[name]) for name in _KEPT_HEADERS if name in response.headers},
            "pieces": [],
        }
        response.stream = _Noted(self, entry, started, response.stream)
        return response

    def room(self, size: int) -> int:
        """Give how many bytes of a body may be kept, of which so many have come."""
        return MAX_PIECE_BYTES if self._kept + size <= MAX_BYTES else _BEGINNING_BYTES

    def keep(self, entry: dict[str, Any], started: float, error: Exception | None = None) -> None:
        """Write one exchange down."""
        entry["took_s"] = round(time.monotonic() - started, 4)
        if error is not None:
            entry |= {"failed": type(error).__name__, "reason": self._mask(str(error))[:400]}
        if "pieces" in entry:
            entry["pieces"] = [self._mask(b"".join(entry["pieces"]).decode("utf-8", "backslashreplace"))]
        with self._lock:
            self._kept += len("".join(entry.get("pieces", ())))
            self.exchanges.append(entry)

    def close(self) -> None:
        """Close the transport below."""
        self._inner.close()


class _Noted(httpx.SyncByteStream):
    """A body that is written down while it is read."""

    def __init__(self, owner: RecordingTransport, entry: dict[str, Any], started: float, inner: Any) -> None:
        self._owner, self._entry, self._started, self._inner = owner, entry, started, inner
        self._open = True

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        try:
            for piece in self._inner:
                size += len(piece)
                if size <= self._owner.room(size):
                    self._entry["pieces"].append(piece)
                yield piece
        except httpx.RequestError as error:
            self._finish(error)
            raise
        self._finish(None)

    def close(self) -> None:
        """Close the body; one that was not read to its end was given up by the reader."""
        self._inner.close()
        self._finish(httpx.ReadError("given up by the reader"))

    def _finish(self, error: Exception | None) -> None:
        if self._open:
            self._open = False
            self._owner.keep(self._entry, self._started, error)


class ReplayTransport(httpx.BaseTransport):
    """
    A server made of a transcript: the same requests get the same answers, in the same order.

    A request that was repeated more often than then gets its last answer again;
    one that was never sent then is refused.
    """

    def __init__(self, exchanges: Sequence[Mapping[str, Any]]) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str, str], deque[Mapping[str, Any]]] = {}
        for entry in exchanges:
            key = (entry["method"], entry["path"], entry["request"])
            self._waiting.setdefault(key, deque()).append(entry)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Give the answer that the same request had."""
        key = (
            request.method,
            request.url.raw_path.decode("ascii"),
            request.read().decode("utf-8", "backslashreplace"),
        )
        with self._lock:
            waiting = self._waiting.get(key)
            if not waiting:
                raise httpx.ConnectError(f"the recording holds no {key[0]} {key[1]} of this kind", request=request)
            entry = waiting.popleft() if len(waiting) > 1 else waiting[0]
        failed = _FAILURES.get(entry.get("failed", ""))
        if failed is not None and "status" not in entry:
            raise failed(entry["reason"], request=request)
        body = "".join(entry["pieces"]).encode()
        stream = _Broken(body, failed(entry["reason"], request=request)) if failed else httpx.ByteStream(body)
        return httpx.Response(entry["status"], headers=entry["headers"], stream=stream, request=request)


class _Broken(httpx.SyncByteStream):
    """A body that breaks off where the recorded one did."""

    def __init__(self, body: bytes, error: httpx.RequestError) -> None:
        self._body, self._error = body, error

    def __iter__(self) -> Iterator[bytes]:
        if self._body:
            yield self._body
        raise self._error
