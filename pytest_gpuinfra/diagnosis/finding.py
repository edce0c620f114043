"""A finding of the diagnosis: what is wrong with a host, on which rung, how sure that is, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Rung: TypeAlias = Literal["topology", "binding", "transfer", "collective", "engine"]
"""How far up the trouble sits; each rung can be right while the next one is wrong."""

Confidence: TypeAlias = Literal["certain", "likely", "possible"]
"""
certain: seen itself, or by two kinds of observation that have no other common cause.
likely: one observation that points to it, or several with a piece missing.
possible: it would explain what was seen, and what would settle it was not observed.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """
    A next step that a person can take.

    Attributes:
        do: What to do.
        costs: What it takes and what is lost by it.
        open: Whether it can be taken on this host; a closed one is told so that nobody tries it.
    """

    do: str
    costs: str
    open: bool = True

    def __str__(self) -> str:
        return f"{'' if self.open else 'not open here: '}{self.do} (costs: {self.costs})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """
    One thing that is wrong, or that explains what is.

    Attributes:
        key: Its name, stable over versions: "translation-blocks-peers".
        title: What is wrong, one sentence.
        rung: Where.
        confidence: How sure.
        evidence: What was observed. Shape (n >= 1,), the strongest first.
        unseen: What was not observed and bears on it, with the reason. Shape (n,).
        steps: What to do next, the cheapest first. Shape (n >= 1,).
    """

    key: str
    title: str
    rung: Rung
    confidence: Confidence
    evidence: tuple[str, ...]
    steps: tuple[Step, ...]
    unseen: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.title} [{self.rung}, {self.confidence}]",
                *(f"  seen: {line}" for line in self.evidence),
                *(f"  not seen: {line}" for line in self.unseen),
                *(f"  next: {step}" for step in self.steps),
            ]
        )


def some(lines: list[str], limit: int = 3) -> list[str]:
    """Give the first lines, and how many there are more."""
    return lines if len(lines) <= limit else [*lines[:limit], f"and {len(lines) - limit} more of this kind"]
