"""Each GPU alone: copies through the host's memory, by its own kernels, and by torch; what arrived there."""

from collections.abc import Callable

import pytest

from pytest_gpuinfra import GpuDevice, GpuHost
from pytest_gpuinfra.gather.gpu import GpuRun
from pytest_gpuinfra.subjects.transfers.judge import judge_alone
from pytest_gpuinfra.subjects.verdict import Verdict

pytestmark = pytest.mark.gpu_level("active")
Judge = Callable[[Callable[[], Verdict]], Verdict]


@pytest.fixture
def computing(gpu_host: GpuHost, gpu_device: GpuDevice) -> str:
    """Give the address of the test's GPU; skip where it is on another driver than nvidia."""
    if gpu_device.pci_address not in gpu_host.computing_gpus:
        pytest.skip(f"{gpu_device} is not on the nvidia driver, so CUDA does not show it")
    return gpu_device.pci_address


@pytest.fixture
def by_cuda(gpu_device: GpuDevice, computing: str, gpu_cuda_run: GpuRun, gpu_judge: Judge) -> Callable[[str], Verdict]:
    """Judge the test's GPU by one mechanism of the CUDA driver."""
    return lambda mechanism: _judged(gpu_device, computing, gpu_cuda_run, mechanism, gpu_judge)


@pytest.fixture
def host_memory(by_cuda: Callable[[str], Verdict]) -> Verdict:
    """Judge copies from the GPU into the host's memory and back."""
    return by_cuda("host_memory")


@pytest.fixture
def kernel_copy(by_cuda: Callable[[str], Verdict]) -> Verdict:
    """Judge copies by a kernel within the GPU's memory."""
    return by_cuda("kernel_copy")


@pytest.fixture
def torch_copy(gpu_device: GpuDevice, computing: str, gpu_torch_run: GpuRun, gpu_judge: Judge) -> Verdict:
    """Judge copies by torch within the GPU's memory."""
    return _judged(gpu_device, computing, gpu_torch_run, "torch_copy", gpu_judge)


def _judged(device: GpuDevice, address: str, run: GpuRun, mechanism: str, gpu_judge: Judge) -> Verdict:
    plan = run.program.plan
    if plan is not None and plan.local is None:
        pytest.skip(f"the recording of {device.host} is of a program that tried no GPU alone")
    subject = f"{device}: copies by {mechanism.replace('_', ' ')}"
    return gpu_judge(lambda: judge_alone(run.program.alone(address, mechanism), subject))


def test_host_memory_copies_deliver_every_byte(host_memory: Verdict) -> None:
    """
    What goes from a GPU to the host's memory and back is what it was.

    Weights and requests come this way; it needs no second GPU.
    """
    assert host_memory.ok, host_memory.message


def test_own_kernels_copy_every_byte(kernel_copy: Verdict) -> None:
    """
    A kernel copies within its GPU's memory exactly what stands there.

    It shows that kernels run at all, and where pairs are wrong that the GPU itself is not.
    """
    assert kernel_copy.ok, kernel_copy.message


def test_torch_copies_on_the_gpu_deliver_every_byte(torch_copy: Verdict) -> None:
    """
    torch, in the service's own Python, computes on the GPU, and a copy there is right.

    A torch that was built for other GPUs imports, and fails at its first kernel.
    """
    assert torch_copy.ok, torch_copy.message
