"""The question that all of the GPU suites serve: is the path that the service uses one that was proven right?"""

from collections.abc import Callable

import pytest

from pytest_gpuinfra import FactUnavailable, GpuHost
from pytest_gpuinfra.gpu_runs import GpuRun
from pytest_gpuinfra.service_facts import ServiceFacts
from pytest_gpuinfra.verdict.base import Verdict
from pytest_gpuinfra.verdict.path_safety import judge_path_safety
from pytest_gpuinfra.verdict.service_path import path_of_service

pytestmark = pytest.mark.gpu_level("active")


@pytest.fixture
def engine(gpu_service: ServiceFacts) -> str | None:
    """Give the engine's name; None if the service's processes tell of none that is known."""
    try:
        return gpu_service.engine
    except FactUnavailable:
        return None


@pytest.fixture
def path_safety(
    gpu_host: GpuHost,
    gpu_service: ServiceFacts,
    engine: str | None,
    gpu_cuda_run: GpuRun,
    gpu_judge: Callable[[Callable[[], Verdict]], Verdict],
) -> Verdict:
    """Join what was proven on the GPUs with what the running service does."""

    def judge() -> Verdict:
        devices = gpu_host.computing_gpus
        service = path_of_service(
            gpu_service.unit_name, gpu_service.ranks, gpu_service.witnesses, engine=engine, devices=devices
        )
        program = gpu_cuda_run.program
        safety = judge_path_safety(program.transfers, program.runs, service, devices=devices)
        return safety.verdict(f"{gpu_host.alias}: path between the GPUs of {gpu_service.unit_name}")

    return gpu_judge(judge)


def test_service_uses_a_path_that_was_proven_right(path_safety: Verdict) -> None:
    """
    Every path between GPUs that the running service may use was proven right on this boot.

    NCCL's own fallback does not cover an engine's custom all-reduce over CUDA IPC.
    """
    assert path_safety.ok, path_safety.message
