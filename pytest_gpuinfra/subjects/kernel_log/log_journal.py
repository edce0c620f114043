"""
Kernel messages from the journal: `journalctl -k -b 0 -o json`, one JSON object a line.

Source: systemd.journal-fields(7), journalctl(1), systemd's JOURNAL_EXPORT_FORMATS (257): a field is a string,
an array of byte values if it is not printable UTF-8, null if it is too long, an array of these if it repeats.
"""

from __future__ import annotations

from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry
from pytest_gpuinfra.wire import integer, load, text_lines

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
