"""
One HTTP exchange with deadlines for connect, silence and the whole, and a limit on what is read.

httpx has no deadline for a whole request: a server that sends a byte now and then would keep it for ever.
Here a timer shuts the socket down, whether headers or body are being read.
"""

from __future__ import annotations

import codecs
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from pytest_gpuinfra.endpoint.failures import BrokenAnswer
from pytest_gpuinfra.endpoint.limits import Limits
from pytest_gpuinfra.endpoint.wire import explain_error


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
    """Shuts the socket of one request down when its time is over."""

    def __init__(self, total_s: float) -> None:
        self.expired = False
        self.started = time.monotonic()
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(total_s, self._cut)
        self._timer.daemon = True

    def trace(self, name: str, info: dict[str, Any]) -> None:
        """Learn the socket: httpx's documented "trace" extension."""
        if name in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            found = info["return_value"].get_extra_info("socket")
            self._socket = found if isinstance(found, socket.socket) else self._socket

    def _cut(self) -> None:
        self.expired = True
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # closed already: the answer was complete

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def exchange(
    client: httpx.Client, method: str, path: str, *, content: bytes | None = None, limits: Limits
) -> HttpAnswer:
    """
    Send one request and read its whole answer.

    Raises:
        NoAnswer: Refused, closed, unreachable, TLS, or a deadline passed.
        BrokenAnswer: Not HTTP, broken off before its end, or longer than limits.max_bytes.
    """
    started = time.monotonic()
    with opened(client, method, path, content=content, limits=limits) as response:
        text = "".join(text_pieces(response, limits))
        headers = {name.lower(): limits.masked(value) for name, value in response.headers.items()}
        took_s = time.monotonic() - started
        return HttpAnswer(method, path, response.status_code, headers, limits.masked(text), took_s)


def text_pieces(response: httpx.Response, limits: Limits) -> Iterator[str]:
    """
    Give the body as it arrives, decoded as UTF-8.

    Raises:
        BrokenAnswer: The body is longer than limits.max_bytes.
    """
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    size = 0
    for piece in response.iter_bytes():
        size += len(piece)
        if size > limits.max_bytes:
            raise BrokenAnswer(
                "too-large",
                f"the answer is longer than {limits.max_bytes} bytes, and reading was stopped",
                remedy="see what answers on this address: an inference server's answer is a few kilobytes",
                status=response.status_code,
                text=limits.masked(decode(piece[:400])),
            )
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
    deadline = _Deadline(t.total_s)
    timeout = httpx.Timeout(t.read_s, connect=t.connect_s, pool=t.connect_s)
    headers = {"content-type": "application/json"} if content is not None else None
    request = client.build_request(
        method, path, content=content, headers=headers, timeout=timeout, extensions={"trace": deadline.trace}
    )
    where = f"{method} {path}"
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
