"""
Meaning of Xid codes: name, class, what to do.

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
class XidTable:
    """
    All codes that are classified.

    Attributes:
        date: Day on which the source was read, ISO 8601.
        rows: Meaning by code.
    """

    date: str
    rows: Mapping[int, XidMeaning]

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
    return XidTable(data["date"], rows)
