"""Messages of failed checks, and the raw text behind every check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.masking import mask_text

LIMIT = 4000
"""Characters of one piece of evidence in reports; the recording holds all of it."""


def explain(subject: str, *, observed: object, expected: object, why: str, action: str) -> str:
    """
    Put a failed check into words: what, observed, expected, why it matters, what to do.

    Args:
        subject: The thing that was judged, with the host or device that it belongs to.
        observed: What was seen.
        expected: What the inventory declares.
        why: The consequence for a machine that serves models.
        action: The next step that a person can take now.
    """
    return f"{subject}\n  observed: {observed}\n  expected: {expected}\n  why it matters: {why}\n  what to do: {action}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """
    One piece of raw text behind a check.

    Attributes:
        name: Where it comes from: a file, a command, or a fact's name.
        text: The text, at most LIMIT characters and a note of what was left out.
    """

    name: str
    text: str


def evidence(name: str, text: str) -> Evidence:
    """Make a piece of evidence of any length of text."""
    if len(text) <= LIMIT:
        return Evidence(name, text)
    text = mask_text(text)  # before it is cut: half a secret is not known as one
    half = LIMIT // 2
    return Evidence(
        name,
        f"{text[:half]}\n[... {len(text) - 2 * half} characters left out; the recording has them ...]\n{text[-half:]}",
    )


def readings_as_text(readings: Iterable[Reading]) -> str:
    """Show readings as a person would see them at a prompt, errors included."""
    parts = []
    for reading in readings:
        if reading.text is None:
            parts.append(f"{reading.source}: {reading.error}")
        elif "\n" in reading.text.strip():
            parts.append(f"{reading.source}:\n{reading.text.rstrip()}")
        else:
            parts.append(f"{reading.source}: {reading.text.strip()}")
        if reading.exit_status not in (None, 0):
            parts.append(f"  exit status {reading.exit_status}: {reading.stderr.strip()}")
    return "\n".join(parts)
