"""
Two ways in which a request has no good answer.

    EndpointError
    +- NoAnswer         nothing that can be judged came back: ends in ERROR
    +- BrokenAnswer     the server answered, and the answer is wrong in itself: ends in FAILED
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar

from pytest_gpuinfra.errors import EndpointError

FailureT = TypeVar("FailureT", bound=EndpointError)

NoAnswerKind: TypeAlias = Literal[
    "refused", "closed", "unreachable", "tls", "deadline", "unauthorized", "throttled", "no-model"
]
"""
refused: nothing listens.
closed: the connection was taken and closed without a word (what a tunnel does for a refused port).
unreachable: no route, no such name, connect deadline, or the connection broke before a status line.
tls: no agreement on TLS, or a certificate that is not trusted.
deadline: silence, or no end, within the deadline.
unauthorized: 401 or 403, so the key is missing or wrong.
throttled: 429, so others keep the server busy.
no-model: the model list does not say which model to ask.
"""

BrokenAnswerKind: TypeAlias = Literal[
    "not-http",
    "truncated",
    "headers",
    "encoding",
    "too-large",
    "status",
    "redirect",
    "content-type",
    "not-json",
    "shape",
    "stream-error",
]
"""
not-http: another protocol speaks on this port.
truncated: the answer broke off before its end.
headers: more of them, or longer ones, than any server sends.
encoding: compressed, which was not asked for and may unpack into anything.
too-large: more bytes than such a request can have for an answer.
status: an error status for a valid request.
redirect: the server sends the client elsewhere.
content-type: a page or a file instead of the API's type.
not-json: the body is no JSON document.
shape: JSON, and not the API's.
stream-error: an error inside a stream that had begun with status 200.
"""


class NoAnswer(EndpointError):
    """
    A request that brought nothing to judge.

    Attributes:
        kind: Which of the documented kinds.
        status: HTTP status, where there was one (401, 403, 429).
    """

    def __init__(self, kind: NoAnswerKind, reason: str, *, remedy: str = "", status: int | None = None) -> None:
        super().__init__(reason, remedy=remedy)
        self.kind: NoAnswerKind = kind
        self.status = status


class BrokenAnswer(EndpointError):
    """
    An answer that is wrong whatever was asked: an observation, not a lack of one.

    Attributes:
        kind: Which of the documented kinds.
        status: HTTP status; None if the port speaks no HTTP.
        text: What had come by then, at most 4,000 characters.
    """

    def __init__(
        self,
        kind: BrokenAnswerKind,
        reason: str,
        *,
        remedy: str = "",
        status: int | None = None,
        text: str = "",
    ) -> None:
        super().__init__(reason, remedy=remedy)
        self.kind: BrokenAnswerKind = kind
        self.status = status
        self.text = text[:4000]


def bare(failure: FailureT) -> FailureT:
    """Give a failure that is to be kept without what it was made of: frames that hold whole answers."""
    failure.__context__ = failure.__cause__ = None
    return failure.with_traceback(None)
