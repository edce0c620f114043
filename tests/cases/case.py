"""One real-world case: an input, and the verdict that a good acceptance test gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpuinfra.facts.reading import Reading

OWN = Path(__file__).parent / "data"
"""The project's own cases."""


@dataclass(frozen=True)
class Case:
    """
    One entry of a cases.json.

    Attributes:
        id: "C001".
        topic: Word of the index ("xid-log").
        source: Where the input was published.
        text: The input.
        verdict: "pass", "pass (warn)", "fail", "skip", "error".
        reason: Why, by whoever made the case; it also names what is given.
        parsed: What is to be read from the input, by key.
        requires: What the user asked for; None if nothing.
        use: "parse" for a format that the product reads, "behaviour" for another tool's report.
    """

    id: str
    topic: str
    source: str
    text: str
    verdict: str
    reason: str
    parsed: Mapping[str, Any]
    requires: str | None
    use: str

    @property
    def reading(self) -> Reading:
        """The input as the product's parsers take it."""
        return Reading(f"{self.id} ({self.source})", self.text)

    @property
    def peer_access(self) -> bool:
        """Whether the user asked for direct copies between GPUs."""
        return self.requires == "peer access"


def read_cases(folder: Path) -> list[Case]:
    """Read a folder of this format: cases.json, and the files that it names."""
    entries = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    return [
        Case(
            id=entry["id"],
            topic=entry["topic"],
            source=entry.get("source", ""),
            text=entry["input"] if entry.get("input") is not None else _file(folder, entry["input_file"]),
            verdict=entry["verdict"],
            reason=entry.get("reason", ""),
            parsed=entry.get("parsed") or {},
            requires=entry.get("requires"),
            use=entry.get("use", "parse"),
        )
        for entry in entries
    ]


def _file(folder: Path, name: str) -> str:
    return (folder / name).read_bytes().decode("utf-8", "replace")
