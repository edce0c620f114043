"""
The four endings, enforced: passed, FAILED, ERROR and skipped mean four different things.

- A test's own AssertionError is FAILED: the fact was observed and is wrong.
- A GpuInfraError is ERROR wherever it is raised: the fact could not be observed.
- A pass without a single observation is ERROR: silence proves nothing.
- A check above the run's level, or one that the inventory expects nothing for, is skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import reduce
from typing import Any

import pytest

from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError
from pytest_gpuinfra.evidence import Evidence
from pytest_gpuinfra.host import GpuHost
from pytest_gpuinfra.observed import EVIDENCE, shown_of
from pytest_gpuinfra.run import LEVELS, Run
from pytest_gpuinfra.session import OBSERVED, run_of, target_of
from pytest_gpuinfra.suites_path import suites_path
from pytest_gpuinfra.targets import GpuDevice, Target

OBSERVING = "observe"
"""The phase that a report names when the test body itself could not observe; neither set-up nor call."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Take down the evidence of what the fixtures read."""
    run, target = run_of(item.config), target_of(item)
    if run is None or target is None:
        return (yield)
    host = run.hosts[target.host]
    observed = item.stash.setdefault(OBSERVED, [])
    host.observe = observed.append
    try:
        return (yield)
    finally:
        observed.extend(_evidence(item, host, target))
        item.user_properties.append(("gpu_host", target.host))
        item.user_properties.extend(_properties(observed))


class AskedFor:
    """Skips what is not asked for, before anything is set up."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a check above the run's level, and one that the inventory expects nothing for."""
        run, target = run_of(item.config), target_of(item)
        if run is None or target is None:
            return
        _skip_if_above_level(item, run)
        _skip_if_not_expected(item, run.hosts[target.host], target)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Take down what the test itself observed; turn a pass without any observation into an error."""
    observed = item.stash.get(OBSERVED, [])
    before = len(observed)
    try:
        result = yield
    finally:
        item.user_properties.extend(_properties(observed[before:]))
    if target_of(item) is not None and not observed:
        raise FactUnavailable(
            item.name,
            "the test passed without having observed anything",
            remedy="take a fact fixture (gpu_pci_functions, ...), run something by gpu_host.run, "
            "or attach what was observed by gpu_evidence.attach",
        )
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Turn an assertion of one of our fixtures into an error: only a test's body may fail."""
    try:
        return (yield)
    except AssertionError as error:
        if run_of(request.config) is None or not fixturedef.argname.startswith(("gpu_", "_gpu_")):
            raise
        raise GpuInfraError(f"fixture {fixturedef.argname}: {error}") from error


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what could not be observed in its own words, and file it as an error, whichever phase it arose in."""
    said = _said(item, call)
    if said is None or call.excinfo is None:
        return (yield)
    raised = call.excinfo
    # pytest would format a traceback, some milliseconds for each item of a dead host, that nobody is shown.
    call.excinfo = pytest.ExceptionInfo.from_exception(
        pytest.fail.Exception(said, pytrace=False).with_traceback(raised.tb)
    )
    try:
        report = yield
    finally:
        call.excinfo = raised
    report.longrepr = said
    if call.when == "call" and isinstance(raised.value, GpuInfraError):
        report.when = OBSERVING  # type: ignore[assignment]
    return report


def _said(item: pytest.Item, call: pytest.CallInfo[None]) -> str | None:
    """Give what is shown in place of a traceback; None if that is the traceback."""
    target = target_of(item)
    raised = call.excinfo.value if call.excinfo and target else None
    if target is not None and isinstance(raised, GpuInfraError):
        return f"{target.id}: {raised}" if target.host not in str(raised) else str(raised)
    if isinstance(raised, AssertionError) and call.when == "call" and _is_ours(item):
        return _message(raised)
    return None


def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
    """Count it among the errors, unless it was expected to be one."""
    if report.failed and getattr(report, "when", "") == OBSERVING:
        return "error", "E", "ERROR"
    return None


def _is_ours(item: pytest.Item) -> bool:
    return item.path.is_relative_to(suites_path())


def _message(error: AssertionError) -> str:
    """Give the message of a suite's assertion without pytest's own comparison, which says it again."""
    text = str(error)
    return text.partition("\nassert ")[0]


def _skip_if_above_level(item: pytest.Item, run: Run) -> None:
    marker = item.get_closest_marker("gpu_level")
    needed = marker.args[0] if marker else "passive"
    if needed not in LEVELS:
        raise GpuInfraError(f"{item.nodeid}: marker gpu_level takes one of {', '.join(LEVELS)}, not {needed!r}")
    if LEVELS.index(needed) > LEVELS.index(run.settings.level):
        pytest.skip(f"needs --gpu-level={needed}; this run is {run.settings.level}")


def _skip_if_not_expected(item: pytest.Item, host: GpuHost, target: Target) -> None:
    for marker in item.iter_markers("gpu_expects"):
        for path in marker.args:
            root: object = host.expect
            words = path.split(".")
            subject = host.alias
            if words[0] == "device":
                device = target.value
                if not isinstance(device, GpuDevice):
                    pytest.skip(target.nothing)
                root, words, subject = device.expect, words[1:], str(device)
            value = reduce(lambda found, word: getattr(found, word, None), words, root)
            if value is None or value in ((), {}):
                pytest.skip(f"inventory expects no {'.'.join(words)} of {subject}")


def _properties(observed: Sequence[Evidence]) -> list[tuple[str, object]]:
    return [(f"evidence: {piece.name}", piece.text) for piece in observed]


def _evidence(item: pytest.Item, host: GpuHost, target: Target) -> list[Evidence]:
    pieces: dict[str, Evidence] = {}
    names = getattr(item, "fixturenames", ())
    for name in names:
        if name in EVIDENCE:
            try:
                pieces.update({piece.name: piece for piece in shown_of(name, host, target)})
            except GpuInfraError:
                continue  # the fixture itself ends the test with this
    return list(pieces.values())
