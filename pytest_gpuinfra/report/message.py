"""A message of four parts, taken apart again: subject, observed, expected, why it matters, what to do."""

from __future__ import annotations

from dataclasses import dataclass, fields

_KEYS = {"observed": "observed", "expected": "expected", "why it matters": "why", "what to do": "action"}


@dataclass(frozen=True, slots=True)
class Message:
    """
    What an item says.

    Attributes:
        subject: The thing that was judged; the first line of any message.
        observed: What was seen. expected: What should be. why: The consequence. action: The next step. "" if not said.
    """

    subject: str
    observed: str = ""
    expected: str = ""
    why: str = ""
    action: str = ""

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """The parts after the subject, with their words; those that are not said, too."""
        return tuple((word, getattr(self, name)) for word, name in _KEYS.items())

    @property
    def brief(self) -> str:
        """The message in one line."""
        if self.observed and self.expected:
            first = self.observed.splitlines()[0]
            return f"{self.subject}: {first}, expected {self.expected.splitlines()[0]}"
        return self.subject


def parse_message(text: str, otherwise: str = "") -> Message:
    """
    Take a message apart; of a traceback, what was raised is the subject.

    Args:
        text: What pytest shows of an item.
        otherwise: The subject of an empty text.
    """
    lines = text.splitlines() or [otherwise]
    found = {field.name: "" for field in fields(Message)}
    key = ""
    for line in lines[1:]:
        word, sign, value = line.strip().partition(": ")
        if sign and word in _KEYS and not found[_KEYS[word]]:
            key = _KEYS[word]
            found[key] = value
        elif key and line.startswith("    "):
            found[key] += f"\n{line.strip()}"
        else:
            key = ""
    crash = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    found["subject"] = lines[0] if found["observed"] or found["action"] or not crash else crash[0]
    return Message(**found)
