"""
The kernel log of this boot, from the best source that could be read.

/dev/kmsg gives every record with its number; the journal has what the ring buffer has already overwritten;
dmesg is the last resort. A log that nobody could read is never an empty one.

Source: Linux Documentation/ABI/testing/dev-kmsg, systemd.journal-fields(7), dmesg(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pytest_gpuinfra.capture.reading import Node, Reading
from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.masking import first_of, last_of
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry, split_kernel_line
from pytest_gpuinfra.subjects.kernel_log.sources import (
    REMEDY,
    TOO_LONG,
    is_kmsg,
    missing_sequences,
    parse_journal,
    parse_kmsg,
    parse_log_text,
)

__all__ = ["KernelLog", "KernelLogEntry", "parse_kernel_log", "split_kernel_line"]

_FIRST_WORDS = ("Linux version ", "Booting Linux on physical CPU")
_MISSED = re.compile(r"Missed \d+ kernel messages$|/dev/kmsg buffer overrun, some messages lost")
"""journald's words (journald-kmsg.c) where the kernel was faster than it."""
_DROPPED = re.compile(r"\*\* (\d+) printk messages dropped \*\*")


@dataclass(frozen=True, slots=True)
class KernelLog:
    """
    What the kernel said since it booted.

    Attributes:
        entries: In log order. Shape (n >= 1,).
        source: Where they come from: "/dev/kmsg", "journalctl ...", or one after the other.
        gap: What is missing, in words; "" if the log reaches back to the boot without a hole.
    """

    entries: tuple[KernelLogEntry, ...]
    source: str
    gap: str

    @property
    def complete(self) -> bool:
        """Whether it reaches back to the beginning of this boot, without a known hole."""
        return not self.gap

    @property
    def last_sequence(self) -> int | None:
        """Number of the youngest record, to read on from; None if the source has no numbers."""
        return next((entry.sequence for entry in reversed(self.entries) if entry.sequence is not None), None)

    def after(self, sequence: int) -> tuple[KernelLogEntry, ...]:
        """
        Give the entries younger than a record.

        Raises:
            FactUnavailable: The source has no record numbers, or that record and later ones are overwritten.
        """
        numbered = [entry for entry in self.entries if entry.sequence is not None]
        if not numbered:
            raise FactUnavailable(self.source, "no record numbers, so old and new cannot be told apart", remedy=REMEDY)
        if (numbered[0].sequence or 0) > sequence + 1:
            raise FactUnavailable(self.source, f"records after {sequence} are overwritten already")
        return tuple(entry for entry in numbered if (entry.sequence or 0) > sequence)

    def __iter__(self) -> Iterator[KernelLogEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def parse_kernel_log(readings: Node) -> KernelLog:
    """
    Read this boot's kernel log.

    Args:
        readings: Any of "kmsg" (/dev/kmsg records), "journal" (`journalctl -k -b 0 -o json`), "dmesg" (text).

    Returns:
        Log from the records, preceded by the journal's where the ring buffer has lost its beginning;
        else from the journal, else from dmesg.

    Raises:
        FactUnavailable: None of them gave a single entry: nobody knows what the kernel said.
        ParseError: A source was read and is not what it should be.
    """
    logs: dict[str, KernelLog] = {}
    failures: list[str] = []
    for name in ("kmsg", "journal", "dmesg"):
        if name not in readings or (name == "dmesg" and logs):
            continue
        try:
            logs[name] = _read(name, readings[name])
        except FactUnavailable as error:
            failures.append(error.reason)
    if "kmsg" in logs and "journal" in logs and not logs["kmsg"].complete:
        return _joined(logs["journal"], logs["kmsg"])
    for log in logs.values():
        return log
    raise FactUnavailable("kernel log", "; ".join(failures) or "no source was asked for", remedy=REMEDY)


def _read(name: str, reading: Reading) -> KernelLog:
    text = reading.require(remedy=REMEDY) if name == "kmsg" else reading.require_success(remedy=REMEDY)
    if name == "kmsg" or (name == "dmesg" and is_kmsg(text)):
        entries = parse_kmsg(text, reading.source)
    elif name == "journal" and text.lstrip().startswith("{"):
        entries = parse_journal(text, reading.source)
    else:
        entries = parse_log_text(text, reading.source)
    if not entries:
        said = f"it is empty: {last_of(reading.stderr.strip(), 200)}" if reading.stderr.strip() else "it is empty"
        raise FactUnavailable(reading.source, said, remedy=REMEDY)
    return KernelLog(entries, reading.source, _gap(entries))


def _gap(entries: tuple[KernelLogEntry, ...]) -> str:
    dropped = next((match for entry in entries if (match := _DROPPED.search(entry.message))), None)
    if dropped:
        return f"{dropped[1]} messages were dropped by the console"
    first = entries[0]
    if first.sequence != 0 and not any(entry.message.startswith(_FIRST_WORDS) for entry in entries[:8]):
        number = "" if first.sequence is None else f" (record {first.sequence})"
        return f"the beginning of this boot is missing; the first entry{number} is {first_of(first.message, 60)!r}"
    if any(_MISSED.match(entry.message) for entry in entries):
        return "the kernel was faster than the journal, which has missed messages"
    if any(TOO_LONG in entry.message for entry in entries):
        return "the journal does not show a message that is too long; ask for it with journalctl --all"
    return missing_sequences(entries)


def _joined(older: KernelLog, newer: KernelLog) -> KernelLog:
    """Put the journal's entries from before the ring buffer's first record in front of the records."""
    begin = newer.entries[0].time_s
    if begin is None:
        return newer
    before = tuple(
        entry
        for entry in older.entries
        if _MISSED.match(entry.message) or (entry.time_s is not None and entry.time_s < begin)
    )
    entries = before + newer.entries
    return replace(newer, entries=entries, source=f"{older.source}, then {newer.source}", gap=_gap(entries))
