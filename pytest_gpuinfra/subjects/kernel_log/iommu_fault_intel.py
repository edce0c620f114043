"""
DMA remapping faults of Intel's IOMMU in the kernel log, and Xen's words for them.

Source: Linux drivers/iommu/intel/dmar.c dmar_fault_do_one(), 2.6.30 to 6.17. The reason had its own line
up to 4.4; reasons were decimal, addresses without 0x up to 5.12; the PASID stood behind the device in 5.x.
Xen: xen/drivers/passthrough/vtd/iommu.c iommu_page_fault_do_one(), the reason on a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.kernel_log.iommu_fault import HEX, PCI, IommuFault, requester
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry

_FAULT = re.compile(
    r"\[(?P<type>DMA Read|DMA Write|(?:DMA )?AtomicOp|Page Request|INTR-REMAP|Interrupt \w+)"
    rf"(?: (?P<pasid>NO_PASID|PASID {HEX}))?\] Request device \[(?P<device>{PCI})\]"
    rf"(?: PASID (?P<oldpasid>{HEX}))? fault (?:addr|index) (?P<address>{HEX})"
)
_REASON = re.compile(r"(?:\[fault reason (?P<reason>(?:0x)?[0-9a-fA-F]+)\]|DMAR: reason (?P<xen>\w+) -)\s*(?P<text>.*)")
_TIMED_OUT = re.compile(r"DMAR: VT-d detected (?P<what>Invalidation Time-out Error): SID (?P<id>[0-9a-f]+)")
_NO_PASID = frozenset({"", "NO_PASID", "ffffffff"})


def read_intel(entry: KernelLogEntry, following: Sequence[KernelLogEntry]) -> IommuFault | None:
    """
    Read one entry; None if it is no DMAR fault.

    Args:
        entry: Entry that may hold a fault.
        following: Entries after it, among which the reason may stand.
    """
    late = _TIMED_OUT.search(entry.message)
    if late:
        device = requester(int(late["id"], 16))
        return IommuFault(kind="iommu", entry=entry, vendor="intel", device=device, code=late["what"])
    match = _FAULT.search(entry.message)
    if not match:
        return None
    reason = _REASON.search(entry.message, match.end())
    for later in following:
        if reason or _FAULT.search(later.message):
            break
        reason = _REASON.search(later.message)
    pasid = match["oldpasid"] or (match["pasid"] or "").removeprefix("PASID ")
    return IommuFault(
        kind="iommu",
        entry=entry,
        vendor="intel",
        device=normalise_pci_address(match["device"]),
        code=match["type"],
        address=int(match["address"], 16),
        access=match["type"].removeprefix("DMA ").lower(),
        pasid=None if pasid in _NO_PASID else int(pasid, 16),
        reason=(reason["reason"] or reason["xen"]) if reason else None,
        text=" ".join(reason["text"].split()) if reason else "",
    )
