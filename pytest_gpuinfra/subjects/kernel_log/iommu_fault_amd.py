"""
AMD-Vi events in the kernel log, and Xen's words for them.

Source: Linux drivers/iommu/amd/iommu.c iommu_print_event(), amd_iommu_report_page_fault(), 3.2 to 6.17:
the device stands in the brackets where it has no driver, and always up to 4.14, else before them.
Flags: AMD I/O Virtualization Technology Specification (48882) 3.10, 2.5.3.
Xen: xen/drivers/passthrough/amd/iommu_init.c, 4.0 to 4.20.
"""

from __future__ import annotations

import re

from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.kernel_log.iommu_fault import HEX, PCI, IommuFault, number, requester
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry

_EVENT = re.compile(
    rf"(?:(?<![\w.-])(?P<driver>[\w.-]+) (?P<before>{PCI}): )?(?:AMD-Vi: )?(?:Event logged \[\s*|(?<=AMD-Vi: )|^)"
    r"(?P<event>IO_PAGE_FAULT|RMP_PAGE_FAULT|RMP_HW_ERROR|ILLEGAL_\w+|DEV_TAB_\w+|PAGE_TAB_\w+"
    r"|COMMAND_HARDWARE_ERROR|IOTLB_INV_TIMEOUT|INVALID_\w+_REQUEST|UNKNOWN)\b(?P<rest>[^\]]*)"
)
_FIELD = re.compile(rf"(\w+)=({PCI}|{HEX})")
_XEN = re.compile(
    r"AMD(?:-Vi|_IOV): (?P<event>[A-Z_]+): "
    rf"(?:DEV (?P<device>{PCI}) \w+ addr (?P<address>{HEX}) flags (?P<flags>{HEX})"
    r"|domain\s*[=:]\s*\w+, device id\s*[=:]\s*(?P<id>0x[0-9a-f]+), "
    rf"fault address\s*[=:]\s*(?P<old>{HEX})(?:, flags\s*[=:]\s*(?P<oldflags>{HEX}))?)"
)
_STUCK = re.compile(r"AMD-Vi: (?P<what>Completion-Wait loop timed out|Command buffer timeout)")
_BY_DEVICE = frozenset({"IO_PAGE_FAULT", "RMP_PAGE_FAULT", "RMP_HW_ERROR"})
_INTERRUPT, _WRITE = 0x08, 0x20


def read_amd(entry: KernelLogEntry) -> IommuFault | None:
    """Read one entry; None if it is no AMD-Vi event."""
    xen = _XEN.search(entry.message)
    if xen:
        return _xen(entry, xen)
    stuck = _STUCK.search(entry.message)
    if stuck:
        return IommuFault(kind="iommu", entry=entry, vendor="amd", code=stuck["what"])
    match = _EVENT.search(entry.message)
    if not match:
        return None
    fields = dict(_FIELD.findall(match["rest"]))
    by_device = match["event"] in _BY_DEVICE
    device = fields.get("device") or (match["before"] if by_device else None)
    flags = number(fields.get("flags"))
    return IommuFault(
        kind="iommu",
        entry=entry,
        vendor="amd",
        device=normalise_pci_address(device) if device else None,
        code=match["event"],
        address=number(fields.get("address") or fields.get("gpa")),
        access=_access(flags) if by_device else None,
        driver=match["driver"] if by_device and "device" not in fields else None,
        domain=number(fields.get("domain")),
        pasid=number(fields.get("pasid")),
        flags=flags,
    )


def _xen(entry: KernelLogEntry, match: re.Match[str]) -> IommuFault:
    device = match["device"] or requester(int(match["id"], 16))
    flags = number(match["flags"] or match["oldflags"])
    return IommuFault(
        kind="iommu",
        entry=entry,
        vendor="amd",
        device=normalise_pci_address(device),
        code=match["event"],
        address=number(match["address"] or match["old"]),
        access=_access(flags),
        flags=flags,
    )


def _access(flags: int | None) -> str | None:
    """Read bit 5; the specification promises it only with bit 4 (page present), and it is set without."""
    if flags is None:
        return None
    if flags & _INTERRUPT:
        return "interrupt"
    return "write" if flags & _WRITE else "read"
