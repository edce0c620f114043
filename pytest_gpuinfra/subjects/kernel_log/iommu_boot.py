"""
What the kernel said of its IOMMU when it booted: default domain, flushing, options that it did not know.

Source: Linux drivers/iommu/iommu.c iommu_subsys_init() ("Default domain type: Translated", with "(set via kernel
command line)" behind it where that is so; "DMA domain TLB invalidation policy: lazy mode"), kernel 5.8 to 6.17;
drivers/iommu/amd/init.c and drivers/iommu/intel/iommu.c ("Unknown option - 'on'").
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry

_DOMAIN = re.compile(r"iommu: Default domain type: (?P<word>\w+)(?P<line> \(set via kernel command line\))?")
_POLICY = re.compile(r"iommu: DMA domain TLB invalidation policy: (?P<word>\w+) mode")
_UNKNOWN = re.compile(r"(?P<vendor>AMD-Vi|DMAR): Unknown option - '(?P<word>[^']*)'")


@dataclass(frozen=True, slots=True)
class IommuBoot:
    """
    The kernel's own words of its default at boot; a group may have another type by now.

    Attributes:
        default_domain: "Passthrough" or "Translated", verbatim; None if the log does not tell.
        by_command_line: Whether the command line set it; None if the log does not tell.
        policy: "lazy" or "strict" flushing, verbatim; None if the log does not tell.
        unknown_options: Options that the vendor's driver refused ("amd_iommu=on"), in log order. Shape (n,).
    """

    default_domain: str | None
    by_command_line: bool | None
    policy: str | None
    unknown_options: tuple[str, ...]


def parse_iommu_boot(entries: Iterable[KernelLogEntry]) -> IommuBoot:
    """Pick what the kernel said of its IOMMU at boot out of its log."""
    domain = policy = None
    unknown = []
    for entry in entries:
        domain = _DOMAIN.search(entry.message) or domain
        policy = _POLICY.search(entry.message) or policy
        option = _UNKNOWN.search(entry.message)
        if option:
            name = "amd_iommu" if option["vendor"] == "AMD-Vi" else "intel_iommu"
            unknown.append(f"{name}={option['word']}")
    return IommuBoot(
        default_domain=domain["word"] if domain else None,
        by_command_line=bool(domain["line"]) if domain else None,
        policy=policy["word"] if policy else None,
        unknown_options=tuple(unknown),
    )
