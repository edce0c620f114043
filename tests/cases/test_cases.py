"""Every case, fed to the product's own parsers and verdict functions by the adapter of its topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.adapters import ADAPTERS
from tests.cases.case import OWN, Case, read_cases
from tests.cases.compare import differences

MORE = Path(__file__).parent / "more"
"""Cases of our own making: other inputs of the same kinds."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item of each case in the folder."""
    given = metafunc.config.getoption("--cases-dir", default=None)
    if "case" in metafunc.fixturenames:
        # those of our own folder without an adapter are shown by tests of their own (test_reporting.py)
        cases = read_cases(Path(given)) if given else [case for case in read_cases(OWN) if case.topic in ADAPTERS]
    else:
        cases = [] if given else read_cases(MORE)
    name = "case" if "case" in metafunc.fixturenames else "made_case"
    metafunc.parametrize(name, cases, ids=[f"{case.id}-{case.topic}" for case in cases])


def test_case_is_judged_right(case: Case) -> None:
    """The verdict is the right one, and everything that the case names was read."""
    _check(case)


def test_other_input_of_the_same_kind_is_judged_right(made_case: Case) -> None:
    """So is that of an input that we made ourselves, of the same kind."""
    _check(made_case)


def _check(case: Case) -> None:
    adapter = ADAPTERS.get(case.topic)
    if adapter is None:
        pytest.skip(f"{case.topic}: {'shown by its own tests' if case.use == 'behaviour' else 'no adapter'}")
    verdict, reason, parsed = adapter(case)

    found = differences(case.parsed, parsed)
    if verdict != case.verdict:
        found.insert(0, f"verdict: expected {case.verdict!r} ({case.reason}), gave {verdict!r} ({reason})")

    assert not found, "\n".join(found)
