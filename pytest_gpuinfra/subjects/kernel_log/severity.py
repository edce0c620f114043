"""Whether a fault in the kernel log counts against a host that is to take traffic."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pytest_gpuinfra.subjects.kernel_log.aer import AerError
from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.xid import SXid, Xid
from pytest_gpuinfra.subjects.kernel_log.xid_table import read_xid_table

_CLEANUP, _RECOVERY = 45, 154


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
    if fault.kind in ("notice", "unreadable", "unknown"):
        return Weight(False, "told for the record")
    if isinstance(fault, Xid):
        return _weigh_xid(fault, overrides)
    if isinstance(fault, SXid):
        return _weigh_sxid(fault)
    if isinstance(fault, AerError):
        verdict = read_xid_table().severity("aer", fault.severity)
        return Weight(verdict == "fail", f"PCI Express error, {fault.severity}")
    if fault.kind in ("mce", "ras"):
        first = str(fault.code).partition(" ")[0]
        return Weight(read_xid_table().severity(fault.kind, first) == "fail", f"{fault.kind}: {fault.code}")
    return Weight(True, fault.kind)


def root_xid(faults: Collection[KernelFault]) -> Xid | None:
    """
    Give the Xid that the others of the same GPU follow from; None if there is no Xid.

    Cleaning up (45) and asking for a recovery (154) follow from something else if anything else is there.
    """
    xids = [fault for fault in faults if isinstance(fault, Xid)]
    causes = [xid for xid in xids if xid.number not in (_CLEANUP, _RECOVERY)]
    return next(iter(causes or xids), None)


def _weigh_xid(xid: Xid, overrides: Mapping[int, str]) -> Weight:
    meaning = read_xid_table().meaning(xid.number, overrides)
    name = f"Xid {xid.number} {meaning.name}".rstrip()
    if meaning.overridden:
        return Weight(meaning.verdict == "fail", f"{name}: the inventory says {meaning.verdict}")
    if _says_nonfatal(xid.severity):
        return Weight(False, f"{name}: the link recovered")
    if xid.recovery_to == "None":
        return Weight(False, f"{name}: the driver asks for no action")
    if xid.cause is not None and xid.cause != xid.number:
        because = read_xid_table().meaning(xid.cause, overrides)
        return Weight(because.verdict == "fail", f"{name}, by Xid {because.code} {because.name}: {because.action}")
    return Weight(meaning.verdict == "fail", f"{name}, {meaning.xid_class}: {meaning.action}")


def _weigh_sxid(sxid: SXid) -> Weight:
    row = read_xid_table().sxids.get(int(sxid.code or 0))
    if row:
        return Weight(row.verdict == "fail", f"SXid {row.code} {row.name}: {row.action}")
    word = (sxid.severity or "").lower().replace("-", "")
    return Weight(
        read_xid_table().severity("sxid", word) == "fail", f"SXid {sxid.code}: {sxid.severity or 'no severity'}"
    )


def _says_nonfatal(word: str | None) -> bool:
    return (word or "").lower().startswith("non")
