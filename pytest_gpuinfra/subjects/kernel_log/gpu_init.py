"""
GPUs that did not start, or were lost, by the kernel log; most of these print no Xid.

Source: NVIDIA open-gpu-kernel-modules (drivers 515 to 610): kernel-open/nvidia/nv-pci.c and nv.c (probe,
RmInitAdapter, "fallen off the bus"), src/nvidia/src/kernel/gpu/fsp/kern_fsp.c, gsp/kernel_gsp.c and
gsp/arch/turing/kernel_gsp_tu102.c (WPR2, GFW_BOOT); Linux drivers/pci/pci.c pci_power_up().
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.line import READ, KernelLogEntry

_PCI = re.compile(r"\b(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b")
_PATTERNS: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (kind, code, re.compile(pattern, re.IGNORECASE))
    for kind, code, pattern in (
        ("off-bus", "off-bus", r"^(?!.*\bXid\b).*fallen off the bus|\bdevice lost from bus"),
        (
            "off-bus",
            "inaccessible",
            r"(?:can't|unable to) change power state from \S+ to D0.*(?:inaccessible)",
        ),
        ("init", "rm-init", r"NVRM:?.*\bRmInitAdapter failed!? ?(?:\((?P<status>[^)]*)\))?"),
        ("init", "rm-init", r"NVRM:?.*\brm_init_adapter failed"),
        ("init", "wpr2", r"NVRM:?.*unexpected WPR2 already up"),
        ("init", "gfw", r"NVRM:?.*failed to wait for GFW[_ ]?BOOT[^:]*: (?P<status>0x\w+|\([^)]*\))"),
        ("init", "gfw", r"NVRM:?.*failed to wait for GFW[_ ]?BOOT"),
        (
            "init",
            "fsp",
            r"NVRM:?(?!.*\bXid\b).*\b(?:k?fsp\w*)\b.*(?:timed? ?out|fail|error|cannot|could not)",
        ),
        (
            "init",
            "gsp",
            r"NVRM:?.*(?:cannot bootstrap riscv/gsp|Cannot initialize GSP firmware"
            r"|execute Booter (?:Load|Unload)"
            r"|\bGSP[- ]?(?:RM)?\b.*(?:heartbeat timed out|failed to (?:boot|start|load))"
            r"|kgspIsHeartbeatTimedOut|\b_?kgsp\w*: .*(?:failed|timed out))[^:]*(?:: (?P<status>0x\w+))?",
        ),
        ("init", "probe", r"NVRM:? The NVIDIA probe routine failed for (?P<count>\d{1,18}) device"),
        (
            "init",
            "probe",
            r"\bnvidia\b.*\bprobe (?:of|with driver nvidia)\b.*failed with error (?P<status>-\d{1,18})",
        ),
        (
            "init",
            "none",
            r"NVRM:?.*(?:None of the NVIDIA devices were initialized|No NVIDIA (?:GPU|devices) found)",
        ),
        ("init", "bar", r"NVRM:?.*This PCI I/O region assigned to your NVIDIA device is invalid"),
        ("init", "mapping", r"NVRM:?.*osInitNvMapping: \*\*\* Cannot attach gpu"),
        ("init", "unsupported", r"NVRM:?.*installed in this system is\s+(?:NVRM:\s+)?not supported by"),
        ("init", "unsupported", r"NVRM:?.*requires use of the NVIDIA (?:NVRM:\s+)?open kernel modules"),
        ("init", "vbios", r"NVRM:?.*Failed to copy vbios to system memory"),
        ("mismatch", "api", r"NVRM:?.*API mismatch"),
        ("notice", "not-probed", r"NVRM:? The NVIDIA probe routine was not called for (?P<count>\d{1,18}) device"),
        ("notice", "peermem", r"\bnvidia[-_]peermem\b.*\bERROR\b"),
    )
)
_NEEDLES = ("NVRM", "nvidia", "fallen off", "lost from bus", "power state")
"""One of these is in every such line; most entries hold none, and are not searched."""
_REGION = re.compile(
    rf"^\S+ (?P<pci>{_PCI.pattern}): BAR (?P<bar>[0-5])(?: \[(?P<new>[^\]]{{1,80}})\])?: "
    r"(?P<what>failed to assign|assigned)(?: \[(?P<old>[^\]]{1,80})\])?"
)
_GPU_ABOVE = re.compile(r"NVRM:? (?:The NVIDIA )?GPU\s+(?P<pci>[0-9a-fA-F:]+\.[0-7])")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInitFault(KernelFault):
    """
    One line about a GPU that did not start or went away.

    `code` is one of: off-bus, inaccessible, rm-init, wpr2, gfw, fsp, gsp, probe, none, bar, mapping, vbios,
    unsupported, api (library and kernel module differ), not-probed, peermem.

    Attributes:
        status: Status that the line shows, verbatim ("0x62:0x1a:1792", "0x55"); None without one.
    """

    status: str | None


def parse_gpu_init_faults(entries: Sequence[KernelLogEntry]) -> tuple[GpuInitFault, ...]:
    """
    Pick the lines about GPUs that did not start, or were lost, out of the kernel log.

    A sentence that the driver spread over several entries is put together again.

    Returns:
        One fault for each line, in log order; device None where the line names no GPU. Shape (n,).
    """
    faults = []
    for index, entry in enumerate(entries):
        if not any(needle in entry.message for needle in _NEEDLES):
            continue
        message = " ".join(entry.message[:READ].split())
        for kind, code, pattern in _PATTERNS:
            match = pattern.search(message)
            if match:
                groups = match.groupdict()
                faults.append(
                    GpuInitFault(
                        kind=kind,
                        entry=entry,
                        device=_device(message, entries[max(0, index - 3) : index], code),
                        code=code,
                        count=int(groups.get("count") or 1),
                        status=groups.get("status"),
                    )
                )
                break
    return tuple(faults)


def parse_unplaced_memory(entries: Sequence[KernelLogEntry]) -> tuple[KernelFault, ...]:
    """
    Pick the memory regions of devices out of the kernel log that found no place, and were not given one later.

    I/O ports, ROMs and virtual functions' regions are left out: they are often without one, and nobody misses them.

    Returns:
        One fault of kind "bar" for each region, code "BAR1"; whoever is no GPU may well do without. Shape (n,).

    Source: Linux drivers/pci/setup-res.c pci_assign_resource(): "BAR 1 [mem size 0x...]: failed to assign", up to 6.9
    "BAR 1: failed to assign [mem size 0x...]".
    """
    if not any("failed to assign" in entry.message for entry in entries):
        return ()
    found: dict[tuple[str, str], KernelFault] = {}
    for entry in entries:
        match = _REGION.search(entry.message) if "assign" in entry.message else None
        if not match:
            continue
        device = normalise_pci_address(match["pci"])
        if match["what"] == "assigned":
            found.pop((device, match["bar"]), None)
        elif (match["new"] or match["old"] or "").startswith("mem"):
            fault = KernelFault(kind="bar", entry=entry, device=device, code=f"BAR{match['bar']}")
            found[device, match["bar"]] = fault
    return tuple(found.values())


def driver_loaded_at_s(entries: Iterable[KernelLogEntry]) -> float | None:
    """Give when the NVIDIA driver was loaded, seconds since boot; None if the log does not tell."""
    return next((entry.time_s for entry in entries if "NVRM: loading NVIDIA" in entry.message), None)


def _device(message: str, before: Sequence[KernelLogEntry], code: str) -> str | None:
    own = _PCI.search(message)
    if own:
        return normalise_pci_address(own[0])
    if code not in ("off-bus", "unsupported", "bar"):
        return None
    for entry in reversed(before):
        above = _GPU_ABOVE.search(entry.message)
        if above and _PCI.fullmatch(above["pci"]):
            return normalise_pci_address(above["pci"])
    return None
