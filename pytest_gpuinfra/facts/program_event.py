"""
One event of a program that was sent to the target: a JSON object whose fields have the types that are asked for.

Source: target/supervisor.py, schema 1, one JSON object a line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from pytest_gpuinfra.errors import ParseError

Program = Literal["cuda", "torch"]
_T = TypeVar("_T")


class ProgramEvent:
    """One JSON object, whose fields have the types that are asked for."""

    def __init__(self, source: str, number: int, line: str, fields: dict[str, Any]) -> None:
        self._where = (source, number, line)
        self._fields = fields

    def unknown(self, what: str) -> ParseError:
        return ParseError(*self._where, what)

    def optional(self, name: str, kind: type[_T]) -> _T | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.unknown(f"{name} is {value!r}")
        return value

    def get(self, name: str, kind: type[_T]) -> _T:
        value = self.optional(name, kind)
        if value is None:
            raise self.unknown(f"no {name}")
        return value

    def text(self, name: str) -> str:
        return self.get(name, str)

    def integer(self, name: str) -> int:
        return self.get(name, int)

    def number(self, name: str) -> float:
        return self.get(name, float)

    def boolean(self, name: str) -> bool:
        return self.get(name, bool)

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.get(name, list)
        if not all(isinstance(value, str) for value in values):
            raise self.unknown(f"{name} is {values!r}")
        return tuple(values)

    def mapping(self, name: str) -> dict[str, Any]:
        return self.get(name, dict)

    def part(self, name: str) -> ProgramEvent | None:
        value = self.optional(name, dict)
        return None if value is None else ProgramEvent(*self._where, value)

    def parts(self, name: str) -> tuple[ProgramEvent, ...]:
        values = self.get(name, list)
        if not all(isinstance(value, dict) for value in values):
            raise self.unknown(f"{name} is {values!r}")
        return tuple(ProgramEvent(*self._where, value) for value in values)

    def one_of(self, name: str, words: Sequence[str]) -> str:
        value = self.text(name)
        if value not in words:
            raise self.unknown(f"{name} is {value!r}")
        return value


def load_event(source: str, number: int, line: str) -> ProgramEvent:
    """
    Read one line.

    Args:
        source: For messages.
        number: Number of the line, from 1.
        line: Its text.

    Raises:
        ParseError: It is no JSON object.
    """
    try:
        fields = json.loads(line)
    except ValueError:
        raise ParseError(source, number, line, "no JSON") from None
    if not isinstance(fields, dict):
        raise ParseError(source, number, line, "no JSON object")
    return ProgramEvent(source, number, line, fields)
