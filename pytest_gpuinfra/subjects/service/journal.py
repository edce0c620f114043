"""
What a unit logged since it was started: out-of-memory kills, lines that tell of an error, whether all of it is there.

Source: journalctl(1), `-o json`, cut down by probe_service.py to message, priority (syslog(3): 3 is an error)
and pid; systemd's own words for a kill (src/core/unit.c, 246 to 257); Python's traceback and logging; CUDA's, NCCL's
and torch's wordings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.wire import integer, load, text_lines

_KILL = re.compile(
    r"has been killed by the OOM killer|Failed with result 'oom-kill'|Out of memory: Killed process", re.IGNORECASE
)
_ERROR = re.compile(
    r"Traceback \(most recent call last\)|\bCUDA (?:error|out of memory)\b|OutOfMemoryError|\bNCCL WARN\b"
    r"|\b(?:ERROR|CRITICAL|FATAL)\b|Segmentation fault|core dumped|Main process exited, code="
)
_LEVEL = 3
_FIRST = 10
"""A program may write before systemd does."""
_TIMED_OUT = re.compile(r"\.service: (?:\S+ operation timed out|Watchdog timeout|State '\S+' timed out)")


@dataclass(frozen=True, slots=True)
class LogLine:
    """
    One line of a unit's log.

    Attributes:
        message: Text; what looks like a secret is masked.
        priority: syslog's level, 0 to 7; None if it has none.
    """

    message: str
    priority: int | None


@dataclass(frozen=True, slots=True)
class UnitJournal:
    """
    A unit's log since its last start.

    Attributes:
        lines: Shape (n >= 1,), oldest first.
        source: Where it comes from.
    """

    lines: tuple[LogLine, ...]
    source: str

    @property
    def memory_kills(self) -> tuple[str, ...]:
        """Lines that tell of a kill for want of memory."""
        return tuple(line.message for line in self.lines if _KILL.search(line.message))

    def unallowed(self, allow: Sequence[str]) -> tuple[LogLine, ...]:
        """Give the lines that none of some regular expressions allows."""
        allowed = [re.compile(pattern) for pattern in allow]
        return tuple(line for line in self.lines if not any(pattern.search(line.message) for pattern in allowed))

    def errors(self, allow: Sequence[str]) -> tuple[str, ...]:
        """Give the lines that tell of an error, and that none of some regular expressions allows."""
        return tuple(
            line.message
            for line in self.unallowed(allow)
            if _ERROR.search(line.message) or (line.priority is not None and line.priority <= _LEVEL)
        )

    @property
    def begins(self) -> bool:
        """Whether it goes back to the unit's start, of which systemd itself writes a line."""
        return any(re.match(r"Start(?:ing|ed) ", line.message) for line in self.lines[:_FIRST])

    @property
    def timed_out(self) -> bool:
        """Whether systemd gave up on the unit's start, stop, or watchdog."""
        return any(_TIMED_OUT.search(line.message) for line in self.lines)

    def after(self, start: UnitJournal) -> UnitJournal:
        """Put the log of the start before it; lines that are in both count once."""
        known = dict.fromkeys(start.lines)
        later = [line for line in self.lines if line not in known]
        return UnitJournal((*start.lines, *later), start.source)

    @property
    def last(self) -> str:
        """The last ten lines."""
        return "\n".join(line.message for line in self.lines[-10:])


def parse_unit_journal(reading: Reading) -> UnitJournal:
    """
    Read a unit's log.

    Raises:
        FactUnavailable: It cannot be read, or holds nothing since the start: systemd itself writes a line there.
        ParseError: A line is no entry.
    """
    remedy = "is there a journal, and may this user read it? (root, group systemd-journal, journald's limits)"
    text = reading.require_success(remedy=remedy)
    lines = []
    for number, line in enumerate(text_lines(text), 1):
        try:
            entry = load(line)
            message, priority = str(entry["message"]), entry["priority"]
        except (ValueError, KeyError, TypeError):
            raise ParseError(reading.source, number, line, "not an entry of a journal") from None
        lines.append(LogLine(message, integer(str(priority))))
    if not lines:
        raise FactUnavailable(reading.source, "it holds no line since the unit's start", remedy=remedy)
    return UnitJournal(tuple(lines), reading.source)
