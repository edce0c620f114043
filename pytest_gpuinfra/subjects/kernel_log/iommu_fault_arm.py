"""
SMMU faults in the kernel log.

Source: Linux drivers/iommu/arm/arm-smmu-v3/arm-smmu-v3.c arm_smmu_dump_event() (words since 6.14) and
arm_smmu_evtq_thread() (four raw words before), drivers/iommu/arm/arm-smmu/arm-smmu.c arm_smmu_context_fault()
and arm_smmu_global_fault(); event layout: ARM IHI 0070 (SMMUv3) 7.3, FSYNR: ARM IHI 0062 (SMMUv2).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.kernel_log.iommu_fault import PCI, IommuFault, number
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry

_WORDS = re.compile(
    r"arm-smmu-v3 (?P<unit>\S+): event: (?P<event>\S+) client: (?P<client>\S+) sid: (?P<sid>0x[0-9a-f]+)"
    r"(?:.* iova: (?P<iova>0x[0-9a-f]+))?"
)
_RAW = re.compile(r"arm-smmu-v3 (?P<unit>\S+): event (?P<event>0x[0-9a-f]+) received:(?P<words>.*)", re.DOTALL)
_V2 = re.compile(
    r"arm-smmu (?P<unit>\S+): (?:Unhandled context fault: "
    r".*?fsr=(?P<fsr>0x[0-9a-f]+), iova=(?P<iova>0x[0-9a-f]+), fsynr=(?P<fsynr>0x[0-9a-f]+)"
    r"|Unexpected global fault|Blocked unknown Stream ID (?P<sid>0x[0-9a-f]+))"
)
_DIRECTION = re.compile(r"\b(?:un)?priv \w+ (read|write)\b")
_WORD = re.compile(r"\b0x[0-9a-f]{16}\b")
_WRITE_NOT_READ, _READ_NOT_WRITE_BIT = 0x10, 35


def read_arm(entry: KernelLogEntry, following: Sequence[KernelLogEntry]) -> IommuFault | None:
    """
    Read one entry; None if it is no SMMU fault.

    Args:
        entry: Entry that may hold a fault.
        following: Entries after it, which hold the direction or the raw words.
    """
    for pattern, read in ((_WORDS, _words), (_RAW, _raw), (_V2, _v2)):
        match = pattern.search(entry.message)
        if match:
            return read(entry, match, following)
    return None


def _words(entry: KernelLogEntry, match: re.Match[str], following: Sequence[KernelLogEntry]) -> IommuFault:
    after = " ".join(item.message for item in following[:1])
    direction = _DIRECTION.search(f"{entry.message} {after}")
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


def _raw(entry: KernelLogEntry, match: re.Match[str], following: Sequence[KernelLogEntry]) -> IommuFault:
    text = " ".join([match["words"], *(item.message for item in following)])
    words = [int(word, 16) for word in _WORD.findall(text)[:4]]
    known = len(words) == 4
    return IommuFault(
        kind="iommu",
        entry=entry,
        vendor="arm",
        code=match["event"],
        address=words[2] if known else None,
        access=("read" if words[1] >> _READ_NOT_WRITE_BIT & 1 else "write") if known else None,
        text=f"stream {words[0] >> 32:#x} of {match['unit']}" if known else f"of {match['unit']}",
    )


def _v2(entry: KernelLogEntry, match: re.Match[str], _: Sequence[KernelLogEntry]) -> IommuFault:
    syndrome = number(match["fsynr"])
    write = None if syndrome is None else bool(syndrome & _WRITE_NOT_READ)
    return IommuFault(
        kind="iommu",
        entry=entry,
        vendor="arm",
        code=match["fsr"] or "global fault",
        address=number(match["iova"]),
        access={True: "write", False: "read", None: None}[write],
        text=f"stream {match['sid']} of {match['unit']}" if match["sid"] else f"of {match['unit']}",
    )
