"""JSON of a server: read within bounds, so that whatever is made of it can be shown, compared and written down."""

from __future__ import annotations

import json
from typing import NoReturn

MAX_CHARACTERS = 2 << 20
MAX_DEPTH = 64
"""Nested levels; the deepest answer of any engine has eight."""

_MAX_DIGITS = 18


def read_json(text: str) -> object:
    """
    Read one document.

    Returns:
        Its value; integers have 18 digits at most, other numbers are finite, and all text can be encoded as UTF-8.

    Raises:
        ValueError: It is none, or one beyond these bounds; the text says what is wrong.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{len(text)} characters, of which {MAX_CHARACTERS} are read")
    try:
        value = json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    _check(value)
    return value


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        _refuse(digits[:40])
    return value


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON's")


def _check(value: object) -> None:
    """Walk over all of a value, without recursion; raises ValueError for depth, and for text that is none."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for one in level:
            if isinstance(one, str):
                _check_text(one)
            elif isinstance(one, dict):
                for key in one:
                    _check_text(key)
                below += one.values()
            elif isinstance(one, list):
                below += one
        if not below:
            return
        level = below
    raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair stands in a text") from None
