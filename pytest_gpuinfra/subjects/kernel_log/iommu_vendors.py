"""
Reports of the IOMMUs in the kernel log: AMD-Vi and DMAR, with Xen's words for them, and SMMU.

AMD: Linux drivers/iommu/amd/iommu.c iommu_print_event(), amd_iommu_report_page_fault(), 3.2 to 6.17: the device
stands in the brackets where it has no driver, and always up to 4.14, else before them.
Flags: AMD I/O Virtualization Technology Specification (48882) 3.10, 2.5.3.
Intel: Linux drivers/iommu/intel/dmar.c dmar_fault_do_one(), qi_check_fault(), 2.6.30 to 6.17. The reason had its own
line up to 4.4; reasons were decimal, addresses without 0x up to 5.12; the PASID stood behind the device in 5.x.
Xen: xen/drivers/passthrough/amd/iommu_init.c, vtd/iommu.c iommu_page_fault_do_one(), 4.0 to 4.20.
Arm: Linux drivers/iommu/arm/arm-smmu-v3/arm-smmu-v3.c arm_smmu_dump_event() (words since 6.14),
arm_smmu_evtq_thread() (four raw words before), arm_smmu_gerror_handler(), drivers/iommu/arm/arm-smmu/arm-smmu.c
arm_smmu_context_fault() and arm_smmu_global_fault(); event layout: ARM IHI 0070 (SMMUv3) 7.3, FSYNR: IHI 0062 (SMMUv2).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.kernel_log.iommu_fault import HEX, PCI, IommuFault, number, requester
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry

_AMD_EVENT = re.compile(
    rf"(?:(?<![\w.-])(?P<driver>[\w.-]+) (?P<before>{PCI}): )?(?:AMD-Vi: )?(?:Event logged \[\s*|(?<=AMD-Vi: )|^)"
    r"(?P<event>IO_PAGE_FAULT|RMP_PAGE_FAULT|RMP_HW_ERROR|ILLEGAL_\w+|DEV_TAB_\w+|PAGE_TAB_\w+"
    r"|COMMAND_HARDWARE_ERROR|IOTLB_INV_TIMEOUT|INVALID_\w+_REQUEST|UNKNOWN)\b(?P<rest>[^\]]*)"
)
_AMD_FIELD = re.compile(rf"(\w+)=({PCI}|{HEX})")
_AMD_XEN = re.compile(
    r"AMD(?:-Vi|_IOV): (?P<event>[A-Z_]+): "
    rf"(?:DEV (?P<device>{PCI}) \w+ addr (?P<address>{HEX}) flags (?P<flags>{HEX})"
    r"|domain\s*[=:]\s*\w+, device id\s*[=:]\s*(?P<id>0x[0-9a-f]+), "
    rf"fault address\s*[=:]\s*(?P<old>{HEX})(?:, flags\s*[=:]\s*(?P<oldflags>{HEX}))?)"
)
_AMD_OWN = "COMMAND_HARDWARE_ERROR"
_AMD_BY_DEVICE = frozenset({"IO_PAGE_FAULT", "RMP_PAGE_FAULT", "RMP_HW_ERROR"})
_AMD_INTERRUPT, _AMD_WRITE = 0x08, 0x20


def read_amd(entry: KernelLogEntry) -> IommuFault | None:
    """Read one entry; None if it is no AMD-Vi event."""
    xen = _AMD_XEN.search(entry.message)
    if xen:
        return _amd_xen(entry, xen)
    match = _AMD_EVENT.search(entry.message)
    if not match:
        return None
    fields = dict(_AMD_FIELD.findall(match["rest"]))
    by_device = match["event"] in _AMD_BY_DEVICE
    device = fields.get("device") or (match["before"] if by_device else None)
    flags = number(fields.get("flags"))
    return IommuFault(
        kind="machine" if match["event"] == _AMD_OWN else "iommu",
        entry=entry,
        vendor="amd",
        device=normalise_pci_address(device) if device else None,
        code=match["event"],
        address=number(fields.get("address") or fields.get("gpa")),
        access=_amd_access(flags) if by_device else None,
        driver=match["driver"] if by_device and "device" not in fields else None,
        domain=number(fields.get("domain")),
        pasid=number(fields.get("pasid")),
        flags=flags,
    )


def _amd_xen(entry: KernelLogEntry, match: re.Match[str]) -> IommuFault:
    device = match["device"] or requester(int(match["id"], 16))
    flags = number(match["flags"] or match["oldflags"])
    return IommuFault(
        kind="iommu",
        entry=entry,
        vendor="amd",
        device=normalise_pci_address(device),
        code=match["event"],
        address=number(match["address"] or match["old"]),
        access=_amd_access(flags),
        flags=flags,
    )


def _amd_access(flags: int | None) -> str | None:
    """Read bit 5; the specification promises it only with bit 4 (page present), and it is set without."""
    if flags is None:
        return None
    if flags & _AMD_INTERRUPT:
        return "interrupt"
    return "write" if flags & _AMD_WRITE else "read"


_INTEL_FAULT = re.compile(
    r"\[(?P<type>DMA Read|DMA Write|(?:DMA )?AtomicOp|Page Request|INTR-REMAP|Interrupt \w+)"
    rf"(?: (?P<pasid>NO_PASID|PASID {HEX}))?\] Request device \[(?P<device>{PCI})\]"
    rf"(?: PASID (?P<oldpasid>{HEX}))? fault (?:addr|index) (?P<address>{HEX})"
)
_INTEL_REASON = re.compile(
    r"(?:\[fault reason (?P<reason>(?:0x)?[0-9a-fA-F]+)\]|DMAR: reason (?P<xen>\w+) -)\s*(?P<text>.*)"
)
_INTEL_DETECTED = re.compile(r"DMAR: VT-d detected (?P<what>Invalidation Time-out Error): SID (?P<id>[0-9a-f]+)")
_NO_PASID = frozenset({"", "NO_PASID", "ffffffff"})


def read_intel(entry: KernelLogEntry, following: Sequence[KernelLogEntry]) -> IommuFault | None:
    """
    Read one entry; None if it is no DMAR fault.

    Args:
        entry: Entry that may hold a fault.
        following: Entries after it, among which the reason may stand.
    """
    late = _INTEL_DETECTED.search(entry.message)
    if late:
        device = requester(int(late["id"], 16))
        return IommuFault(kind="iommu", entry=entry, vendor="intel", device=device, code=late["what"])
    match = _INTEL_FAULT.search(entry.message)
    if not match:
        return None
    reason = _INTEL_REASON.search(entry.message, match.end())
    for later in following:
        if reason or _INTEL_FAULT.search(later.message):
            break
        reason = _INTEL_REASON.search(later.message)
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


_ARM_WORDS = re.compile(
    r"arm-smmu-v3 (?P<unit>\S+): event: (?P<event>\S+) client: (?P<client>\S+) sid: (?P<sid>0x[0-9a-f]+)"
    r"(?:.* iova: (?P<iova>0x[0-9a-f]+))?"
)
_ARM_RAW = re.compile(r"arm-smmu-v3 (?P<unit>\S+): event (?P<event>0x[0-9a-f]+) received:(?P<words>.*)", re.DOTALL)
_ARM_V2 = re.compile(
    r"arm-smmu (?P<unit>\S+): (?:Unhandled context fault: "
    r".*?fsr=(?P<fsr>0x[0-9a-f]+), iova=(?P<iova>0x[0-9a-f]+), fsynr=(?P<fsynr>0x[0-9a-f]+)"
    r"|Unexpected global fault|Blocked unknown Stream ID (?P<sid>0x[0-9a-f]+))"
)
_ARM_DIRECTION = re.compile(r"\b(?:un)?priv \w+ (read|write)\b")
_ARM_WORD = re.compile(r"\b0x[0-9a-f]{16}\b")
_ARM_WRITE_NOT_READ, _ARM_READ_NOT_WRITE_BIT = 0x10, 35


def read_arm(entry: KernelLogEntry, following: Sequence[KernelLogEntry]) -> IommuFault | None:
    """
    Read one entry; None if it is no SMMU fault.

    Args:
        entry: Entry that may hold a fault.
        following: Entries after it, which hold the direction or the raw words.
    """
    for pattern, read in ((_ARM_WORDS, _arm_words), (_ARM_RAW, _arm_raw), (_ARM_V2, _arm_v2)):
        match = pattern.search(entry.message)
        if match:
            return read(entry, match, following)
    return None


def _arm_words(entry: KernelLogEntry, match: re.Match[str], following: Sequence[KernelLogEntry]) -> IommuFault:
    after = " ".join(item.message for item in following[:1])
    direction = _ARM_DIRECTION.search(f"{entry.message} {after}")
    return IommuFault(
        kind="iommu",
        entry=entry,
        vendor="arm",
        device=normalise_pci_address(match["client"]) if re.fullmatch(PCI, match["client"]) else None,
        code=match["event"],
        address=number(match["iova"]),
        access=direction[1] if direction else None,
        text=f"stream {match['sid']} of {match['unit']}",
    )


def _arm_raw(entry: KernelLogEntry, match: re.Match[str], following: Sequence[KernelLogEntry]) -> IommuFault:
    text = " ".join([match["words"], *(item.message for item in following)])
    words = [int(word, 16) for word in _ARM_WORD.findall(text)[:4]]
    known = len(words) == 4
    return IommuFault(
        kind="iommu",
        entry=entry,
        vendor="arm",
        code=match["event"],
        address=words[2] if known else None,
        access=("read" if words[1] >> _ARM_READ_NOT_WRITE_BIT & 1 else "write") if known else None,
        text=f"stream {words[0] >> 32:#x} of {match['unit']}" if known else f"of {match['unit']}",
    )


def _arm_v2(entry: KernelLogEntry, match: re.Match[str], _: Sequence[KernelLogEntry]) -> IommuFault:
    syndrome = number(match["fsynr"])
    write = None if syndrome is None else bool(syndrome & _ARM_WRITE_NOT_READ)
    return IommuFault(
        kind="iommu",
        entry=entry,
        vendor="arm",
        code=match["fsr"] or "global fault",
        address=number(match["iova"]),
        access={True: "write", False: "read", None: None}[write],
        text=f"stream {match['sid']} of {match['unit']}" if match["sid"] else f"of {match['unit']}",
    )
