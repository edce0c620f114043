"""Each fault of the table, done to the nspawn host, is seen by exactly the items meant for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.conftest import judge_recording

from .fault_run import PROPERTY, Healthy, run_fault
from .faults import Fault, faults_of
from .judge import AREAS, SUITES, judge
from .nspawn import NspawnHost

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("fault", faults_of("nspawn"), ids=str)
def test_fault_is_seen_by_its_items_alone(
    fault: Fault, lab_host: NspawnHost, healthy: Healthy, request: pytest.FixtureRequest
) -> None:
    """What the row names fails or cannot be observed, and says why; all else is as on the healthy host."""
    seen = run_fault(fault, lab_host, healthy)
    request.node.user_properties.append((PROPERTY, seen.to_json(fault)))

    assert seen.problems == (), "\n".join(seen.problems)


def test_healthy_host_is_never_wrong_and_never_unknown(lab_host: NspawnHost, healthy_runs: int, tmp_path: Path) -> None:
    """However often it is judged, no item of the healthy host ends in anything but passed or skipped."""
    runs = [judge(lab_host, "nspawn", tmp_path, plugins=True) for _ in range(healthy_runs or 3)]

    assert [run.ended("failed", "error") for run in runs] == [[]] * len(runs)
    assert [run.outcomes for run in runs] == [runs[0].outcomes] * len(runs)


def test_recording_of_a_real_host_is_judged_the_same(lab_host: NspawnHost, healthy: Healthy) -> None:
    """What was judged over ssh is judged alike from its recording, with no host, and without the inventory's groups."""
    live = judge(lab_host, "nspawn", healthy.directory)
    (healthy.directory / "live.json").write_bytes((healthy.directory / "recording.json").read_bytes())
    replayed = judge_recording(healthy.directory, "live.json", *(str(SUITES / area) for area in AREAS))

    assert replayed.of_host(lab_host.alias).outcomes == live.outcomes
    assert replayed.exit_status == live.exit_status == 0
