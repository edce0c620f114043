"""
What comes off the wire, read strictly: JSON of bounded size and depth, and lines of bounded length.

Whoever sends it may be hostile. What these readers let through can be encoded as UTF-8, printed, written into a file
and handed to another process; whether it has the shape that its reader wants is for that one to say.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

DEPTH = 32
"""Brackets within brackets, at most; events have six."""

LINE_MAX = 1 << 20
"""Characters of one line of a program's output."""

_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_NO_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^\[\]{}"]++', re.DOTALL)


class WireError(ValueError):
    """Something is not JSON as it may come off the wire, or is too long; its text says how."""


def load(text: str, *, depth: int | None = DEPTH) -> Any:
    """
    Read one JSON value.

    Args:
        text: It.
        depth: Brackets within brackets, at most; None where the caller's check of the shape bounds them.

    Raises:
        WireError: It is no JSON, is nested deeper, or holds a number or text that can't be passed on: NaN, one beyond
            64 bits or the range of a float, half a surrogate pair.
    """
    if depth is not None and text.count("[") + text.count("{") > depth:
        _check_depth(text, depth)
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise WireError("it is nested too deep") from None
    except WireError:
        raise
    except ValueError as error:
        raise WireError(f"it is no JSON ({error})") from None
    try:
        if not text.isascii():
            text.encode()
        if _HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise WireError("it holds half a surrogate pair, which is no text") from None
    return value


def load_object(text: str, *, depth: int | None = DEPTH) -> dict[str, Any]:
    """
    Read one JSON object.

    Raises:
        WireError: It is none, or as `load`.
    """
    value = load(text, depth=depth)
    if not isinstance(value, dict):
        raise WireError("it is no JSON object")
    return value


def _check_depth(text: str, limit: int) -> None:
    depth = 0
    for bracket in _NO_BRACKETS.sub("", text):
        depth += bracket in "[{" or -1
        if depth > limit:
            raise WireError(f"it is nested deeper than {limit}")


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -(1 << 63) <= int(digits) < 1 << 64:
        raise WireError(f"a number beyond 64 bits: {digits[:40]}")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise WireError(f"a number beyond the range of a float: {digits[:40]}")
    return value


def _constant(name: str) -> Any:
    raise WireError(f"a number that is none: {name}")


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_constant)


class Lines:
    """
    Text that comes in pieces, given on in lines.

    Args:
        line_max: Characters of a line, at most.
    """

    def __init__(self, line_max: int = LINE_MAX) -> None:
        self._line_max = line_max
        self._rest: list[str] = []
        self._length = 0

    def feed(self, text: str) -> list[str]:
        """
        Take a piece; gives the lines that it ends.

        Raises:
            WireError: A line is longer.
        """
        first, *others = text.split("\n")
        self._rest.append(first)
        self._length += len(first)
        lines = []
        if others:
            lines = ["".join(self._rest), *others[:-1]]
            self._rest, self._length = [others[-1]], len(others[-1])
        if self._length > self._line_max or any(len(line) > self._line_max for line in lines):
            raise WireError(f"a line of more than {self._line_max} characters")
        return lines

    @property
    def rest(self) -> str:
        """What has come of a line whose end has not."""
        return "".join(self._rest)
