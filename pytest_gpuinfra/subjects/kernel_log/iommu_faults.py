"""
All IOMMU faults of a kernel log, those included that the kernel's rate limit only counted.

Source: Linux lib/ratelimit.c: "FUNCTION: N callbacks suppressed", printed before the next report that passes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pytest_gpuinfra.subjects.kernel_log.driver_lines import device_of
from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.iommu_fault import IommuFault
from pytest_gpuinfra.subjects.kernel_log.iommu_vendors import read_amd, read_arm, read_intel
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry

_SUPPRESSED = re.compile(r"(?<!\w)(?P<function>\w*(?:iommu|dmar|smmu)\w*): (?P<count>\d{1,18}) callbacks suppressed")
_NEEDLES = (
    "AMD",
    "DMAR",
    "dmar",
    "smmu",
    "IOMMU",
    "iommu",
    "_FAULT",
    "_ERROR",
    "_TIMEOUT",
    "_REQUEST",
    "_ENTRY",
    "] Request",
)
"""One of these is in every report; most entries hold none, and are not searched."""
_LIKE_A_FAULT = re.compile(
    r"AMD-Vi: .*(?:Event logged|_FAULT)|DMAR:? ?.*(?:fault addr|fault index|Request device)"
    r"|arm-smmu\S* .*\b(?:context|global|translation) fault\b|\bIOMMU\b.*\bpage fault\b",
    re.IGNORECASE,
)


def parse_iommu_faults(entries: Sequence[KernelLogEntry]) -> tuple[KernelFault, ...]:
    """
    Pick the IOMMU's reports out of the kernel log.

    Returns:
        One fault for each report, in log order, and one without a device where only a count is in the log;
        a report in a form that nobody knows has kind "unreadable". Shape (n,).
    """
    faults: list[KernelFault] = []
    waiting: dict[str, tuple[int, KernelLogEntry]] = {}
    for index, entry in enumerate(entries):
        if not any(needle in entry.message for needle in _NEEDLES):
            continue
        suppressed = _SUPPRESSED.search(entry.message)
        if suppressed:
            vendor, count = _vendor(suppressed["function"]), int(suppressed["count"])
            if not _count_to_last(faults, vendor, count):
                waiting[vendor] = (count + waiting.get(vendor, (0, entry))[0], entry)
            continue
        following = entries[index + 1 : index + 5]
        fault = read_amd(entry) or read_intel(entry, following) or read_arm(entry, following)
        if fault:
            count = waiting.pop(fault.vendor, (0, entry))[0]
            faults.append(replace(fault, count=fault.count + count, suppressed=count))
        elif _LIKE_A_FAULT.search(entry.message):
            faults.append(KernelFault(kind="unreadable", entry=entry, device=device_of(entry.message), code="iommu"))
    faults.extend(
        IommuFault(kind="iommu", entry=entry, vendor=vendor, count=count, suppressed=count)
        for vendor, (count, entry) in waiting.items()
    )
    return tuple(faults)


def _count_to_last(faults: list[KernelFault], vendor: str, count: int) -> bool:
    """Add what was held back to the youngest report of the same IOMMU; False if there is none yet."""
    for index in range(len(faults) - 1, -1, -1):
        fault = faults[index]
        if isinstance(fault, IommuFault) and fault.vendor == vendor:
            faults[index] = replace(fault, count=fault.count + count, suppressed=fault.suppressed + count)
            return True
    return False


def _vendor(function: str) -> str:
    if "dmar" in function or "intel" in function:
        return "intel"
    return "arm" if "smmu" in function else "amd"
