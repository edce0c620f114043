"""
Whether a function's PCI Express link is what it should be. A width never changes with load, a speed does.
"""

from __future__ import annotations

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.subjects.pci.functions import PciFunction
from pytest_gpuinfra.subjects.verdict import Ending, Verdict


def judge_link(
    function: PciFunction,
    *,
    width: int | None = None,
    speed_gt_s: float | None = None,
    under_load: bool = False,
) -> Verdict:
    """
    Judge width and speed of a link.

    Args:
        function: GPU whose link is judged.
        width: Lanes expected; None for as many as the function is capable of.
        speed_gt_s: GT/s expected; None for as fast as the function is capable of.
        under_load: Whether the GPU worked while the link was read: a lower speed is judged only then.
    """
    try:
        now, wanted = function.link_width, width or function.max_link_width
        speed, fastest = function.link_speed_gt_s, speed_gt_s or function.max_link_speed_gt_s
    except GpuInfraError as error:
        return _verdict(function, "error", error.reason, "")
    if now is None or wanted is None:
        return _verdict(function, "error", "no link width can be read", "")
    shown = f"{speed or 0:g} GT/s x{now}"
    expected = f"{fastest or 0:g} GT/s x{wanted}"
    if now < wanted:
        return _verdict(function, "wrong", shown, expected)
    if speed is None or fastest is None or speed >= fastest:
        return _verdict(function, "ok", shown, expected)
    if under_load:
        return _verdict(function, "wrong", f"{shown} under load", expected)
    note = f"{shown} of {expected}, not under load: idle GPUs lower their speed, so it is not judged"
    return _verdict(function, "ok", shown, expected, (note,))


def _verdict(
    function: PciFunction, ending: Ending, observed: str, expected: str, warnings: tuple[str, ...] = ()
) -> Verdict:
    return Verdict(
        ending=ending,
        subject=f"link of {function.address}",
        observed=observed,
        expected=expected or "a PCI Express link that can be read",
        why="host copies and all-reduce over shared memory lose bandwidth in proportion",
        action="reseat the card and its riser; compare the slot's lanes with the board's manual",
        warnings=warnings,
    )
