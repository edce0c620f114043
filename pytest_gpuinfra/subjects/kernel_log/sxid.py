"""
SXid reports of NVSwitches in the kernel log.

Source: NVIDIA open-gpu-kernel-modules, src/common/nvswitch/kernel/inc/error_nvswitch.h:
"nvidia-nvswitchN: SXid (PCI:0000:c1:00.0): CODE, Fatal|Non-fatal, TEXT"; lines with "Severity" or "Data" in
that place give more of the report above. NVIDIA Fabric Manager User Guide, appendix D, for the words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry

_SXID = re.compile(
    r"(?<![\w-])(?P<switch>[\w-]*nvswitch\d*):? SXid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): "
    r"(?P<code>\d{1,18})(?:,\s*(?P<rest>.*))?$"
)
_MORE = re.compile(r"(?:Severity \d|Data \{)")
_LINK = re.compile(r"\bLink (-?\d+)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class SXid(KernelFault):
    """
    One report of an NVSwitch.

    Attributes:
        switch: The driver's name for the switch ("nvidia-nvswitch0").
        severity: The driver's word, verbatim ("Fatal", "Non-fatal"); None if the line has none.
        link: Link of the switch; None if the line names none.
        text: The rest of the line.
    """

    switch: str
    severity: str | None
    link: int | None
    text: str


def parse_sxids(entries: Sequence[KernelLogEntry]) -> tuple[KernelFault, ...]:
    """
    Pick the SXid reports out of the kernel log.

    Returns:
        One SXid for each report, in log order; a line that says SXid and is no report has kind "unreadable".
        Shape (n,).
    """
    return tuple(fault for entry in entries if "SXid" in entry.message and (fault := _read(entry)))


def _read(entry: KernelLogEntry) -> KernelFault | None:
    match = _SXID.search(" ".join(entry.message.split()))
    if not match:
        return KernelFault(kind="unreadable", entry=entry) if "nvswitch" in entry.message else None
    rest = match["rest"] or ""
    if _MORE.match(rest):
        return None
    word, _, text = rest.partition(",")
    severity = word.strip() if word.strip().lower().replace("-", "") in ("fatal", "nonfatal") else None
    link = _LINK.search(rest)
    try:
        device = normalise_pci_address(match["pci"])
    except ValueError:
        return KernelFault(kind="unreadable", entry=entry)
    return SXid(
        kind="sxid",
        entry=entry,
        device=device,
        code=int(match["code"]),
        switch=match["switch"],
        severity=severity,
        link=int(link[1]) if link else None,
        text=text.strip() if severity else rest,
    )
