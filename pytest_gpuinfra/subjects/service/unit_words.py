"""
systemd's way of splitting a line into words, and words into assignments.

Source: systemd.syntax(7) and systemd.exec(5), Environment= (257): quotes may begin anywhere in a word, a backslash
escapes as in C, a word that is no assignment of a variable is dropped; systemd's src/basic/extract-word.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_gpuinfra.errors import ParseError

_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}
_NUMBERED = re.compile(r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def split_words(text: str, source: str) -> tuple[str, ...]:
    """
    Split a value of a unit as systemd does.

    Raises:
        ParseError: A quote is not closed, or a backslash ends the text.
    """
    words: list[str] = []
    word: str | None = None
    quote, place = "", 0
    while place < len(text):
        letter = text[place]
        place += 1
        if quote and letter == quote:
            quote = ""
        elif not quote and letter in "'\"":
            quote, word = letter, word or ""
        elif letter == "\\" and place < len(text):
            letter, place = _escaped(text, place)
            word = (word or "") + letter
        elif letter == "$" and word is None and text[place : place + 1] == "'":
            continue
        elif not quote and letter.isspace():
            words += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + letter
    if quote:
        raise ParseError(source, 0, text, "a quote is not closed")
    return (*words, *([] if word is None else [word]))


def split_assignments(words: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """
    Sort words into variables and what systemd drops.

    Returns:
        Values by name, where the last assignment of a name stays; and the words that are no assignment, in order.
    """
    values: dict[str, str] = {}
    dropped: list[str] = []
    for word in words:
        name, sign, value = word.partition("=")
        if sign and _VARIABLE.fullmatch(name):
            values[name] = value
        else:
            dropped.append(word)
    return values, tuple(dropped)


def _escaped(text: str, place: int) -> tuple[str, int]:
    numbered = _NUMBERED.match(text, place)
    if numbered:
        digits = numbered[0]
        code = int(digits[1:], 16) if digits[0] in "xuU" else int(digits, 8)
        return (chr(code) if code <= 0x10FFFF else ""), numbered.end()
    return _ESCAPES.get(text[place], text[place]), place + 1
