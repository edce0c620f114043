"""Takes a pasted session apart into commands and what each printed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpuinfra.facts.reading import Reading

_HEADING = re.compile(r"(?:(?P<where>host|container)\s+)?[#$] (?P<command>\S.*)")


@dataclass(frozen=True)
class Block:
    """
    One command and its output.

    Attributes:
        command: As typed; "" for text before the first command.
        text: What it printed.
        where: "host" or "container" where the session says so, else "".
    """

    command: str
    text: str
    where: str = ""

    def reading(self, source: str = "") -> Reading:
        """The output as the product's parsers take it."""
        return Reading(source or self.command, self.text)


def blocks(text: str) -> list[Block]:
    """Split a session at its prompts."""
    found: list[tuple[str, str, list[str]]] = [("", "", [])]
    for line in text.splitlines():
        heading = _HEADING.fullmatch(line)
        if heading:
            found.append((heading["command"], heading["where"] or "", []))
        else:
            found[-1][2].append(line)
    return [
        Block(command, "\n".join(lines) + ("\n" if lines else ""), where)
        for command, where, lines in found
        if command or any(line.strip() for line in lines)
    ]


def find(found: list[Block], *parts: str) -> Block | None:
    """Give the first block whose command holds all parts; None if none does."""
    return next((block for block in found if all(part in block.command for part in parts)), None)
