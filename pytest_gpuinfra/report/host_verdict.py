"""The verdict on a host, in words, by how its items ended."""

from __future__ import annotations

from collections.abc import Mapping

EACH = 12
"""Up to so many hosts, each has a row and a section of its own; beyond, those that ended alike share a row."""

IN_FULL = 40
"""Hosts that have a section of their own where there are more than EACH: those that are not good, the worst first."""


def verdict_of(
    counts: Mapping[str, int],
    *,
    nothing_expected: bool,
    unknown_allowed: bool = False,
    cut_short: bool = False,
    narrowed: str = "",
    suspected: bool = False,
) -> tuple[str, str]:
    """
    Put a host's outcomes into words.

    Args:
        counts: Items by outcome.
        nothing_expected: Whether nothing is expected of the host.
        unknown_allowed: Whether errors may stand beside passes.
        cut_short: Whether the run was interrupted, so that items are missing.
        narrowed: Which part of all checks was run: "8 of 425 checks (-k xid)"; "" for all of them.
        suspected: Whether the diagnosis names a fault of the host.

    Returns:
        The verdict, and its style.
    """
    if counts.get("failed"):
        return "must not take traffic", "bold red"
    if cut_short:
        return "interrupted, not judged in full", "bold yellow"
    if counts.get("error") and not (unknown_allowed and counts.get("passed")):
        return "could not be judged", "bold yellow"
    if not counts.get("passed"):
        return "nothing observed", "bold yellow"
    if counts.get("error"):
        return "nothing wrong seen, not all was", "yellow"
    if suspected:
        return f"{narrowed or 'nothing failed'}, but see the diagnosis", "bold yellow"
    if narrowed:
        return f"{narrowed}, nothing wrong", "yellow"
    if nothing_expected:
        return "nothing wrong seen, nothing expected", "green"
    return "may take traffic", "bold green"
