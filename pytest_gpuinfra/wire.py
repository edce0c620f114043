"""
JSON of others, read strictly: one reader for what comes off the wire, out of a file, or from a server.

Whoever wrote it may be hostile. What this reader lets through can be encoded as UTF-8, printed, written into a file
and handed to another process; whether it has the shape that its reader wants is for that one to say.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

DEPTH = 32
"""Brackets within brackets, at most; events have six."""

LINE_MAX = 1 << 20
"""Characters of one line of a program's output."""

_BRACKETS, _COMMAS = 16 << 20, 64 << 20
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_NO_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^\[\]{}"]++', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_INTEGER = re.compile("[0-9]{1,18}")
TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[][{}]', re.DOTALL)
"""Texts and brackets of a JSON document."""


class WireError(ValueError):
    """
    Something is not JSON as it may come from others, or is too long.

    Attributes:
        reason: What is wrong, without its subject: "is nested deeper than 32 levels".
        place: Path of the value within the document: "hosts.n1[0]"; "" where it is the whole.
    """

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"{place or 'it'} {reason}")
        self.reason = reason
        self.place = place


class _Odd:
    """Stands in a value for a part that is refused."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def load(text: str, *, depth: int | None = DEPTH, most: int | None = None, unique: bool = True) -> Any:
    """
    Read one JSON value.

    Args:
        text: It.
        depth: Brackets within brackets, at most; None where the caller's check of the shape bounds them.
        most: Characters, at most; None where they are bounded already.
        unique: Whether a key that stands twice in an object is refused; else the last one counts.

    Raises:
        WireError: It is no JSON, is longer or nested deeper, or holds a number or text that can't be passed on: NaN,
            one beyond 64 bits or the range of a float, half a surrogate pair.
    """
    if most is not None and len(text) > most:
        raise WireError(f"is too large: {len(text)} characters, of which {most} are read")
    brackets = text.count("[") + text.count("{")
    if brackets > _BRACKETS or text.count(",") > _COMMAS:
        raise WireError("is too large: it holds too many values")
    if depth is not None and brackets > depth:
        _check_depth(text, depth)
    value, odd = _decode(text, depth, unique)
    if odd or not (text.isascii() or encodable(text)) or _HALF.search(text):
        refuse_odd(value)
    return value


def load_object(text: str, *, depth: int | None = DEPTH) -> dict[str, Any]:
    """
    Read one JSON object.

    Raises:
        WireError: It is none, or as `load`.
    """
    value = load(text, depth=depth)
    if not isinstance(value, dict):
        raise WireError("is no JSON object")
    return value


def _decode(text: str, depth: int | None, unique: bool) -> tuple[Any, list[_Odd]]:
    """Decode a text; gives its value, in which parts are `_Odd`, and these."""
    odd: list[_Odd] = []

    def refused(reason: str) -> Any:
        odd.append(_Odd(reason))
        return odd[-1]

    def integer(digits: str) -> Any:
        if len(digits) <= 20 and -(1 << 63) <= int(digits) < 1 << 64:
            return int(digits)
        return refused("is no number of 64 bits")

    def real(digits: str) -> Any:
        number = float(digits)
        return number if math.isfinite(number) else refused("is no finite number of 64 bits")

    def constant(_: str) -> Any:
        return refused("is no finite number of 64 bits")

    def pairs(members: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(members)
        if len(found) != len(members):
            seen: set[str] = set()
            for name, _ in members:
                if name in seen:
                    found[name] = refused("stands twice")
                seen.add(name)
        return found

    hook = pairs if unique else None
    decoder = json.JSONDecoder(parse_int=integer, parse_float=real, parse_constant=constant, object_pairs_hook=hook)
    try:
        return decoder.decode(text), odd
    except RecursionError:
        limit = "any reader takes" if depth is None else f"{depth} levels"
        raise WireError(f"is nested deeper than {limit}") from None
    except json.JSONDecodeError as error:
        raise WireError(f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None


def _check_depth(text: str, limit: int) -> None:
    steps = map(_STEP.get, _NO_BRACKETS.sub("", text).replace('"', ""))
    if max(accumulate(step for step in steps if step), default=0) > limit:
        raise WireError(f"is nested deeper than {limit} levels ({deep_place(text, limit)})")


def deep_place(text: str, limit: int) -> str:
    """Say in which line of a document the brackets are more than a limit."""
    depth = 0
    for token in TOKEN.finditer(text):
        depth += _STEP.get(token[0], 0)
        if depth > limit:
            return f"line {text.count(chr(10), 0, token.start()) + 1}"
    return "line unknown"


def refuse_odd(data: Any, *, depth: int | None = None, control: bool = False) -> None:
    """
    Refuse plain data that nobody could pass on.

    Args:
        data: What a reader of JSON or TOML gave.
        depth: Levels, at most; None for any.
        control: Whether control characters are refused, too.

    Raises:
        WireError: With the path of what is wrong.
    """
    waiting: list[tuple[Any, tuple[Any, ...], int]] = [([data], (), 0)]
    while waiting:
        value, path, level = waiting.pop()
        if depth is not None and level > depth:
            raise WireError(f"is nested deeper than {depth} levels", _shown_path(path))
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            here = (path, key) if level else ()
            if isinstance(inner, (dict, list)):
                waiting.append((inner, here, level + 1))
            reason = _oddity(inner, control) or (_oddity(key, control) if isinstance(key, str) else "")
            if reason:
                raise WireError(reason, _shown_path(here))


def _oddity(value: Any, control: bool) -> str:
    if isinstance(value, str):
        if control and _CONTROL.search(value):
            return "holds a control character"
        return "" if value.isascii() or encodable(value) else "holds half of a surrogate pair"
    if isinstance(value, float):
        return "" if math.isfinite(value) else "is no finite number of 64 bits"
    if isinstance(value, int):
        return "" if value.bit_length() <= 64 else "is no number of 64 bits"
    return value.reason if isinstance(value, _Odd) else ""


def encodable(text: str) -> bool:
    """Tell whether a text is one: halves of surrogate pairs cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def integer(text: str) -> int | None:
    """Read a number of up to 18 decimal digits, which any reader can hold; None if the text is anything else."""
    return int(text) if _INTEGER.fullmatch(text) else None


def text_lines(text: str) -> list[str]:
    """
    Give the lines of a text as kernel, systemd and drivers write them: a line feed ends one, as does one after a
    carriage return, and nothing else. str.splitlines() takes nine more signs for an end, such as U+2028 in a name that
    others chose, behind which a forged line would stand.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def _shown_path(path: tuple[Any, ...]) -> str:
    """Write a path, `((((), "hosts"), "n1"), 0)`, as "hosts.n1[0]"; the middle of a long one is left out."""
    keys: list[Any] = []
    while path:
        path, key = path
        keys.append(key)
    keys.reverse()
    if len(keys) > 12:
        keys = [*keys[:8], "...", *keys[-2:]]
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key[:80]}" for key in keys)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text.lstrip(".") or "the document"


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
            raise WireError(f"holds a line of more than {self._line_max} characters")
        return lines

    @property
    def rest(self) -> str:
        """What has come of a line whose end has not."""
        return "".join(self._rest)
