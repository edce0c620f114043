"""Every case, by how the product's own items end on the machine that it tells of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.cases.case import MORE, OWN, Case, read_cases
from tests.cases.convert import SHOWN_ELSEWHERE
from tests.cases.machine import Ended, judge, lacking, of_case, run_cases

Endings = Mapping[str, Sequence[Ended]]


def cases_of(config: pytest.Config) -> list[Case]:
    """Give the cases of the folder that was named, or our own."""
    given = config.getoption("--cases-dir", default=None)
    folders = [Path(given)] if given else [OWN, MORE]
    return [case for folder in folders for case in read_cases(folder) if case.topic != SHOWN_ELSEWHERE]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item of each case; what is known to end otherwise must go on to do so until somebody cures it."""
    rows = []
    for case in cases_of(metafunc.config):
        reason = case.known or case.unread
        expected = metafunc.config.getoption("--cases-dir", default=None) is None and reason
        marks = [pytest.mark.xfail(strict=True, reason=reason)] if expected else []
        rows.append(pytest.param(case, id=f"{case.id}-{case.topic}", marks=marks))
    metafunc.parametrize("case", rows)


@pytest.fixture(scope="session")
def endings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Endings:
    """Run the items of all cases, in one go."""
    return run_cases(cases_of(request.config), tmp_path_factory.mktemp("cases"))


def test_case_is_judged_right(case: Case, endings: Endings) -> None:
    """The items end as a good acceptance test does, and a failure says what the case names."""
    assert not case.unread, case.unread
    observed = judge(case, endings)
    shown = "\n".join(f"  {item.name} {item.outcome}: {item.message[:400]}" for item in of_case(case, endings))

    assert observed == case.verdict.removesuffix(" (warn)"), (
        f"expected {case.verdict} ({case.reason}), observed {observed}\n{shown}"
    )
    assert lacking(case, endings) == [], f"not in any message\n{shown}"
