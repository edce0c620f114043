"""How far a service has drifted from its files: unified diffs, and what is newer than the running process."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuinfra.on_target.probe.probe_names import MASK
from pytest_gpuinfra.wire import text_lines


@dataclass(frozen=True, slots=True)
class Drift:
    """
    One comparison.

    Attributes:
        what: What was compared, for messages.
        diff: Unified diff; "" if there is no difference.
        reasons: What is wrong beside the difference, one sentence each.
        masked: Lines in which both sides are masked, so that what stands behind the masks was not compared.
    """

    what: str
    diff: str
    reasons: tuple[str, ...] = ()
    masked: int = 0

    @property
    def found(self) -> bool:
        """Whether there is any."""
        return bool(self.diff or self.reasons)

    def __str__(self) -> str:
        parts = ["; ".join(self.reasons)] if self.reasons else []
        parts += [self.diff] if self.diff else []
        parts += [] if parts else [f"{self.what}: no difference"]
        parts += [f"{self.masked} values are masked and were not compared"] if self.masked else []
        return "\n".join(parts)


def diff_texts(expected: str, observed: str, expected_name: str, observed_name: str) -> str:
    """Give the unified diff of two texts; "" if their lines are the same."""
    lines = difflib.unified_diff(
        text_lines(expected), text_lines(observed), expected_name, observed_name, lineterm="", n=2
    )
    return "\n".join(lines)


def masked_alone(expected: str, observed: str) -> bool:
    """Tell whether two texts differ in nothing but values that are masked on one side: nobody knows if they do."""
    lines = text_lines(expected), text_lines(observed)
    if len(lines[0]) != len(lines[1]):
        return False
    differing = [pair for pair in zip(*lines, strict=True) if pair[0] != pair[1]]
    return bool(differing) and all(_matches(one, other) or _matches(other, one) for one, other in differing)


def _matches(masked: str, line: str) -> bool:
    """Tell whether a line is a masked one with anything in the place of its masks."""
    first, *others = masked.split(MASK)
    if not others or not line.startswith(first):
        return False
    place, end = len(first), len(line) - len(others[-1])
    for piece in others[:-1]:
        found = line.find(piece, place, end)
        if found < 0:
            return False
        place = found + len(piece)
    return place <= end and line.endswith(others[-1])


def masked_lines(expected: str, observed: str) -> int:
    """Give how many lines of a text stand in the other one, too, with a mask in them."""
    known = set(text_lines(expected))
    return len([line for line in text_lines(observed) if MASK in line and line in known])


def diff_settings(
    expected: Sequence[str],
    observed: Sequence[str],
    variables: tuple[Mapping[str, str], Mapping[str, str]],
    names: tuple[str, str],
) -> str:
    """
    Give the unified diff of two commands and environments, one word or variable a line.

    Args:
        expected: Command by the files.
        observed: Command that is held, or that runs.
        variables: Variables by the files, and those that are held, or in effect.
        names: What to call the two sides.
    """

    def lines(command: Sequence[str], environment: Mapping[str, str]) -> str:
        return "\n".join([*command, *(f"{name}={value}" for name, value in sorted(environment.items()))])

    return diff_texts(lines(expected, variables[0]), lines(observed, variables[1]), *names)


def newer_than(started_at: float, times: Mapping[str, float]) -> tuple[str, ...]:
    """Name the files that were changed after a moment, with by how much."""
    return tuple(
        f"{path} was changed {_span(changed - started_at)} after the process started"
        for path, changed in times.items()
        if changed > started_at
    )


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


def find_argument(argv: Sequence[str], name: str) -> str | bool:
    """
    Give the value of an argument in effect: the last one counts.

    Returns:
        The value, True for an argument without one, False if it is not there.
    """
    found: str | bool = False
    for place, word in enumerate(argv):
        if word == name:
            follows = argv[place + 1] if place + 1 < len(argv) else ""
            found = follows if follows and not (follows.startswith("-") and not _is_number(follows)) else True
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found


def argument_is(observed: str | bool, expected: str | bool) -> bool:
    """Tell whether an argument is as expected; an expected True takes any value, and numbers compare as numbers."""
    if isinstance(expected, bool) or isinstance(observed, bool):
        return bool(observed) == expected if isinstance(expected, bool) else False
    if _is_number(observed) and _is_number(expected):
        return float(observed) == float(expected)
    return observed == expected


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
