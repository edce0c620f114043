"""
Items of many hosts, made a portion at a time: the first result does not wait for the last host's items.

pytest makes all items before it runs the first, some 3 KB and 0.1 ms each: with 1,000 hosts, half a minute and half a
gigabyte. In one process hosts run one after the other, so the items of later hosts can wait until it is their turn.
Each portion goes through `pytest_collection_modifyitems` like any collection, so -k, -m and other plugins choose as
they would. Where items must be known as a whole (--collect-only, --lf, --ff, --nf, --sw, an item named by its id), they
are.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_gpuinfra.session.run import Run
from pytest_gpuinfra.session.stash import TARGET_FIXTURE

PORTION = 25
"""Hosts whose items are made at a time; runs of up to twice as many are collected as a whole."""

_WHOLE = ("collectonly", "lf", "failedfirst", "newfirst", "stepwise")


class Portions:
    """
    Runs the hosts of a session in portions.

    Args:
        run: Its run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        aliases = tuple(run.selected)
        self._left = [aliases[begin : begin + PORTION] for begin in range(0, len(aliases), PORTION)]
        run.begin_portion(self._left.pop(0))
        self._tests: dict[pytest.Module | pytest.Class, set[str]] = {}

    @staticmethod
    def wanted(config: pytest.Config, run: Run) -> bool:
        """Tell whether a session is to be run in portions."""
        alone = run.settings.keep_connections and not hasattr(config, "workerinput")
        by_id = any("[" in argument for argument in config.args)  # one item, of a host of any portion
        whole = by_id or any(config.getoption(name, False) for name in _WHOLE)
        return alone and not whole and len(run.selected) > 2 * PORTION

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note which tests are about hosts, before any item is deselected."""
        for item in items if not self._tests else ():
            parent = item.parent
            if not isinstance(item, pytest.Function) or not isinstance(parent, (pytest.Module, pytest.Class)):
                continue
            if TARGET_FIXTURE in item.fixturenames:
                self._tests.setdefault(parent, set()).add(item.originalname)

    def pytest_report_collectionfinish(self) -> str:
        """Say that these are not all."""
        hosts = len(self._run.selected)
        return f"gpuinfra: items of the first {PORTION} of {hosts} hosts; those of the others follow, as many at a time"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all portions, each made when the last item of the one before is about to run."""
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            return None
        portions = self._items(session)
        item = next(portions, None)
        while item is not None:
            following = next(portions, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True

    def _items(self, session: pytest.Session) -> Iterator[pytest.Item]:
        made = len(session.items)
        session.testscollected = made * len(self._run.selected) // PORTION  # for the percentages; corrected at the end
        yield from session.items
        while self._left:
            self._run.begin_portion(self._left.pop(0))
            items = [item for parent in self._tests for item in self._made(parent)]
            session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
            session.items = items
            made += len(items)
            yield from items
            if not self._left:
                session.testscollected = made

    def _made(self, parent: pytest.Module | pytest.Class) -> Iterator[pytest.Item]:
        """Make a module's or a class's items of the portion, without its set-up being registered again."""
        if isinstance(parent, pytest.Module):
            children = super(pytest.Module, parent).collect()
        else:
            children = super(pytest.Class, parent).collect()
        for item in children:
            if isinstance(item, pytest.Function) and item.originalname in self._tests[parent]:
                item.ihook.pytest_itemcollected(item=item)
                yield item
