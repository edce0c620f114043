"""
The fixtures of GPUs at work: directed pairs, chains, all-reduces.

This module is loaded in every pytest session: it imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuinfra.fixtures import value_fixture

if TYPE_CHECKING:
    from pytest_gpuinfra.facts.gpu import GpuRow, GpuTable
    from pytest_gpuinfra.facts.gpu_program import AllReduceRun
    from pytest_gpuinfra.gpu_runs import GpuRun, GpuRuns
    from pytest_gpuinfra.host import GpuHost
    from pytest_gpuinfra.targets import DirectedPair, GpuDevice

gpu_pair: DirectedPair = value_fixture("gpu_pair", "Give a directed pair of GPUs: one test for each, n(n-1) for n.")
gpu_chain: DirectedPair = value_fixture("gpu_chain", "Give a chain of three GPUs: one test for each, n(n-1)(n-2).")
gpu_arm: str = value_fixture("gpu_arm", "Give the name of an all-reduce arm: one test for each.")


@pytest.fixture(scope="session")
def gpu_table(gpu_host: GpuHost) -> GpuTable:
    """
    Give what the driver reports of each GPU (`nvidia-smi -q -x`); skip where no GPU is to be on nvidia.

    Raises:
        FactUnavailable: nvidia-smi is not there, or printed a message in place of data.
    """
    if not gpu_host.computing_gpus:
        pytest.skip(f"{gpu_host.alias} has no GPU on the nvidia driver, expected or seen")
    return gpu_host.facts.gpu_table


@pytest.fixture(scope="session")
def gpu_row(gpu_device: GpuDevice, gpu_table: GpuTable) -> GpuRow:
    """
    Give what the driver reports of the test's GPU; skip where it is to be on another driver.

    Raises:
        FactUnavailable: The driver does not show it.
    """
    from pytest_gpuinfra.errors import FactUnavailable

    if gpu_device.expect.driver not in (None, "nvidia"):
        pytest.skip(f"{gpu_device} is to be on {gpu_device.expect.driver}, so the nvidia driver does not show it")
    for row in gpu_table:
        if row.pci_address == gpu_device.pci_address:
            return row
    raise FactUnavailable(
        "nvidia-smi -q -x", f"it shows no GPU at {gpu_device.pci_address}", remedy="read the kernel log for NVRM"
    )


@pytest.fixture(scope="session")
def gpu_runs(gpu_host: GpuHost) -> GpuRuns:
    """Give the GPU programs of the host; each runs once a session, on first use."""
    if gpu_host.gpu_runs is None:
        pytest.skip(f"{gpu_host.alias} has no GPU on the nvidia driver, or its recording holds no run of GPU programs")
    return gpu_host.gpu_runs


@pytest.fixture(scope="session")
def gpu_cuda_run(gpu_runs: GpuRuns) -> GpuRun:
    """
    Give what cuda_program saw: every pair by every mechanism, and every all-reduce arm.

    Raises:
        FactUnavailable, ProbeError, CommandTimeout, UnreachableError: It could not be run to its end.
    """
    return gpu_runs.cuda


@pytest.fixture(scope="session")
def gpu_torch_run(gpu_runs: GpuRuns) -> GpuRun:
    """
    Give what torch_program saw in the service's Python; skip where that has no torch.

    Raises:
        As `gpu_cuda_run`.
    """
    run = gpu_runs.torch
    if run.program.skipped_reason:
        pytest.skip(f"{gpu_runs.alias}: {run.program.skipped_reason}; name a Python that has torch with --gpu-python")
    return run


@pytest.fixture(scope="session")
def gpu_allreduce_run(gpu_arm: str, gpu_cuda_run: GpuRun) -> AllReduceRun | None:
    """Give the all-reduce of the test's arm; None if the program did not get there."""
    return next((run for run in gpu_cuda_run.program.runs if run.arm == gpu_arm), None)
