"""
Whether a PCI Express link has as many lanes as it should. A width does not change with load.
"""

from __future__ import annotations

from pytest_gpuinfra.subjects.verdict import Ending, Verdict


def judge_link_width(subject: str, width: int | None, expected: int | None, *ends: int | None) -> Verdict:
    """
    Judge the lanes of a link, whoever told them.

    Args:
        subject: Whose link.
        width: Lanes in use; None if nobody knows.
        expected: Lanes that the inventory declares; None for as many as all ends are capable of.
        ends: Lanes that each end is capable of; None for one that nobody knows.
    """
    wanted = expected or min((end for end in ends if end), default=None)
    if width is None:
        ending: Ending = "error"
    elif wanted is None:
        ending = "skip"
    else:
        ending = "ok" if width == wanted or (expected is None and width > wanted) else "wrong"
    return Verdict(
        ending=ending,
        subject=subject,
        observed="no width of a PCI Express link is told" if width is None else f"x{width}",
        expected="a PCI Express link that can be read" if wanted is None else f"x{wanted}",
        why="host copies and SHM all-reduce lose bandwidth in proportion",
        action="reseat the card and its riser, then compare the slot's lanes in the board's manual; "
        "where the slot has no more, declare `link_width`",
    )
