"""Whether a fault in the kernel log counts against a host that is to take traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuinfra.facts.fault import KernelFault
from pytest_gpuinfra.facts.xid import Xid
from pytest_gpuinfra.facts.xid_table import read_xid_table


@dataclass(frozen=True, slots=True)
class Weight:
    """
    The weight of one fault.

    Attributes:
        counts: Whether the host fails by it.
        reason: Why, or why not.
    """

    counts: bool
    reason: str


def weigh(fault: KernelFault, overrides: Mapping[int, str]) -> Weight:
    """
    Weigh one fault.

    Args:
        fault: As the log's parser gives it.
        overrides: The user's own verdict by Xid code: "ignore" or "fail".
    """
    if fault.kind in ("notice", "unreadable"):
        return Weight(False, "told for the record")
    if isinstance(fault, Xid):
        meaning = read_xid_table().meaning(fault.number, overrides)
        if not meaning.overridden and (fault.severity or "").lower().startswith("non"):
            return Weight(False, "the link recovered")
        if not meaning.overridden and fault.recovery_to == "None":
            return Weight(False, "the driver asks for no action")
        return Weight(meaning.verdict == "fail", f"Xid {fault.number} {meaning.name}: {meaning.action}")
    return Weight(True, fault.kind)
