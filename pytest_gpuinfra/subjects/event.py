"""
One event of a program that was sent to the target: a JSON object whose fields have the types that are asked for.

Source: on_target/gpu/supervisor.py, schema 1, one JSON object a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.wire import WireError, load_object

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
        """Give a count, number or size: none of a program's is below zero."""
        value = self.get(name, int)
        if value < 0:
            raise self.unknown(f"{name} is {value}")
        return value

    def number(self, name: str) -> float:
        return self.get(name, float)

    def positive(self, name: str) -> float:
        value = self.number(name)
        if value <= 0:
            raise self.unknown(f"{name} is {value!r}")
        return value

    def boolean(self, name: str) -> bool:
        return self.get(name, bool)

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.get(name, list)
        if not all(isinstance(value, str) for value in values):
            raise self.unknown(f"{name} is {values!r}")
        return tuple(values)

    def integers(self, name: str) -> tuple[int, ...]:
        values = self.get(name, list)
        if not all(type(value) is int for value in values):
            raise self.unknown(f"{name} is {values!r}")
        return tuple(values)

    def mapping(self, name: str) -> dict[str, Any]:
        return self.get(name, dict)

    def words(self, name: str) -> dict[str, str]:
        values = self.mapping(name)
        if not all(isinstance(value, str) for value in values.values()):
            raise self.unknown(f"{name} is {values!r}")
        return values

    def numbers(self, name: str) -> dict[str, float]:
        values = self.mapping(name)
        if not all(type(value) in (int, float) for value in values.values()):
            raise self.unknown(f"{name} is {values!r}")
        return {key: float(value) for key, value in values.items()}

    def plain(self, name: str) -> dict[str, str | int | float | bool | None]:
        values = self.mapping(name)
        if any(isinstance(value, dict | list) for value in values.values()):
            raise self.unknown(f"{name} is {values!r}")
        return values

    def counts(self, name: str) -> dict[int, int]:
        values = self.mapping(name)
        if not all(rank.isdecimal() and len(rank) < 9 and type(count) is int for rank, count in values.items()):
            raise self.unknown(f"{name} is {values!r}")
        return {int(rank): count for rank, count in values.items()}

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
        fields = load_object(line)
    except WireError as error:
        raise ParseError(source, number, line, str(error)) from None
    return ProgramEvent(source, number, line, fields)
