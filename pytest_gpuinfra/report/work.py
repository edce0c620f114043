"""Progress of long work on a host: waiting for an endpoint, GPU programs."""

from __future__ import annotations

import time

import pytest

from pytest_gpuinfra.report.escaped import readable

EVERY_S = 5.0


class WorkProgress:
    """
    Writes a line when long work begins something, but not more often than people read.

    Args:
        config: The session's; its terminal is written to, also while pytest captures.
        every_s: Seconds between two lines; the first is written at once.
    """

    def __init__(self, config: pytest.Config, every_s: float = EVERY_S) -> None:
        self._config = config
        self._every_s = every_s
        self._last = 0.0

    def __call__(self, line: str) -> None:
        """Take one line."""
        now = time.monotonic()
        reporter: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or now - self._last < self._every_s or self._config.get_verbosity() < 0:
            return
        self._last = now
        reporter.ensure_newline()
        reporter.write_line(readable(f"gpuinfra: {line}"))
