"""
Whether access control services above a GPU send its peer traffic up to the root complex.

What counts is the control register of the bridges above, never the capability, and never the GPU's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.subjects.pci.functions import PciFunction, PciFunctions
from pytest_gpuinfra.subjects.verdict import Ending, Verdict


def bridges_above(function: PciFunction, functions: PciFunctions) -> tuple[PciFunction, ...]:
    """
    Give the bridges above a function, the root port first.

    Raises:
        FactUnavailable: A bridge of its path is not among the functions, or the path could not be read.
    """
    return tuple(functions[address] for address in function.upstream)


def redirecting(bridges: Iterable[PciFunction]) -> tuple[PciFunction, ...]:
    """
    Give the bridges that redirect peer requests or completions.

    Raises:
        FactUnavailable: The configuration space of one could not be read that far.
    """
    return tuple(bridge for bridge in bridges if bridge.acs is not None and bridge.acs.redirects_peers)


def judge_acs(bridges: Sequence[PciFunction]) -> Verdict:
    """
    Judge the bridges above a GPU that must reach another one directly.

    Args:
        bridges: As `bridges_above` gives them.
    """
    try:
        found = redirecting(bridges)
        checked = [bridge for bridge in bridges if bridge.acs and "source_validation" in bridge.acs.enabled]
    except GpuInfraError as error:
        return _verdict("error", error.reason, (), error.remedy)
    if found:
        observed = ", ".join(f"{bridge.address} (control {_control(bridge)})" for bridge in found)
        return _verdict("wrong", f"redirect is on at {observed}", ())
    if not bridges:
        return _verdict("skip", "no bridge above: nothing can redirect", ())
    notes = tuple(f"{bridge.address} validates sources, which moves no peer traffic" for bridge in checked)
    return _verdict("ok", f"no redirect at {len(bridges)} bridges", notes)


def _control(bridge: PciFunction) -> str:
    return f"{bridge.acs.control:#06x}" if bridge.acs else "none"


def _verdict(ending: Ending, observed: str, warnings: tuple[str, ...], action: str = "") -> Verdict:
    return Verdict(
        ending=ending,
        subject="access control above the GPU",
        observed=observed,
        expected="no redirect of peer requests or completions",
        why="redirected copies take the way through the root complex and the IOMMU: slow, dropped, or hanging",
        action=action
        or "switch ACS off in the BIOS, or clear the bits at boot (setpci ECAP_ACS+6.w=0), outside of VMs",
        warnings=warnings,
    )
