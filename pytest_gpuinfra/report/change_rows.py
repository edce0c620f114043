"""Changes between two recordings as rows for people: what says the same of several things is one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuinfra.record.compare import Change, HostComparison, Weight

TITLES: tuple[tuple[Weight, str], ...] = (
    ("regression", "Unexpected"),
    ("expected", "Expected"),
    ("better", "Better"),
)


@dataclass(frozen=True, slots=True)
class Since:
    """
    What changed on a host since a baseline.

    Attributes:
        headline: The counts in one line, with the host's name.
        bad: Whether something changed that nobody allowed.
        rows: (title, what, change), unexpected first. Shape (n,).
    """

    headline: str
    bad: bool
    rows: tuple[tuple[str, str, str], ...]


def since_of(host: HostComparison) -> Since:
    """Put a host's comparison into rows."""
    rows = [(title, name, what) for weight, title in TITLES for name, what in group(host.of(weight))]
    return Since(headline(host), bool(host.of("regression")), tuple(rows))


def group(changes: Sequence[Change]) -> list[tuple[str, str]]:
    """
    Bring changes that say the same of several things into one row.

    Returns:
        (names, what changed), in the order of the first of each. Shape (n,).
    """
    rows: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        before = "absent" if change.before is None else change.before
        after = "absent" if change.after is None else change.after
        note = f" ({change.note})" if change.note else ""
        parts = change.name.split("/")
        about = f"{parts[0]}/.../{parts[-1]}" if len(parts) > 2 and change.kind != "ending" else change.name
        if change.kind == "ending":
            about = change.name.partition("[")[0]
            note = "" if ": " in note else note
        if change.kind == "number":
            rows[change.name, f"{before} -> {after}{note}"] = [change]
        else:
            rows.setdefault((about, f"{before} -> {after}{note}"), []).append(change)
    found = []
    for (about, what), same in rows.items():
        if len(same) == 1:
            found.append((same[0].name, f"{what}{_why(same[0])}"))
        else:
            subjects = [_subject(change) for change in same]
            more = f" and {len(subjects) - 6} more" if len(subjects) > 6 else ""
            found.append((f"{about} of {', '.join(subjects[:6])}{more}", f"{what}{_why(same[0])}"))
    return found


def _why(change: Change) -> str:
    return f" ({change.note})" if change.kind == "ending" and ": " in change.note else ""


def _subject(change: Change) -> str:
    if change.kind == "ending":
        return change.name.partition("[")[2].rstrip("]") or "the host"
    return "/".join(change.name.split("/")[1:-1])


def headline(host: HostComparison) -> str:
    """Put a host's comparison into one line."""
    counts = [f"{len(host.of(weight))} {title.lower()}" for weight, title in TITLES if host.of(weight)]
    boot = {True: "rebooted", False: "same boot", None: "boot not known from both"}[host.boot_changed]
    masked = f" ({host.masked} of them masked, not compared)" if host.masked else ""
    return f"{host.host}: {', '.join(counts) or 'no change'}; {host.same} the same{masked}; {boot}"
