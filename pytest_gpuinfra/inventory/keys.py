"""The keys by which an inventory expects something of a host, and where each stands in the file."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel

from pytest_gpuinfra.errors import InventoryError
from pytest_gpuinfra.input_file import read_text
from pytest_gpuinfra.wire import text_lines

QUALIFIERS = frozenset(
    {
        "container.failed_units",
        "kernel_log.allow",
        "kernel_log.xid_class",
        "model.throughput.slower_max",
        "service.allow_log",
        "service.drop_ins",
        "service.read_environment",
        "service.unit_file",
    }
)
"""Keys that say how something else is judged, and expect nothing by themselves."""

OF_HOST = ("endpoint", "prompts", "container", "service")
"""Keys of a host beside `expect` that checks must follow."""

_KEY = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_SETTING = re.compile(rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*=")
_TABLE = re.compile(rf"\s*\[(\[?)\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*\]")


def expected_keys(expect: BaseModel) -> Iterator[str]:
    """
    Give the keys that differ from what they are when left out: "model.id", "devices[0].driver"; no qualifiers.

    One that takes "any"thing expects nothing. A list or table that is a value of its own is one key.
    """
    return (key for key in _leaves(expect, "") if key not in QUALIFIERS)


def legal_keys(expect: type[BaseModel]) -> frozenset[str]:
    """Give every key that checks may name, "devices.driver" for a row's; qualifiers, too."""
    return frozenset({*OF_HOST, *_paths(expect, "")})


def models_of(annotation: object) -> list[type[BaseModel]]:
    """Give the models that a field's type speaks of, in order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in models_of(part)]


def nearest(name: str, legal: Iterable[str]) -> str:
    """Give what to add to a message about a name that is not legal: the nearest legal one, or all of them."""
    legal = list(legal)
    close = difflib.get_close_matches(name, legal, 1, 0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; legal here: {', '.join(legal)}" if legal else ""


def place_of(key: str, alias: str, group: str | None, source: str) -> str:
    """
    Tell where a key of a host stands: "gpuinfra.toml, line 12"; without the line where it cannot be told.

    Args:
        key: As `expected_keys` gives it, or one of OF_HOST.
        alias: The host.
        group: The group that it is in; None for none.
        source: The inventory's file, or what else the expectation came from.
    """
    try:
        lines = text_lines(read_text(Path(source), InventoryError, remedy=""))
    except InventoryError:
        return source
    wanted = [key] if key in OF_HOST else ["expect", *re.findall(r"[^.\[\]]+", key)]
    fits = [(_fit(place, wanted, alias, group or ""), -number) for number, place in _places(lines)]
    best, number = max(fits, default=(0, 0))
    return f"{source}, line {-number}" if best else source


def _leaves(model: BaseModel, prefix: str) -> Iterator[str]:
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if value == field.get_default(call_default_factory=True) or value == "any":
            continue
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for row, one in enumerate(value):
                yield from _leaves(one, f"{prefix}{name}[{row}].")
        else:
            yield f"{prefix}{name}"


def _paths(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = models_of(field.annotation)
        if inner:
            yield from _paths(inner[0], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _places(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Give each line's number, from 1, and the key that it sets or the table that it begins, row numbers as parts."""
    table: list[str] = []
    rows: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        header, setting = _TABLE.match(line), _SETTING.match(line)
        if header:
            table = _parts(header[2])
            if header[1]:
                table.append(str(rows[header[2]]))
                rows[header[2]] += 1
            yield number, table
        elif setting:
            yield number, [*table, *_parts(setting[1])]


def _parts(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in re.findall(_KEY, dotted)]


def _fit(place: list[str], wanted: list[str], alias: str, group: str) -> int:
    """Tell how well a place fits a key: 0 for not at all; more for a longer path, then for one nearer to the host."""
    head, name = place[:1], "".join(place[1:2])
    if head == ["defaults"]:
        nearness, rest = 1, place[1:]
    elif head == ["groups"] and name == group:
        nearness, rest = 2, place[2:]
    elif head == ["hosts"] and (name == alias or "[" in name):
        nearness, rest = 3 + (name == alias), place[2:]
    else:
        return 0
    return 8 * len(rest) + nearness if rest and rest == wanted[: len(rest)] else 0
