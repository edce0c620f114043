"""What the GPU programs say of themselves, and what the kernel said meanwhile: their copies and sums rest on both."""

from collections.abc import Callable

import pytest

from pytest_gpuinfra import GpuHost
from pytest_gpuinfra.gather.gpu import GpuRun, GpuRuns
from pytest_gpuinfra.subjects.pci.functions import PciFunctions
from pytest_gpuinfra.subjects.transfers.judge import judge_logged, judge_program
from pytest_gpuinfra.subjects.verdict import Verdict

pytestmark = pytest.mark.gpu_level("active")
Judge = Callable[[Callable[[], Verdict]], Verdict]


@pytest.fixture
def cuda_program(gpu_host: GpuHost, gpu_runs: GpuRuns, gpu_cuda_run: GpuRun, gpu_judge: Judge) -> Verdict:
    """Judge what cuda_program says of itself."""
    subject = f"{gpu_host.alias}: cuda_program"
    return gpu_judge(lambda: judge_program(gpu_cuda_run.program, subject, gpu_runs.settings.devices))


@pytest.fixture
def torch_program(gpu_host: GpuHost, gpu_runs: GpuRuns, gpu_torch_run: GpuRun, gpu_judge: Judge) -> Verdict:
    """Judge what torch_program says of itself."""
    subject = f"{gpu_host.alias}: torch_program"
    return gpu_judge(lambda: judge_program(gpu_torch_run.program, subject, gpu_runs.settings.devices))


@pytest.fixture
def logged_during_cuda(
    gpu_host: GpuHost, gpu_cuda_run: GpuRun, gpu_pci_functions: PciFunctions, gpu_judge: Judge
) -> Verdict:
    """Judge what the kernel logged from the capture to the end of cuda_program."""
    return gpu_judge(lambda: _logged(gpu_host, gpu_cuda_run, gpu_pci_functions, "cuda_program"))


@pytest.fixture
def logged_during_torch(
    gpu_host: GpuHost, gpu_torch_run: GpuRun, gpu_pci_functions: PciFunctions, gpu_judge: Judge
) -> Verdict:
    """Judge what the kernel logged from the capture to the end of torch_program."""
    return gpu_judge(lambda: _logged(gpu_host, gpu_torch_run, gpu_pci_functions, "torch_program"))


def _logged(host: GpuHost, run: GpuRun, functions: PciFunctions, program: str) -> Verdict:
    faults = run.faults(functions, host.expect.kernel_log, peer_access=host.expect.peer_access)
    return judge_logged(faults, f"{host.alias}: kernel log until the end of {program}")


def test_cuda_program_did_all_that_it_planned(cuda_program: Verdict) -> None:
    """
    The program of the copies and all-reduces came to its end, on the GPUs that it was to use, with every result.

    What a run says that broke off, or ran elsewhere, is a part of the truth.
    """
    assert cuda_program.ok, cuda_program.message


def test_torch_program_did_all_that_it_planned(torch_program: Verdict) -> None:
    """
    The program that uses the service's torch came to its end, on the GPUs that it was to use, with every result.

    What a run says that broke off, or ran elsewhere, is a part of the truth.
    """
    assert torch_program.ok, torch_program.message


def test_kernel_logs_no_fault_while_cuda_program_runs(logged_during_cuda: Verdict) -> None:
    """
    The kernel reports no Xid, no refused access and no error of the bus while the GPUs are at work.

    A GPU can fail under load only, and after its last copy was right.
    """
    assert logged_during_cuda.ok, logged_during_cuda.message


def test_kernel_logs_no_fault_while_torch_program_runs(logged_during_torch: Verdict) -> None:
    """
    The kernel reports no Xid, no refused access and no error of the bus while torch is at work.

    A GPU can fail under load only, and after its last copy was right.
    """
    assert logged_during_torch.ok, logged_during_torch.message
