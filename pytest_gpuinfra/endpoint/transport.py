"""
How requests travel, and what an answer may be before anything is made of it.

Every request has a connection of its own: an idle one that the server drops would look like its death.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Literal, cast

import httpx

from pytest_gpuinfra.endpoint.address import port_in

MAX_HEADERS = 200
MAX_HEADER_BYTES = 65536

_NEVER_KEPT = (b"set-cookie", b"set-cookie2")


class AnswerRefused(httpx.DecodingError):
    """
    An answer that is not read, or not further.

    Attributes:
        kind: "headers", "encoding" or "too-large", as in endpoint.failures.
        status: Its HTTP status.
    """

    def __init__(self, kind: Literal["headers", "encoding", "too-large"], message: str, status: int) -> None:
        super().__init__(message)
        self.kind: Literal["headers", "encoding", "too-large"] = kind
        self.status = status


def make_transport(
    url: httpx.URL, *, uds: str | None = None, verify: ssl.SSLContext | bool = True
) -> httpx.BaseTransport:
    """
    Make the transport to a server.

    Args:
        url: Where it is; certificates are verified by this host name, also behind a tunnel.
        uds: Unix socket that leads there, in the place of a TCP connection.
        verify: As httpx takes it; True trusts the system's certificates.
    """
    context = ssl.create_default_context() if verify is True and url.scheme == "https" else verify
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.HTTPTransport(verify=context, trust_env=False, limits=limits, uds=uds)


def dial(url: httpx.URL) -> Callable[[float], None]:
    """Give a function that makes and closes one TCP connection within so many seconds, or raises OSError."""

    def connect(timeout_s: float) -> None:
        socket.create_connection((url.host, port_in(url)), timeout_s).close()

    return connect


class BoundedTransport(httpx.BaseTransport):
    """
    Refuses answers with headers without end, in an encoding that was not asked for, or longer than allowed.

    Cookies are dropped: nothing of one answer is sent with another request.

    Args:
        inner: Transport below.
        max_bytes: Longest body, in bytes.
    """

    def __init__(self, inner: httpx.BaseTransport, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; raises AnswerRefused, or httpx's errors."""
        response = self._inner.handle_request(request)
        try:
            _check_headers(response)
        except AnswerRefused:
            response.close()
            raise
        kept = [(name, value) for name, value in response.headers.raw if name.lower() not in _NEVER_KEPT]
        response.headers = httpx.Headers(kept)
        response.stream = _Bounded(response, self._max_bytes)
        return response

    def close(self) -> None:
        """Close the transport below."""
        self._inner.close()


class _Bounded(httpx.SyncByteStream):
    """A body that is read so far and no further."""

    def __init__(self, response: httpx.Response, max_bytes: int) -> None:
        self._inner = cast("httpx.SyncByteStream", response.stream)  # no other kind comes from a transport like these
        self._status, self._max_bytes = response.status_code, max_bytes

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for piece in self._inner:
            size += len(piece)
            if size > self._max_bytes:
                text = f"the answer is longer than {self._max_bytes} bytes, and reading was stopped"
                raise AnswerRefused("too-large", text, self._status)
            yield piece

    def close(self) -> None:
        """Close the body."""
        self._inner.close()


def _check_headers(response: httpx.Response) -> None:
    raw, status = response.headers.raw, response.status_code
    size = sum(len(name) + len(value) for name, value in raw)
    if len(raw) > MAX_HEADERS or size > MAX_HEADER_BYTES:
        raise AnswerRefused("headers", f"the answer has {len(raw)} headers of {size} bytes in all", status)
    encodings = [value for name, value in raw if name.lower() == b"content-encoding"]
    named = b",".join(encodings).decode("ascii", "backslashreplace").strip().lower()
    if named not in ("", "identity"):
        raise AnswerRefused("encoding", f"the answer comes encoded ({named[:80]!r}), which was not asked for", status)
