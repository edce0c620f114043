"""
Runs of many hosts: what an item leaves in memory once every report has been made of it.

pytest keeps all reports of all phases to the end, each with the raw text behind its item; with 1,000 hosts
that is 450,000 reports. Reports are kept without the evidence, those that did not fail also without key words; one of
a set-up or clean-up that passed silently is not kept at all, and of those that are counted and not listed, one is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Literal

import pytest

from pytest_gpuinfra.session.stash import OBSERVED, target_of

_NOTHING: dict[str, Literal[1]] = {}
_EVERY = 200
"""Items after which what pytest keeps of finished fixtures is dropped."""

_LISTED = {"passed": "pP", "skipped": "s"}
"""Letters of pytest's -r that list reports of a kind at the end."""


class Lean:
    """
    Drops what has been written.

    Args:
        config: The session's.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._items = 0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Forget the evidence of an item that has run; its reports and results have it."""
        try:
            return (yield)
        finally:
            if target_of(item) is not None:
                item.user_properties.clear()
                item.stash.setdefault(OBSERVED, []).clear()
                self._items += 1
                if self._items % _EVERY == 0:
                    drop_finished(item.session)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, None, None]:
        """Forget of a report what nobody shows at the end."""
        yield
        if not any(name == "gpu_host" for name, _ in report.user_properties):
            return
        report.user_properties = []
        if report.failed:
            return
        report.keywords = _NOTHING
        terminal: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None:
            return
        kind = "skipped" if report.skipped else "passed" if report.when == "call" else ""
        kept = terminal.stats.get(kind, [])
        if not kept or kept[-1] is not report:
            return
        if not kind:
            if not report.sections:
                kept.pop()
        elif not set(_LISTED[kind]) & set(terminal.reportchars):
            kept[-1] = kept[0]  # pytest counts them, and shows none


def drop_finished(session: pytest.Session) -> None:
    """
    Drop finalizers of fixtures that have been set up anew since.

    pytest 9 gives the session one whenever one of its fixtures is set up, which ours are for every item, and keeps all
    to the end, each with its item. The last of each fixture is enough: it finishes what that last set-up made. Where
    pytest keeps them otherwise, nothing is dropped.
    """
    stack = getattr(getattr(session, "_setupstate", None), "stack", None)
    if not isinstance(stack, dict) or session not in stack:
        return
    finalizers: list[Callable[[], object]] = stack[session][0]
    seen: set[int] = set()
    kept = []
    for finalizer in reversed(finalizers):
        owner = getattr(finalizer.func, "__self__", None) if isinstance(finalizer, partial) else None
        if isinstance(owner, pytest.FixtureDef):
            if id(owner) in seen:
                continue
            seen.add(id(owner))
        kept.append(finalizer)
    finalizers[:] = reversed(kept)
