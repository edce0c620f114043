"""The service's GPUs under load: does each carry a rank, and work?"""

from collections.abc import Callable

import pytest

from pytest_gpuinfra import GpuHost
from pytest_gpuinfra.gather.participation import ParticipationRun
from pytest_gpuinfra.pci_address import short_address
from pytest_gpuinfra.subjects.participation.judge import (
    judge_activity,
    judge_load,
    judge_memory,
    judge_no_other,
    judge_presence,
)
from pytest_gpuinfra.subjects.verdict import Verdict

pytestmark = pytest.mark.gpu_level("active")
Judge = Callable[[Callable[[], Verdict]], Verdict]


@pytest.fixture
def load(gpu_host: GpuHost, gpu_participation: ParticipationRun, gpu_judge: Judge) -> Verdict:
    """Judge what became of the load."""
    return gpu_judge(lambda: judge_load(gpu_participation.outcome, f"{gpu_host.alias}: load on the service"))


@pytest.fixture
def presence(gpu_host: GpuHost, gpu_serving_gpu: str, gpu_participation: ParticipationRun, gpu_judge: Judge) -> Verdict:
    """Judge which of the service's processes compute on the test's GPU."""
    run, subject = gpu_participation, f"{gpu_host.alias}: service on GPU {short_address(gpu_serving_gpu)}"
    return gpu_judge(lambda: judge_presence(run.seen, gpu_serving_gpu, run.unit, subject))


@pytest.fixture
def activity(gpu_host: GpuHost, gpu_serving_gpu: str, gpu_participation: ParticipationRun, gpu_judge: Judge) -> Verdict:
    """Judge the activity of the test's GPU under load."""
    run, subject = gpu_participation, f"{gpu_host.alias}: GPU {short_address(gpu_serving_gpu)} under load"
    least = gpu_host.expect.model.participation.activity_min_percent
    return gpu_judge(lambda: judge_activity(run.seen, gpu_serving_gpu, subject, unit=run.unit, least=least))


@pytest.fixture
def memory(gpu_host: GpuHost, gpu_serving_gpu: str, gpu_participation: ParticipationRun, gpu_judge: Judge) -> Verdict:
    """Judge the memory that the service holds on the test's GPU."""
    run, subject = gpu_participation, f"{gpu_host.alias}: service's memory on GPU {short_address(gpu_serving_gpu)}"
    band = gpu_host.expect.model.participation
    return gpu_judge(
        lambda: judge_memory(
            run.seen,
            gpu_serving_gpu,
            subject,
            unit=run.unit,
            least=band.memory_min_mib,
            most=band.memory_max_mib,
        )
    )


@pytest.fixture
def elsewhere(gpu_host: GpuHost, gpu_participation: ParticipationRun, gpu_judge: Judge) -> Verdict:
    """Judge on which GPUs of the host the service runs."""
    run = gpu_participation
    return gpu_judge(lambda: judge_no_other(run.seen, run.gpus, run.unit, f"{gpu_host.alias}: GPUs of the service"))


def test_every_request_of_the_load_is_answered(load: Verdict) -> None:
    """
    The service answers every request while its GPUs are watched.

    What GPUs do under a load that is dropped says nothing about serving.
    """
    assert load.ok, load.message


@pytest.mark.gpu_judges("model.participation.gpus")
def test_gpu_carries_a_rank_of_the_service(presence: Verdict) -> None:
    """
    A process of the service computes on the GPU, all the time.

    A model that is sharded over fewer GPUs than planned answers rightly, and runs out of memory under load.
    """
    assert presence.ok, presence.message


@pytest.mark.gpu_judges("model.participation.activity_min_percent")
def test_gpu_works_under_load(activity: Verdict) -> None:
    """
    The GPU works while requests are under way.

    An idle rank is invisible in an average: the other GPUs do its work, or wait for it.
    """
    assert activity.ok, activity.message


@pytest.mark.gpu_judges("model.participation.memory_min_mib", "model.participation.memory_max_mib")
def test_memory_of_the_service_is_within_its_band(memory: Verdict) -> None:
    """
    The service holds as much memory on the GPU as it was planned to.

    A rank that holds less has not loaded its part; one that holds more pushes others out.
    """
    assert memory.ok, memory.message


def test_service_runs_on_no_other_gpu(elsewhere: Verdict) -> None:
    """
    The service runs on no other GPU of the host.

    Those are planned for something else, which it would starve.
    """
    assert elsewhere.ok, elsewhere.message
