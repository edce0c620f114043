"""Fixtures of a comparison with an earlier recording: `--gpu-baseline=FILE`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuinfra.session import run_of

_GATHERED = {
    **dict.fromkeys(("pair", "all-reduce", "cuda-program", "torch-program"), "gpu"),
    "endpoint": "endpoint",
}
"""Areas that other checks of the run gather, by the kind of what they gather."""

if TYPE_CHECKING:
    from pytest_gpuinfra.compare import Change, HostComparison
    from pytest_gpuinfra.fixtures import Aim
    from pytest_gpuinfra.host import GpuHost
    from pytest_gpuinfra.run import Run


@pytest.fixture
def gpu_baseline(gpu_host: GpuHost, request: pytest.FixtureRequest) -> HostComparison:
    """Give the host as it is now, compared with the baseline; skips where there is none."""
    from pytest_gpuinfra.evidence import evidence

    run = run_of(request.config)
    if run is None or run.baseline is None:
        pytest.skip("no baseline: name an earlier recording by --gpu-baseline")
    comparison = compare_with_baseline(run, gpu_host)
    lines = [f"{change.weight}: {change.text}" for change in comparison.changes]
    gpu_host.observe(evidence("compared with the baseline", "\n".join(lines) or "nothing differs"))
    return comparison


@pytest.fixture
def gpu_rebooted(gpu_host: GpuHost, gpu_baseline: HostComparison, request: pytest.FixtureRequest) -> bool:
    """Give whether the host has booted since the baseline, or since this run rebooted it; skips unless asked for."""
    from pytest_gpuinfra.errors import FactUnavailable

    run = run_of(request.config)
    if run is None or not run.settings.after_reboot:
        pytest.skip("--gpu-after-reboot was not asked for")
    ended = run.boots_before.get(gpu_host.alias)
    if ended is not None:
        return gpu_host.facts.boot_id != ended
    if gpu_baseline.boot_changed is None:
        raise FactUnavailable(
            f"{gpu_baseline.host}: boot id", "it is not known from both", remedy="take a new baseline, or read as root"
        )
    return gpu_baseline.boot_changed


@pytest.fixture
def gpu_baseline_area(
    gpu_host: GpuHost, gpu_baseline: HostComparison, _gpu_target: Aim, request: pytest.FixtureRequest
) -> tuple[Change, ...]:
    """
    Give the regressions of one area; one test for each area.

    Raises:
        FactUnavailable: The area could not be observed any more, or nothing of it was looked at in this run.
    """
    from pytest_gpuinfra.errors import FactUnavailable

    area = _gpu_target.target.label
    run = run_of(request.config)
    if run is not None:
        _check_looked_at(area, run, gpu_host)
    found = tuple(change for change in gpu_baseline.of("regression") if area_of(change) == area)
    unseen = [change for change in found if change.after == "could not be observed"]
    if unseen:
        raise FactUnavailable(
            f"{gpu_baseline.host}: {area}", unseen[0].note, remedy="the baseline has it; see why not now"
        )
    return found


def _check_looked_at(area: str, run: Run, host: GpuHost) -> None:
    """
    Do nothing where an area was looked at; skip where this run was told not to.

    Raises:
        FactUnavailable: It was to be looked at, and nothing was.
    """
    from pytest_gpuinfra.errors import FactUnavailable

    kind = _GATHERED.get(area)
    if kind is None or kind in host.gathered():
        return
    if run.settings.level == "passive":
        pytest.skip(f"the baseline has {area}; this run is passive, and looks at it with --gpu-level=active only")
    if kind == "endpoint" and run.settings.endpoint == "none":
        pytest.skip("the baseline has an endpoint; this run leaves endpoints out")
    raise FactUnavailable(
        f"{host.alias}: {area}",
        "the baseline has it, and nothing of it was looked at before this check",
        remedy="run the whole suite: these checks come last, by what the others have gathered",
    )


def area_of(change: Change) -> str:
    """Name the area of a change as targets do, in one word."""
    return change.name.partition("/")[0].replace(" ", "-")


def compare_with_baseline(run: Run, host: GpuHost, gathered: Mapping[str, Any] | None = None) -> HostComparison:
    """
    Compare a host with the baseline.

    Args:
        run: The run.
        host: One of its hosts.
        gathered: What was gathered of it elsewhere, by a worker of xdist; None for what was gathered here.

    Raises:
        FactUnavailable: The baseline does not hold the host.
    """
    from pytest_gpuinfra.compare import compare
    from pytest_gpuinfra.errors import FactUnavailable
    from pytest_gpuinfra.recording import RecordedHost, Recording

    host.capture.check_reached()
    if run.baseline is None or host.alias not in run.baseline.hosts:
        raise FactUnavailable(f"{host.alias}: baseline", "it does not hold this host", remedy="record the host first")
    gathered = gathered or host.gathered()
    known = (host.alias, len(str(gathered)))
    if known in run.compared:
        return run.compared[known]
    before = Recording({host.alias: run.baseline.hosts[host.alias]}, (), run.baseline.started_at)
    spec = host.selected.spec.model_dump(mode="json", exclude_defaults=True, exclude={"group"})
    after = Recording({host.alias: RecordedHost(spec, host.capture, gathered)}, (), run.started_at)
    run.compared = {known: compare(before, after, allow=run.settings.allowed_changes).hosts[0]}
    return run.compared[known]
