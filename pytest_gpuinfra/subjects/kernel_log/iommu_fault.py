"""One report of an IOMMU, whoever built it."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault

HEX = r"(?:0x)?[0-9a-fA-F]+"
"""A number that is hexadecimal with or without 0x, as the IOMMU drivers write addresses."""

PCI = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
"""A PCI address, with or without its domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IommuFault(KernelFault):
    """
    One report of an IOMMU.

    Attributes:
        vendor: "amd", "intel", "arm"; of the IOMMU, not of the device.
        driver: Driver that the device was bound to; None if the entry does not tell.
        domain: Domain id; None if the entry does not tell.
        pasid: Process address space id; None without one.
        flags: AMD's event flags, verbatim; None elsewhere.
        reason: Intel's reason as it was written ("05", "0x71"); None elsewhere.
        text: What the logger says of the reason; "" if nothing.
        suppressed: How many of `count` the rate limit held back. They carry no device:
            they are counted to the report next to them.
    """

    vendor: str
    driver: str | None = None
    domain: int | None = None
    pasid: int | None = None
    flags: int | None = None
    reason: str | None = None
    text: str = ""
    suppressed: int = 0


def number(text: str | None) -> int | None:
    """Read a hexadecimal number; None for no text."""
    return int(text, 16) if text else None


def requester(identity: int) -> str:
    """Give the PCI address behind a requester id: bus, device and function in 16 bits, of domain 0."""
    return f"0000:{identity >> 8 & 0xFF:02x}:{identity >> 3 & 0x1F:02x}.{identity & 7}"
