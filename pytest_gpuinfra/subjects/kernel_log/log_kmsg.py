"""
Records of /dev/kmsg: "priority,sequence,microseconds,flags[,...];message".

Source: Linux Documentation/ABI/testing/dev-kmsg (kernel 6.12).
Lines that begin with a blank hold properties of the record above (SUBSYSTEM=, DEVICE=), not text.
Bytes that cannot be printed are written as \\xHH, a newline within a message as \\x0a.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry

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
