"""Progress while hosts are captured: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import pytest
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from pytest_gpuinfra.host import GpuHost, aliases_text
from pytest_gpuinfra.run import Run


class CaptureProgress:
    """Shows which hosts have answered and which are still open."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self._run = run
        self._open = [alias for alias, host in run.selected.items() if host.way != "replay"]
        self._writer = config.get_terminal_writer()
        self._quiet = config.get_verbosity() < -1
        self._live: Progress | None = None
        if self._writer.hasmarkup and self._open and not self._quiet:
            self._live = Progress(
                SpinnerColumn(),
                TextColumn("capturing"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
                console=Console(file=self._writer._file, force_terminal=True),
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._task = self._live.add_task(self._waiting(), total=len(self._run.selected))
        elif len(self._open) > 1 and not self._quiet:
            self._writer.line(f"gpuinfra: capturing {len(self._open)} hosts: {aliases_text(self._open)}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def done(self, host: GpuHost, left: int) -> None:
        """Take down that a host has answered, or failed to."""
        if host.alias in self._open:
            self._open.remove(host.alias)
        if self._live is not None:
            self._live.update(self._task, advance=1, description=self._waiting())

    def _waiting(self) -> str:
        return f"waiting for {aliases_text(self._open)}" if self._open else ""
