"""What an error on the wire means, in the words of the two failures."""

from __future__ import annotations

import errno
import ssl

import httpx

from pytest_gpuinfra.endpoint.failures import BrokenAnswer, NoAnswer
from pytest_gpuinfra.endpoint.limits import Limits, Timeouts
from pytest_gpuinfra.endpoint.transport import AnswerRefused


def explain_error(
    where: str, error: httpx.HTTPError, limits: Limits, *, status: int | None, expired: bool
) -> NoAnswer | BrokenAnswer:
    """
    Say what an error of httpx means.

    Args:
        where: Method and path.
        error: The error.
        limits: Deadlines that held.
        status: HTTP status, if the status line had come.
        expired: Whether the whole request's time was over.
    """
    t = limits.timeouts
    if isinstance(error, AnswerRefused):
        return BrokenAnswer(
            error.kind,
            f"{where}: {limits.masked(str(error))}",
            remedy="see what answers on this address: an inference server's answer is a few kilobytes of plain JSON",
            status=error.status,
        )
    said = limits.masked(str(error))[:400] or type(error).__name__
    if limits.under_way.stopped.is_set():
        return given_up(where)
    if expired or isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        limit = f"within {t.total_s:g} s" if expired else f"for {t.read_s:g} s"
        what = "no end of the answer" if status is not None else "no answer"
        return NoAnswer(
            "deadline",
            f"{where}: {what} {limit}",
            remedy="see whether the server is overloaded or hangs; allow more time if it is known to be slow",
            status=status,
        )
    if status is not None:
        return BrokenAnswer(
            "truncated",
            f"{where}: status {status}, then the answer broke off: {said}",
            remedy="read the server's log at this moment: it died, was restarted, or a proxy cut it",
            status=status,
        )
    if isinstance(error, httpx.RemoteProtocolError) and "disconnected" not in said:
        return BrokenAnswer("not-http", f"{where}: the port answers, but not in HTTP: {said}")
    return _not_reached(where, error, said, t)


def given_up(where: str) -> NoAnswer:
    """Say that a request was cut, or not begun, since the endpoint was closed."""
    return NoAnswer("deadline", f"{where}: given up, since the run ends")


def _not_reached(where: str, error: httpx.HTTPError, said: str, t: Timeouts) -> NoAnswer:
    number = _errno(error)
    if number == errno.ECONNREFUSED:
        return NoAnswer("refused", f"{where}: connection refused", remedy="is the service started, and on this port?")
    if isinstance(error, httpx.RemoteProtocolError) or number in (errno.ECONNRESET, errno.EPIPE):
        return NoAnswer(
            "closed",
            f"{where}: the connection was closed before any answer ({said})",
            remedy="through a tunnel this means that nothing listens behind it; else read the server's log",
        )
    if isinstance(error, httpx.ConnectTimeout):
        return NoAnswer(
            "unreachable",
            f"{where}: no connection within {t.connect_s:g} s",
            remedy="check address and firewall",
        )
    if _cause(error, ssl.SSLError) is not None:
        return NoAnswer("tls", f"{where}: {said}", remedy="check http against https, and whose certificate it is")
    return NoAnswer("unreachable", f"{where}: {said}", remedy="check the address")


def _cause(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    found: BaseException | None = error
    while found is not None and not isinstance(found, kind):
        found = found.__cause__ or found.__context__
    return found


def _errno(error: BaseException) -> int | None:
    found = _cause(error, OSError)
    return found.errno if isinstance(found, OSError) else None
