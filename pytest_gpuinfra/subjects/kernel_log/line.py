"""
One entry of the kernel log, and how to take the prefixes of any log tool off a line.

Source: printk's own "[   12.345678]", with the caller under CONFIG_PRINTK_CALLER; dmesg(1) with -T, -d, -e,
-H, -x, -r and --time-format iso; journalctl(1) -o short, short-precise, short-iso, short-full,
short-monotonic, short-unix; rsyslog's traditional and RFC 3339 file formats; talosctl(1) dmesg.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

READ = 600
"""Letters of a message that patterns with gaps look at: the kernel's own lines are shorter than 1,024."""
_DATE = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
_LEVEL = rf"(?:{'|'.join(_LEVELS)})"

_PREFIX = re.compile(
    "|".join(
        (
            r"<(?P<raw>\d{1,3})>",
            rf"(?:kern|user|mail|daemon|auth|syslog|local\d)\s*:(?P<level>{_LEVEL})\s*:\s*",
            rf"(?:[\w.-]+: )?kern:\s+(?P<talos>{_LEVEL})(?:ing)?: \[{_DATE}\]:\s*",
            r"\[\s*(?P<time>\d{1,18}\.\d+)(?:\s*<[\s\d.]*>)?\]\s*",
            r"\[\s*[TC]\d+\]\s*",
            r"\[\s*\+\d+\.\d+\]\s*",
            rf"\[{_MONTH}\s*\d+ \d\d:\d\d(?::\d\d)?(?:[.,]\d+)?\]\s*",
            rf"\[{_DAY} {_MONTH}\s+\d+ {_CLOCK} \d{{4}}\]\s*",
            rf"\[{_DATE}\]\s*",
            r"\[\.\.\.\]\s*",
            rf"(?:{_DAY} )?{_DATE}(?: [A-Z]{{2,5}})?\s+",
            rf"(?:{_DAY} )?{_MONTH}\s+\d{{1,2}}(?: \d{{4}})? {_CLOCK}(?: \d{{4}})?\s+",
            r"\d{10}\.\d+\s+",
            r"(?:[\w.-]+\s+)?kernel(?:\[\d+\])?:\s?",
        )
    )
)


@dataclass(frozen=True, slots=True)
class KernelLogEntry:
    """
    One message of the kernel log.

    Attributes:
        message: Text, without any time stamp; a message of several lines keeps its newlines.
        sequence: Kernel's record number, from 0 at boot; None where the source does not tell.
        time_s: Seconds since boot; None where the source does not tell.
        priority: 0 (emergency) to 7 (debug); None where the source does not tell.
        line: Line of the source that it begins at, from 1.
    """

    message: str
    sequence: int | None = None
    time_s: float | None = None
    priority: int | None = None
    line: int = 0


def split_kernel_line(text: str, *, line: int = 0) -> KernelLogEntry:
    """
    Take time stamps, host name, tag and level off one line of a kernel log, in whatever order they stand.

    A line without any of these is all message.
    """
    rest = text.rstrip("\r\n").lstrip()
    time_s: float | None = None
    priority: int | None = None
    while match := _PREFIX.match(rest):
        rest = rest[match.end() :]
        if match["time"]:
            time_s = float(match["time"])
        if match["raw"]:
            priority = int(match["raw"]) & 7
        if match["level"] or match["talos"]:
            priority = _LEVELS.index(match["level"] or match["talos"])
    return KernelLogEntry(rest, None, time_s, priority, line)
