"""
A verdict: one of the four endings, with the four parts of a message.

A suite asserts `verdict.ok, verdict.message`; a fixture calls `verdict.settled()` before,
so that what could not be observed ends in ERROR, and skips where the verdict says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_gpuinfra.capture.evidence import explain
from pytest_gpuinfra.errors import FactUnavailable

Ending: TypeAlias = Literal["ok", "wrong", "skip", "error"]
"""ok: observed and right. wrong: observed and wrong. skip: nothing expected. error: not observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """
    What is to be said about one observation.

    Attributes:
        ending: Which of the four.
        subject: The thing that was judged.
        observed: What was seen.
        expected: What should have been.
        why: The consequence for a machine that serves models.
        action: The next step that a person can take now.
        warnings: What deserves a line in the report although it is no failure.
    """

    ending: Ending
    subject: str
    observed: str
    expected: str
    why: str = ""
    action: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it was observed, and is right."""
        return self.ending == "ok"

    @property
    def message(self) -> str:
        """The four-part message."""
        text = explain(self.subject, observed=self.observed, expected=self.expected, why=self.why, action=self.action)
        return "\n".join([text, *(f"  also: {warning}" for warning in self.warnings)])

    @property
    def reason(self) -> str:
        """One line, for a skip."""
        return f"{self.subject}: {self.observed}"

    def settled(self) -> Verdict:
        """
        Give the verdict back if something was observed.

        Raises:
            FactUnavailable: It could not be observed.
        """
        if self.ending == "error":
            raise FactUnavailable(self.subject, self.observed, remedy=self.action)
        return self

    def __str__(self) -> str:
        return f"{self.ending}: {self.reason}"
