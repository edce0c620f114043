"""All-reduces over the GPUs: exact sums, by a transport that NCCL's own log proves."""

from collections.abc import Callable

import pytest

from pytest_gpuinfra import Expectation, GpuHost
from pytest_gpuinfra.gather.gpu import GpuRun, GpuRuns
from pytest_gpuinfra.subjects.service.as_it_runs import loaded_nccl
from pytest_gpuinfra.subjects.service.facts import ServiceFacts
from pytest_gpuinfra.subjects.transfers.all_reduce import AllReduceRun
from pytest_gpuinfra.subjects.transfers.judge import judge_all_reduce, judge_busbw, judge_service_run, judge_transport
from pytest_gpuinfra.subjects.verdict import Verdict

pytestmark = pytest.mark.gpu_level("active")
Judge = Callable[[Callable[[], Verdict]], Verdict]


@pytest.fixture
def sums(
    gpu_host: GpuHost, gpu_runs: GpuRuns, gpu_arm: str, gpu_allreduce_run: AllReduceRun | None, gpu_judge: Judge
) -> Verdict:
    """Judge the sums of the test's arm."""
    subject = f"{gpu_host.alias}: all-reduce, arm {gpu_arm}"
    devices = next((one.devices for one in gpu_runs.settings.arm_plans() if one.name == gpu_arm), ())
    return gpu_judge(lambda: judge_all_reduce(gpu_allreduce_run, subject, devices or gpu_host.computing_gpus))


@pytest.fixture
def transport(gpu_host: GpuHost, gpu_arm: str, gpu_allreduce_run: AllReduceRun | None, gpu_judge: Judge) -> Verdict:
    """Judge the transport of the test's arm."""
    subject = f"{gpu_host.alias}: transport of the all-reduce, arm {gpu_arm}"
    return gpu_judge(lambda: judge_transport(gpu_allreduce_run, subject, gpu_arm.partition("-")[0]))


@pytest.fixture
def busbw(
    gpu_host: GpuHost, gpu_expect: Expectation, gpu_arm: str, gpu_allreduce_run: AllReduceRun | None, gpu_judge: Judge
) -> Verdict:
    """Judge the speed of the test's arm."""
    subject = f"{gpu_host.alias}: busbw of the all-reduce, arm {gpu_arm}"
    return gpu_judge(lambda: judge_busbw(gpu_allreduce_run, subject, gpu_expect.gpu.busbw_gb_s_min, gpu_arm))


@pytest.fixture
def torch_sums(gpu_host: GpuHost, gpu_torch_run: GpuRun, gpu_judge: Judge) -> Verdict:
    """Judge the all-reduce by torch.distributed; skip where one GPU has nobody to sum with."""
    if len(gpu_host.computing_gpus) == 1:
        pytest.skip(f"{gpu_host.alias} has no two GPUs on the nvidia driver, expected or seen")
    run = next(iter(gpu_torch_run.program.runs), None)
    subject = f"{gpu_host.alias}: all-reduce by torch.distributed"
    return gpu_judge(lambda: judge_all_reduce(run, subject, gpu_host.computing_gpus))


@pytest.fixture
def service_sums(
    gpu_host: GpuHost, gpu_service: ServiceFacts, gpu_service_run: AllReduceRun | None, gpu_judge: Judge
) -> Verdict:
    """Judge the sums that are made as the service makes them."""
    subject = f"{gpu_host.alias}: all-reduce as {gpu_service.unit_name} runs"
    devices, loaded = gpu_host.computing_gpus, loaded_nccl(gpu_service)
    return gpu_judge(lambda: judge_service_run(gpu_service_run, subject, devices, loaded=loaded))


def test_all_reduce_is_right(sums: Verdict) -> None:
    """
    An all-reduce gives the exact sum in every rank, for tiny and for large messages.

    Over corrupt peer copies NCCL deadlocks rather than fails, and the service hangs at its start.
    """
    assert sums.ok, sums.message


def test_all_reduce_uses_the_transport_that_it_was_run_for(transport: Verdict) -> None:
    """
    NCCL's own log proves the transport on every channel.

    Asked for and seen are two facts: another layer can set the variable again.
    """
    assert transport.ok, transport.message


@pytest.mark.gpu_judges("gpu.busbw_gb_s_min")
def test_all_reduce_is_as_fast_as_before(busbw: Verdict) -> None:
    """
    The largest all-reduce is as fast as it was measured before.

    Every layer of the model waits for it.
    """
    assert busbw.ok, busbw.message


def test_all_reduce_as_the_service_runs_is_right(service_sums: Verdict) -> None:
    """
    With the environment of the service's main process, and its own NCCL, an all-reduce sums exactly.

    The other arms prove a path; this one proves what the service really starts with, whatever layer set it.
    """
    assert service_sums.ok, service_sums.message


def test_all_reduce_by_torch_is_right(torch_sums: Verdict) -> None:
    """
    torch.distributed, in the service's own Python, sums exactly.

    It is what the engine itself calls, with the environment that the engine has.
    """
    assert torch_sums.ok, torch_sums.message
