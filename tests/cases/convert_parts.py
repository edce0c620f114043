"""What the converters of all topics share."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Entry: TypeAlias = Mapping[str, Any]
"""A case of the older form."""
Hosts: TypeAlias = list[dict[str, Any]] | str
"""Hosts of the newer form; a text for why no item reads the input."""
GPU = "0000:01:00.0"
_HEADING = re.compile(r"(?:(?P<where>host|container)\s+)?[#$] (?P<command>\S.*)")


@dataclass(frozen=True)
class Block:
    """
    One command of a pasted session and its output.

    Attributes:
        command: As typed; "" for text before the first command.
        text: What it printed.
    """

    command: str
    text: str


def blocks(text: str) -> list[Block]:
    """Split a session at its prompts."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for line in text.splitlines():
        heading = _HEADING.fullmatch(line)
        if heading:
            found.append((heading["command"], []))
        else:
            found[-1][1].append(line)
    return [
        Block(command, "".join(f"{line}\n" for line in lines))
        for command, lines in found
        if command or any(line.strip() for line in lines)
    ] or [Block("", text)]


def find(found: Sequence[Block], *parts: str) -> Block | None:
    """Give the last block whose command holds all parts; None if none does."""
    return next((block for block in reversed(found) if all(part in block.command for part in parts)), None)


def full_address(address: str) -> str:
    """Give a PCI address with its domain and function."""
    address = address if address.count(":") == 2 else f"0000:{address}"
    return address if "." in address else f"{address}.0"


def item(name: str) -> str:
    """Give the pattern of every item of one test."""
    return f"test_{name}[*]"


def said(text: str) -> dict[str, Any]:
    """Give a reading of a command that ended well."""
    return {"t": text, "x": 0, "s": ""}


def reference(items: list[str], expect: Mapping[str, Any], **parts: Any) -> dict[str, Any]:
    """Give a host on the reference recording; `more` are keys of the inventory beside `expect`."""
    spec = {**parts.pop("more", {}), "expect": dict(expect)}
    return {"base": "reference", "spec": spec, "items": items, **parts}


SERVED = {"container": "pct:129", "service": "sglang-qwen"}
"""Container and service of the reference recording."""


def logged(text: str, items: list[str], expect: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Give the reference host with a text as its service's log, behind the line that systemd writes at a start."""
    lines = ["Started sglang-qwen.service - SGLang.", *text.splitlines()]
    rows = [json.dumps({"message": line, "priority": "6", "pid": "412"}) for line in lines]
    return reference(items, expect or {}, readings=[["service", "", "journal", said("\n".join(rows))]], more=SERVED)


def listed(folder: Path) -> list[dict[str, Any]]:
    """Give a folder's entries."""
    entries: list[dict[str, Any]] = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    return entries
