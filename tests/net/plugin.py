"""A pytest plugin of the net: each item's id, ending and text as JSON lines in the file that NET_ITEMS names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


class Endings:
    """
    Writes how items end, by pytest's own hooks only.

    Attributes:
        config: pytest's.
        file: Where the lines go, one an item and ending; an item that fails and whose teardown errs has two.
    """

    def __init__(self, config: pytest.Config, file: Path) -> None:
        self.config = config
        self.file = file.open("w")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Iterator[None]:
        """Write a report before any plugin changes it."""
        ending = self.config.hook.pytest_report_teststatus(report=report, config=self.config)[0]
        if ending:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self.file.write(json.dumps({"id": report.nodeid, "ending": ending, "message": reason}) + "\n")
        return (yield)

    def pytest_unconfigure(self) -> None:
        """Close the file."""
        self.file.close()


def pytest_configure(config: pytest.Config) -> None:
    """Start writing."""
    config.pluginmanager.register(Endings(config, Path(os.environ["NET_ITEMS"])))
