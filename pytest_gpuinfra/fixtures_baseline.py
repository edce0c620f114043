"""Fixtures of a comparison with an earlier recording: `--gpu-baseline=FILE`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuinfra.session import run_of

if TYPE_CHECKING:
    from pytest_gpuinfra.compare import Change, HostComparison
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
def gpu_rebooted(gpu_baseline: HostComparison, request: pytest.FixtureRequest) -> bool:
    """Give whether the host has booted since the baseline; skips unless that is asked for."""
    from pytest_gpuinfra.errors import FactUnavailable

    run = run_of(request.config)
    if run is None or not run.settings.after_reboot:
        pytest.skip("--gpu-after-reboot was not asked for")
    if gpu_baseline.boot_changed is None:
        raise FactUnavailable(
            f"{gpu_baseline.host}: boot id", "it is not known from both", remedy="take a new baseline, or read as root"
        )
    return gpu_baseline.boot_changed


@pytest.fixture
def gpu_baseline_area(gpu_baseline: HostComparison, _gpu_target: object) -> tuple[Change, ...]:
    """Give the regressions of one area; one test for each area."""
    from pytest_gpuinfra.errors import FactUnavailable

    area = str(getattr(_gpu_target, "label", ""))
    found = tuple(change for change in gpu_baseline.of("regression") if area_of(change) == area)
    unseen = [change for change in found if change.after == "could not be observed"]
    if unseen:
        raise FactUnavailable(
            f"{gpu_baseline.host}: {area}", unseen[0].note, remedy="the baseline has it; see why not now"
        )
    return found


def area_of(change: Change) -> str:
    """Name the area of a change as targets do, in one word."""
    return change.name.partition("/")[0].replace(" ", "-")


def compare_with_baseline(run: Run, host: GpuHost) -> HostComparison:
    """
    Compare a host with the baseline.

    Raises:
        FactUnavailable: The baseline does not hold the host.
    """
    from pytest_gpuinfra.compare import compare
    from pytest_gpuinfra.errors import FactUnavailable
    from pytest_gpuinfra.recording import RecordedHost, Recording

    host.capture.check_reached()
    if run.baseline is None or host.alias not in run.baseline.hosts:
        raise FactUnavailable(f"{host.alias}: baseline", "it does not hold this host", remedy="record the host first")
    before = Recording({host.alias: run.baseline.hosts[host.alias]}, (), run.baseline.started_at)
    spec = host.selected.spec.model_dump(mode="json", exclude_defaults=True, exclude={"group"})
    after = Recording({host.alias: RecordedHost(spec, host.capture, host.gathered())}, (), run.started_at)
    return compare(before, after, allow=run.settings.allowed_changes).hosts[0]
