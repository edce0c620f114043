"""
The kernel log as plain text: dmesg, journalctl in a short format, or a file of syslog's.

Source: dmesg(1) indents the further lines of a message and gives them no time stamp; journalctl(1) writes
notes between dashes ("-- Reboot --", "-- Boot ID --", "-- No entries --").
"""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry, split_kernel_line
from pytest_gpuinfra.wire import text_lines

REMEDY = "reading the kernel log needs root here (kernel.dmesg_restrict): connect as root or use --gpu-sudo"

_NOTE = re.compile(r"-- .+ --$|-- (?:Logs|Journal) begins? at ")
_NEW_BOOT = re.compile(r"-- (?:Reboot|Boot [0-9a-f]{32}.*) --$")
_KNOWN = re.compile(
    r"(?:NVRM|nvidia[\w-]*|AMD-Vi|DMAR|dmar\w*|iommu|amd_iommu\w*|arm-smmu\S*|amdgpu|pcieport|pci|EDAC|mce|kvm\w*|ccp"
    r"|SEV-SNP|ACPI|Linux version|Out of memory|Memory cgroup out of memory)\b:? +\S.{3}"
    r"|DMAR:\[|\(XEN\) \S|\[drm\W|(?:\{\d+\})?\[Hardware Error\]: |\w+: \d+ callbacks suppressed"
    r"|[\w.-]+ [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]: "
)
_COMPLAINT = re.compile(
    r"(?:\S+: )?(?:line \d+: |\d+: )?(?:/\S*/)?"
    r"(?:dmesg|journalctl|cat|sudo|doas|head|tail|grep|sh|bash|zsh|ssh|su)(?:\[\d+\])?: "
    r"|Hint: You are currently not seeing messages|\s+(?:Users in|Pass -q to)|No journal files were "
    r"|Failed to (?:open|get|search|iterate|determine) |Permission denied|Operation not permitted",
    re.IGNORECASE,
)


def parse_log_text(text: str, source: str) -> tuple[KernelLogEntry, ...]:
    """
    Read lines of a kernel log, whatever tool wrote them.

    Returns:
        Entries of the last boot in the text, in log order; a line that is indented and has no time stamp
        belongs to the message above it. Shape (n,).

    Raises:
        FactUnavailable: The text is not a log but a tool's complaint that it could read none.
        ParseError: Nothing in the text shows that it is a kernel log.
    """
    entries: list[KernelLogEntry] = []
    complaints: list[str] = []
    recognised = False
    for number, line in enumerate(text_lines(text), 1):
        if _NEW_BOOT.match(line):
            entries.clear()
        if not line.strip() or _NOTE.match(line):
            continue
        if _COMPLAINT.match(line):
            complaints.append(line.strip())
            continue
        entry = split_kernel_line(line, line=number)
        stamped = entry.message != line.lstrip()
        if line[0].isspace() and not stamped and entries:
            joined = f"{entries[-1].message}\n{entry.message}"
            entries[-1] = replace(entries[-1], message=joined)
            continue
        if entry.message.startswith("Linux version ") and entries and not _early(entries):
            entries.clear()
        entries.append(entry)
        recognised = recognised or stamped or bool(_KNOWN.match(entry.message))
    if complaints and not entries:
        raise FactUnavailable(source, complaints[0], remedy=REMEDY)
    if entries and not recognised:
        raise ParseError(source, entries[0].line, entries[0].message, "not a kernel log")
    return tuple(entries)


def _early(entries: list[KernelLogEntry]) -> bool:
    """Whether these stand before "Linux version" in the same boot, as microcode's and ARM's do."""
    return len(entries) < 8 and all(not entry.time_s for entry in entries)
