"""Progress while hosts are captured: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import pytest
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from pytest_gpuinfra.capture.many import Standing
from pytest_gpuinfra.host.host import GpuHost, aliases_text
from pytest_gpuinfra.report.escaped import VisibleConsole, readable
from pytest_gpuinfra.session.session import Session

_LINE_EVERY_S = 10.0


class CaptureProgress:
    """Shows how many hosts have answered and how many failed to, and names those that take long."""

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._session = session
        self._failed: list[str] = []
        self._writer = config.get_terminal_writer()
        self._quiet = config.get_verbosity() < -1
        self._live: Progress | None = None
        self._last_line = time.monotonic()
        self._lines = session.factory.on_progress
        self._told = ""
        self._asked = [alias for alias, host in session.selected.items() if host.way != "replay"]
        if self._writer.hasmarkup and self._asked and not self._quiet:
            self._live = Progress(
                SpinnerColumn(),
                TextColumn("capturing"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=False),
                console=VisibleConsole(file=self._writer._file, force_terminal=True),
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._task = self._live.add_task("", total=len(self._session.selected))
            self._session.factory.on_progress = self._note  # a line of its own would tear the live one
        elif len(self._asked) > 1 and not self._quiet:
            self._writer.line(f"gpuinfra: capturing {len(self._asked)} hosts: {aliases_text(self._asked)}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._session.factory.on_progress = self._lines

    def _note(self, line: str) -> None:
        """Take down what a host that is waited for lacks."""
        self._told = readable(line)

    def done(self, host: GpuHost) -> None:
        """Take down that a host has answered, or failed to."""
        if host.capture.error:
            self._failed.append(host.alias)

    def look(self, standing: Standing) -> None:
        """Show how far the captures are; on no terminal, a line every ten seconds."""
        if self._live is not None:
            self._live.update(self._task, completed=standing.done, description=self._words(standing))
        elif self._asked and not self._quiet and time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._last_line = time.monotonic()
            words = self._words(standing)
            done = f"gpuinfra: {standing.done} of {len(self._session.selected)} hosts done"
            self._writer.line(f"{done}; {words}" if words else done)

    def _words(self, standing: Standing) -> str:
        slow = [f"{alias} ({seconds:.0f} s)" for alias, seconds in standing.slow_s.items()]
        words = [f"{len(self._failed)} failed: {aliases_text(self._failed)}"] if self._failed else []
        if slow:
            words.append(f"slow: {aliases_text(slow)}")
        if self._told and standing.running_s:
            words.append(self._told)
        elif standing.running_s and not standing.waiting and not slow:
            words.append(f"waiting for {aliases_text(list(standing.running_s))}")
        return "; ".join(words)
