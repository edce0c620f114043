"""The question that all of the GPU suites serve: is the path that the service uses one that was proven right?"""

from collections.abc import Callable

import pytest

from pytest_gpuinfra import FactUnavailable, GpuHost, GpuInfraError
from pytest_gpuinfra.gather.gpu import GpuRun, GpuRuns
from pytest_gpuinfra.subjects.path_safety.judge import judge_path_safety, judge_without_service
from pytest_gpuinfra.subjects.path_safety.service import path_of_service
from pytest_gpuinfra.subjects.service.facts import ServiceFacts
from pytest_gpuinfra.subjects.verdict import Verdict

pytestmark = pytest.mark.gpu_level("active")


@pytest.fixture
def proven(gpu_host: GpuHost, gpu_runs: GpuRuns) -> GpuRun | None:
    """
    Give what was proven on the GPUs; None where that is unknown, and no service is expected that it would matter to.

    Raises:
        FactUnavailable, ProbeError, CommandTimeout, UnreachableError: The program could not be run to its end.
    """
    try:
        return gpu_runs.cuda
    except GpuInfraError:
        if gpu_host.selected.spec.service is not None:
            raise
        return None


@pytest.fixture
def running(gpu_host: GpuHost) -> ServiceFacts | None:
    """
    Give the service's facts; None where no service is expected, and where it is stopped or has failed.

    Raises:
        FactUnavailable: There is no unit of that name, or its state cannot be read.
    """
    if gpu_host.selected.spec.service is None:
        return None
    service = gpu_host.facts.service
    return None if service.state.active_state in ("inactive", "failed") else service


@pytest.fixture
def path_safety(
    gpu_host: GpuHost,
    running: ServiceFacts | None,
    proven: GpuRun | None,
    gpu_judge: Callable[[Callable[[], Verdict]], Verdict],
) -> Verdict:
    """Join what was proven on the GPUs with what the running service does; without one, say what would be safe."""
    devices, named = gpu_host.computing_gpus, gpu_host.selected.spec.service
    if len(devices) == 1:
        pytest.skip(f"{gpu_host.alias} has one GPU on the nvidia driver, expected or seen: no path leads to another")

    def judge() -> Verdict:
        service = None
        if running is not None:
            service = path_of_service(
                running.unit_name,
                running.ranks,
                running.witnesses,
                engine=engine_of(running),
                devices=devices,
            )
        safety = None
        if proven is not None:
            safety = judge_path_safety(proven.program.transfers, proven.program.runs, service, devices=devices)
        if named is None or safety is None:
            nobody = f"inventory names no service of {gpu_host.alias}"
            return judge_without_service(safety, gpu_host.alias, nobody)
        return safety.verdict(f"{gpu_host.alias}: {named}")

    return gpu_judge(judge)


def engine_of(service: ServiceFacts) -> str | None:
    """Give the engine's name; None if the service's processes tell of none that is known."""
    try:
        return service.engine
    except FactUnavailable:
        return None


@pytest.mark.gpu_judges("peer_access")
def test_service_uses_a_path_that_was_proven_right(path_safety: Verdict) -> None:
    """
    Every path between GPUs that the running service may use was proven right on this boot.

    NCCL's own fallback does not cover an engine's custom all-reduce over CUDA IPC.
    """
    assert path_safety.ok, path_safety.message
