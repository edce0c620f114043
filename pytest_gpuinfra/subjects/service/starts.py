"""
When a unit was started, by its journal: again and again, whoever starts it, or once.

systemd's NRestarts counts its own restarts only: of a timer, a watchdog script or a supervisor it stays 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.wire import integer

YOUNG_S = 1800.0
"""Seconds within which a unit that is started again and again has been started."""
_RUNS = 4
"""Runs that must be alike before they are a loop."""


@dataclass(frozen=True, slots=True)
class StartTimes:
    """
    Starts of a unit.

    Attributes:
        at_s: Seconds from boot to each of the last starts, oldest first. Shape (n,).
        now_s: Seconds from boot to the look.
    """

    at_s: tuple[float, ...]
    now_s: float

    @property
    def loop_s(self) -> float | None:
        """Seconds from start to start, where the last runs were short and alike, and this one is young; else None."""
        runs = [later - first for first, later in zip(self.at_s, self.at_s[1:], strict=False)][-_RUNS:]
        if len(runs) < _RUNS or max(runs) > YOUNG_S or max(runs) > 1.5 * min(runs) + 5:
            return None
        return sum(runs) / len(runs) if self.now_s - self.at_s[-1] <= 2 * max(runs) else None

    def __str__(self) -> str:
        if not self.at_s:
            return "no start in the journal"
        return f"{len(self.at_s)} starts in the journal, the last {self.now_s - self.at_s[-1]:.0f} s ago"


def parse_microseconds(reading: Reading, line: str) -> float:
    """
    Give the seconds of one line of starts.

    Raises:
        ParseError: It is no number.
    """
    value = integer(line)
    if value is None:
        raise ParseError(reading.source, 0, line, "not the time of a start")
    return value / 1e6
