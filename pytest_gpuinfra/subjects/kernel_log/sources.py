"""
Sources of the kernel log: records of /dev/kmsg, the journal's JSON, plain text of any tool.

/dev/kmsg: "priority,sequence,microseconds,flags[,...];message", Linux Documentation/ABI/testing/dev-kmsg (6.12).
Lines that begin with a blank hold properties of the record above (SUBSYSTEM=, DEVICE=), not text.
Bytes that cannot be printed are written as \\xHH, a newline within a message as \\x0a.

The journal: `journalctl -k -b 0 -o json`, one JSON object a line; systemd.journal-fields(7), journalctl(1), systemd's
JOURNAL_EXPORT_FORMATS (257): a field is a string, an array of byte values if it is not printable UTF-8, null if it is
too long, an array of these if it repeats.

Text: dmesg(1) indents the further lines of a message and gives them no time stamp; journalctl(1) writes notes between
dashes ("-- Reboot --", "-- Boot ID --", "-- No entries --").
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry, split_kernel_line
from pytest_gpuinfra.wire import integer, load, text_lines

_RECORD = re.compile(
    r"(?P<priority>\d{1,5}),(?P<sequence>\d{1,18}),(?P<us>\d{1,18}),(?P<flags>[^,;]*)(?:,[^;]*)?;(?P<text>.*)"
)
_ESCAPED = re.compile(r"(?:\\x[0-9a-f]{2})+")


def is_kmsg(text: str) -> bool:
    """Tell whether a text looks like /dev/kmsg records rather than a log file."""
    return bool(_RECORD.match(text.lstrip("\n")))


def parse_kmsg(text: str, source: str) -> tuple[KernelLogEntry, ...]:
    """
    Read records of /dev/kmsg.

    Returns:
        Entries in log order; fragments of a continued line (flag "+") are joined. Shape (n,).

    Raises:
        ParseError: A line is neither a record nor a property of one.
    """
    entries: list[KernelLogEntry] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line or (line[0] == " " and entries):
            continue
        match = _RECORD.fullmatch(line)
        if not match:
            raise ParseError(source, number, line, "not a /dev/kmsg record")
        message = _ESCAPED.sub(_unescape, match["text"])
        if "+" in match["flags"] and entries:
            entries[-1] = replace(entries[-1], message=entries[-1].message + message)
            continue
        entries.append(
            KernelLogEntry(
                message,
                sequence=int(match["sequence"]),
                time_s=int(match["us"]) / 1e6,
                priority=int(match["priority"]) & 7,
                line=number,
            )
        )
    return tuple(entries)


def missing_sequences(entries: tuple[KernelLogEntry, ...]) -> str:
    """Name the first hole in the records' numbers; "" if there is none."""
    numbers = [entry.sequence for entry in entries if entry.sequence is not None]
    for before, after in pairwise(numbers):
        if after > before + 1:
            return f"records {before + 1} to {after - 1} are missing"
    return ""


def _unescape(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("\\x", "")).decode("utf-8", "replace")


TOO_LONG = "(too long: journalctl gives null)"
"""Stands for a message that the journal has and does not show."""


def parse_journal(text: str, source: str) -> tuple[KernelLogEntry, ...]:
    """
    Read the journal's JSON lines.

    Returns:
        Entries of the youngest boot that is in the text, in log order. Shape (n,).

    Raises:
        ParseError: A line is no JSON object, or a message has a shape that the format does not know.
    """
    boots: list[str] = []
    entries: list[tuple[str, KernelLogEntry]] = []
    for number, line in enumerate(text_lines(text), 1):
        if not line.strip():
            continue
        try:
            record = load(line)
        except ValueError:
            raise ParseError(source, number, line, "not a line of JSON") from None
        if not isinstance(record, dict):
            raise ParseError(source, number, line, "not a JSON object")
        boot = str(record.get("_BOOT_ID", ""))
        if boot not in boots:
            boots.append(boot)
        message = _message(record.get("MESSAGE"), source, number, line)
        priority = _number(record.get("PRIORITY"))
        entries.append(
            (
                boot,
                KernelLogEntry(
                    message,
                    time_s=_seconds(record),
                    priority=None if priority is None else priority & 7,
                    line=number,
                ),
            )
        )
    return tuple(entry for boot, entry in entries if boot == boots[-1])


def _message(value: object, source: str, number: int, line: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return TOO_LONG
    if isinstance(value, list) and value:
        if all(isinstance(item, int) and 0 <= item < 256 for item in value):
            return bytes(value).decode("utf-8", "replace")
        return "\n".join(_message(item, source, number, line) for item in value)
    raise ParseError(source, number, line, "a MESSAGE of unknown shape")


def _seconds(record: dict[str, object]) -> float | None:
    """Kernel's own time stamp; not the time at which the journal stored it."""
    microseconds = _number(record.get("_SOURCE_MONOTONIC_TIMESTAMP"))
    return None if microseconds is None else microseconds / 1e6


def _number(value: object) -> int | None:
    return integer(value) if isinstance(value, str) else None


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
