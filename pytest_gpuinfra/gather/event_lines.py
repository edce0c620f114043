"""Events of a program on the target as they arrive: those to keep, and those that only say what it is at."""

from __future__ import annotations

from collections.abc import Callable

from pytest_gpuinfra.errors import ProbeError
from pytest_gpuinfra.subjects.transfers.program import parse_progress
from pytest_gpuinfra.wire import Lines, WireError

KEPT_MAX = 8 << 20
"""Characters of one program's events, which are ASCII; one of an all-reduce over eight GPUs has 20,000 to 80,000."""


class EventLines:
    """
    Standard output of one program, line by line.

    Args:
        name: Of the host or group, for messages.
        on_progress: Called with a line whenever the program begins something.

    Attributes:
        lines: Events, progress left out. The end of the output belongs to it only if it ended its line.
    """

    def __init__(self, name: str, on_progress: Callable[[str], None]) -> None:
        self.lines: list[str] = []
        self._name = name
        self._on_progress = on_progress
        self._coming = Lines()
        self._kept = 0

    def feed(self, stream: str, text: str) -> None:
        """
        Take a piece of output.

        Raises:
            ProbeError: A line, or all of them, are longer than those of any program.
        """
        if stream != "stdout":
            return
        try:
            for line in self._coming.feed(text):
                self._take(line)
        except WireError as error:
            raise ProbeError(f"{self._name}: the program prints what is no event: {error}") from None

    def _take(self, line: str) -> None:
        if not line.isascii():
            raise WireError(f"holds other than ASCII: {line[:100]!r}")
        progress = parse_progress(line)
        if progress is not None:
            counted = "" if progress.done is None else f" ({progress.done}/{progress.total})"
            self._on_progress(f"{self._name}: {progress.text}{counted}")
            return
        self._kept += len(line) + 1
        if self._kept > KEPT_MAX:
            raise WireError(f"holds more than {KEPT_MAX >> 20} MiB of events")
        self.lines.append(line)
