"""
What an engine admits in its own log: that it does something slower or less exact than it was asked for.

Source: admissions.toml beside this file, which names its own sources.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from pytest_gpuinfra.masking import first_of
from pytest_gpuinfra.subjects.service.journal import UnitJournal
from pytest_gpuinfra.subjects.verdict import Ending, Verdict

_LINE_MAX = 2000
"""Characters of a line that are looked at; an engine's arguments fill lines of tens of thousands."""
_NO_PROSE = re.compile(r"server_args=|non-default args|Namespace\(|config: model=|ServerArgs\(|\"(?:GET|POST) /")
"""Lines that list arguments or requests, in which any word may stand."""


@dataclass(frozen=True, slots=True)
class Rule:
    """
    One row of the table.

    Attributes:
        pattern: What it looks like.
        weight: "wrong", "ask", "note".
        without_peers: Weight where peer access need not be right.
        says: What it means.
        action: What a person can do.
    """

    pattern: re.Pattern[str]
    weight: str
    without_peers: str
    says: str
    action: str


@dataclass(frozen=True, slots=True)
class Admission:
    """
    One admission.

    Attributes:
        message: The line, as first logged.
        count: How often it was logged.
        rule: Row that it fell under.
        weight: "wrong", "ask", "note".
    """

    message: str
    count: int
    rule: Rule
    weight: str

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{first_of(self.message, 240)}{times}: {self.rule.says}"


@cache
def read_rules() -> tuple[Rule, ...]:
    """Give the table that ships with this version."""
    text = resources.files(__package__).joinpath("admissions.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return tuple(
        Rule(
            re.compile(row["pattern"], re.IGNORECASE),
            row.get("class", "wrong"),
            row.get("without_peers", row.get("class", "wrong")),
            row["says"],
            row.get("action", ""),
        )
        for row in (*data["line"], *data["grammar"])
    )


def find_admissions(messages: Sequence[str], *, peers: bool) -> tuple[Admission, ...]:
    """
    Find what is admitted; one that several processes log is one.

    Args:
        messages: Lines, in log order.
        peers: Whether peer access must be right, or nobody said that it need not.
    """
    found: dict[str, list[tuple[str, Rule]]] = {}
    for message in messages:
        if _NO_PROSE.search(message):
            continue
        text = message[:_LINE_MAX]
        rule = next((rule for rule in read_rules() if rule.pattern.search(text)), None)
        if rule is not None:
            found.setdefault(_core(text), []).append((message, rule))
    return tuple(
        Admission(lines[0][0], len(lines), lines[0][1], lines[0][1].weight if peers else lines[0][1].without_peers)
        for lines in found.values()
    )


def judge_admissions(journal: UnitJournal, allow: Sequence[str], *, peers: bool) -> Verdict:
    """
    Judge what the service's log admits.

    Args:
        journal: The log from its start on.
        allow: Regular expressions of lines that are accepted.
        peers: Whether peer access must be right, or nobody said that it need not.
    """
    found = find_admissions([line.message for line in journal.unallowed(allow)], peers=peers)
    of = {weight: [one for one in found if one.weight == weight] for weight in ("wrong", "ask", "note")}
    worst = of["wrong"] or of["ask"]
    if not worst and not journal.begins:
        return _verdict("error", "its log does not go back to its start, where engines say such things", found)
    if not worst:
        return _verdict("ok", f"{len(journal.lines)} lines, none of which admits a fallback", found)
    observed = "; ".join(map(str, worst[:3])) + (f"; and {len(worst) - 3} more" if len(worst) > 3 else "")
    return _verdict("wrong" if of["wrong"] else "error", observed, found, worst[0].rule.action)


def _core(text: str) -> str:
    """Leave out what differs from process to process: ranks, process numbers, times."""
    return re.sub(r"\d+", "0", re.sub(r"^(?:\([^)]*\)\s*|\[[^\]]*\]\s*)+", "", text))


def _verdict(ending: Ending, observed: str, found: Sequence[Admission], action: str = "") -> Verdict:
    return Verdict(
        ending=ending,
        subject="fallbacks that the service admits",
        observed=observed,
        expected="none",
        why="it serves, slower or less exactly than the same model was proven",
        action=action or "cure what the line names; what is accepted is named in service.allow_log",
        warnings=tuple(str(one) for one in found if one.weight == "note"),
    )
