"""
One HTTP exchange with deadlines for connect, silence and the whole.

httpx has no deadline for a whole request: a server that sends a byte now and then would keep it for ever.
Here a timer shuts the socket down, whether headers or body are being read.
"""

from __future__ import annotations

import codecs
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx

from pytest_gpuinfra.endpoint.limits import Limits
from pytest_gpuinfra.endpoint.wire import explain_error, given_up


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """
    One complete answer.

    Attributes:
        method: HTTP method of the request.
        path: Path of the request.
        status: HTTP status, whatever it is.
        headers: Response headers, names in lower case.
        text: Body; bytes that are no UTF-8 are replaced by U+FFFD.
        took_s: From before connect to the last byte.
    """

    method: str
    path: str
    status: int
    headers: Mapping[str, str]
    text: str
    took_s: float

    @property
    def content_type(self) -> str | None:
        """Content-Type header, lower case; None if there is none."""
        value = self.headers.get("content-type")
        return value.lower() if value else None

    def __str__(self) -> str:
        shown = self.text if len(self.text) <= 300 else f"{self.text[:300]}... ({len(self.text)} characters)"
        return f"{self.method} {self.path} -> {self.status} {shown!r} in {self.took_s:.3f} s"


class _Deadline:
    """Shuts the socket of one request down when its time is over, or nobody wants its answer any more."""

    def __init__(self, limits: Limits) -> None:
        self.expired = False
        self._under_way = limits.under_way
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(limits.timeouts.total_s, self._cut)
        self._timer.daemon = True

    def trace(self, name: str, info: dict[str, Any]) -> None:
        """Learn the socket: httpx's documented "trace" extension."""
        if name in _CONNECTED:
            found = info["return_value"].get_extra_info("socket")
            self._socket = found if isinstance(found, socket.socket) else self._socket
            if self.expired:
                self._cut()

    def _cut(self) -> None:
        self.expired = True
        if self._socket is not None:
            with suppress(OSError):  # closed already: the answer was complete
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # the reader of a TLS socket needs its state

    def __enter__(self) -> _Deadline:
        self._timer.start()
        self._under_way.begin(self._cut)
        return self

    def __exit__(self, *_: object) -> None:
        self._under_way.end(self._cut)
        self._timer.cancel()


_CONNECTED = (
    "connection.connect_tcp.complete",
    "connection.connect_unix_socket.complete",
    "connection.start_tls.complete",
)


def exchange(
    client: httpx.Client, method: str, path: str, *, content: bytes | None = None, limits: Limits
) -> HttpAnswer:
    """
    Send one request and read its whole answer.

    Raises:
        NoAnswer: Refused, closed, unreachable, TLS, or a deadline passed.
        BrokenAnswer: Not HTTP, broken off before its end, longer than allowed, or encoded.
    """
    started = time.monotonic()
    with opened(client, method, path, content=content, limits=limits) as response:
        text = "".join(text_pieces(response))
        headers = shown_headers(response, limits)
        took_s = time.monotonic() - started
        return HttpAnswer(method, path, response.status_code, headers, limits.masked(text), took_s)


def shown_headers(response: httpx.Response, limits: Limits) -> dict[str, str]:
    """Give the headers, names in lower case, without the secret, each value at most 1,000 characters."""
    return {name.lower(): limits.masked(value)[:1000] for name, value in response.headers.items()}


def text_pieces(response: httpx.Response) -> Iterator[str]:
    """Give the body as it arrives, decoded as UTF-8."""
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    for piece in response.iter_raw():
        yield decode(piece)
    yield decode(b"", final=True)


@contextmanager
def opened(
    client: httpx.Client, method: str, path: str, *, content: bytes | None = None, limits: Limits
) -> Iterator[httpx.Response]:
    """
    Send one request and give the response while its body is still to be read.

    Raises:
        NoAnswer: As for exchange().
        BrokenAnswer: As for exchange(); also raised while the caller reads the body.
    """
    t = limits.timeouts
    response: httpx.Response | None = None
    deadline = _Deadline(limits)
    timeout = httpx.Timeout(t.read_s, connect=t.connect_s, pool=t.connect_s)
    headers = {"content-type": "application/json"} if content is not None else None
    request = client.build_request(
        method, path, content=content, headers=headers, timeout=timeout, extensions={"trace": deadline.trace}
    )
    where = f"{method} {path}"
    if limits.under_way.stopped.is_set():
        raise given_up(where)
    with deadline:
        try:
            response = client.send(request, stream=True)
            yield response
        except httpx.HTTPError as error:
            status = response.status_code if response is not None else None
            raise explain_error(where, error, limits, status=status, expired=deadline.expired) from None
        finally:
            if response is not None:
                response.close()
