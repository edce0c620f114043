"""
Meaning of Xid and SXid codes, and of the words by which other reports tell how bad they are.

Source: xid_table.toml beside this file, which names its own source and date.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class XidMeaning:
    """
    What one Xid code means.

    Attributes:
        code: Number that the driver prints.
        name: NVIDIA's mnemonic; "" for an unclassified code.
        xid_class: "application", "informational", "driver", "hardware", "nvlink", "recovery", "unclassified".
        verdict: "warn", "fail" by the table or the user, "ignore" by the user only.
        action: What a person can do.
        overridden: Whether the verdict is the user's.
    """

    code: int
    name: str
    xid_class: str
    verdict: str
    action: str
    overridden: bool = False


@dataclass(frozen=True, slots=True)
class SXidMeaning:
    """
    What one SXid code means, whatever the line says of itself.

    Attributes:
        code: Number that the driver prints.
        name: NVIDIA's words.
        verdict: "warn" or "fail".
        action: What a person can do.
    """

    code: int
    name: str
    verdict: str
    action: str


@dataclass(frozen=True, slots=True)
class XidTable:
    """
    All that is classified.

    Attributes:
        date: Day on which the source was read, ISO 8601.
        rows: Meaning by Xid code.
        sxids: Meaning by SXid code, of those that need another one than their line gives.
        severities: Verdict by family ("sxid", "aer", "ras", "mce") and word.
    """

    date: str
    rows: Mapping[int, XidMeaning]
    sxids: Mapping[int, SXidMeaning]
    severities: Mapping[str, Mapping[str, str]]

    def severity(self, family: str, word: str) -> str:
        """Give the verdict on a family's word: "warn" or "fail"; a word that is not known fails."""
        return self.severities[family].get(word.lower(), "fail")

    def meaning(self, code: int, overrides: Mapping[int, str] | None = None) -> XidMeaning:
        """
        Give the meaning of a code; one that is in no table is unclassified, and that fails.

        Args:
            code: Number that the driver prints.
            overrides: The user's own verdict by code: "ignore", "warn", "fail".
        """
        row = self.rows.get(code) or XidMeaning(
            code,
            "",
            "unclassified",
            "fail",
            "look the code up in NVIDIA's newest Xid catalogue, then classify it",
        )
        verdict = (overrides or {}).get(code)
        if verdict is None:
            return row
        return XidMeaning(code, row.name, row.xid_class, verdict, row.action, overridden=True)


@cache
def read_xid_table() -> XidTable:
    """Give the table that ships with this version."""
    text = resources.files(__package__).joinpath("xid_table.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    rows = {
        int(code): XidMeaning(
            code=int(code),
            name=row["name"],
            xid_class=row["class"],
            verdict=data["class"][row["class"]]["verdict"],
            action=data["action"][row["action"]],
        )
        for code, row in data["xid"].items()
    }
    sxids = {
        int(code): SXidMeaning(int(code), row["name"], row["verdict"], data["action"][row["action"]])
        for code, row in data["sxid"].items()
    }
    return XidTable(data["date"], rows, sxids, data["severity"])
