"""
Faults of AMD GPUs in the kernel log: RAS counts, resets, hung rings, memory faults.

Source: Linux drivers/gpu/drm/amd/amdgpu (5.4 to 6.17): amdgpu_ras.c (counts by block; "in total" repeats
the sum, "no" and 0 are an all-clear), amdgpu_device.c (reset; "MODE1 reset" alone is how a card is taken over),
amdgpu_job.c (ring timeout), gmc_v9_0.c.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry

_PCI = re.compile(r"\b[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b")
_RAS = re.compile(
    r"(?P<count>\d{1,18}) (?:new )?(?P<what>uncorrectable|correctable|deferred) hardware errors detected in "
    r"(?P<total>total in )?(?P<block>\w+) block"
)
_EVENTS = tuple(
    (code, re.compile(pattern, re.IGNORECASE))
    for code, pattern in (
        ("poison", r"poison (?:is )?(?:consumed|consumption)"),
        ("ring timeout", r"\bring \S+ timeout"),
        ("reset failed", r"GPU reset\S* (?:failed|end with ret)|GPU recovery failed|ASIC reset failed"),
        ("reset", r"GPU reset(?:\(\d+\))? (?:begin|succeeded)"),
        ("page fault", r"\[\w*hub\d*\].*page fault"),
        ("init failed", r"amdgpu.*Fatal error during GPU init|amdgpu.*probe .*failed with error"),
    )
)


def parse_amd_gpu_faults(entries: Sequence[KernelLogEntry]) -> tuple[KernelFault, ...]:
    """
    Pick amdgpu's faults out of the kernel log.

    Returns:
        One fault for each line, in log order, of kind "ras": code "uncorrectable umc" and the like, or
        "poison", "ring timeout", "reset", "reset failed", "page fault"; of kind "init": "init failed". Shape (n,).
    """
    return tuple(fault for entry in entries if "amdgpu" in entry.message and (fault := _read(entry)))


def _read(entry: KernelLogEntry) -> KernelFault | None:
    address = _PCI.search(entry.message)
    device = normalise_pci_address(address[0]) if address else None
    counts = _RAS.search(entry.message)
    if counts:
        if int(counts["count"]) == 0 or counts["total"]:
            return None
        code = f"{counts['what']} {counts['block'].lower()}"
        return KernelFault(kind="ras", entry=entry, device=device, code=code, count=int(counts["count"]))
    for code, pattern in _EVENTS:
        if pattern.search(entry.message):
            return KernelFault(kind="init" if code == "init failed" else "ras", entry=entry, device=device, code=code)
    return None
