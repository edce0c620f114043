"""
Runs of many hosts: what an item leaves in memory once every report has been made of it.

pytest keeps all reports of all phases to the end, each with the raw text behind its item; with 1,000 hosts
that is 450,000 reports. A report that says no more than "passed" is kept without its evidence and key words, and
one of a set-up or clean-up that passed silently is not kept at all.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Literal

import pytest

from pytest_gpuinfra.session import OBSERVED, target_of

_NOTHING: dict[str, Literal[1]] = {}


class Lean:
    """
    Drops what has been written.

    Args:
        config: The session's.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Forget the evidence of an item that has run; its reports and results have it."""
        try:
            return (yield)
        finally:
            if target_of(item) is not None:
                item.user_properties.clear()
                item.stash.setdefault(OBSERVED, []).clear()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, None, None]:
        """Forget of a report that passed, or was skipped, what nobody shows at the end."""
        yield
        if report.failed or not any(name == "gpu_host" for name, _ in report.user_properties):
            return
        report.user_properties = []
        report.keywords = _NOTHING
        terminal: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and report.passed and report.when != "call" and not report.sections:
            silent = terminal.stats.get("", [])
            if silent and silent[-1] is report:
                silent.pop()
