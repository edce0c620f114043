"""
The fixtures of GPUs at work: directed pairs, chains, all-reduces.

This module is loaded in every pytest session: it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from pytest_gpuinfra.fixtures import value_fixture

if TYPE_CHECKING:
    from pytest_gpuinfra.collectives import GroupRun, HostCollective, HostPair
    from pytest_gpuinfra.facts.all_reduce import AllReduceRun
    from pytest_gpuinfra.facts.gpu import GpuRow, GpuTable
    from pytest_gpuinfra.gpu_runs import GpuRun, GpuRuns
    from pytest_gpuinfra.host import GpuHost
    from pytest_gpuinfra.service_facts import ServiceFacts
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


@pytest.fixture(scope="session")
def gpu_service_environment(gpu_service: ServiceFacts, gpu_runs: GpuRuns) -> Mapping[str, str]:
    """
    Give the variables that the service's main process has in effect, as an all-reduce is to have them.

    Raises:
        FactUnavailable: They are not known whole: a title overwrote them, or they cannot be read.
    """
    return gpu_runs.service_arm.environment


@pytest.fixture(scope="session")
def gpu_service_run(
    gpu_host: GpuHost, gpu_service_environment: Mapping[str, str], gpu_runs: GpuRuns, gpu_cuda_run: GpuRun
) -> AllReduceRun | None:
    """
    Give the all-reduce as the service runs, with its environment and its NCCL; None if the program did not get there.

    Raises:
        As `gpu_cuda_run`, and as `gpu_service_environment`.
    """
    if len(gpu_host.computing_gpus) < 2:
        pytest.skip(f"{gpu_host.alias} has no two GPUs on the nvidia driver, expected or seen")
    plan = gpu_cuda_run.program.plan
    if gpu_runs.recorded is not None and plan is not None and "service" not in plan.arms:
        pytest.skip(f"the recording of {gpu_host.alias} holds no all-reduce as the service runs")
    return next((run for run in gpu_cuda_run.program.runs if run.arm == "service"), None)


gpu_collective: HostCollective = value_fixture(
    "gpu_collective", "Give a group of hosts that compute together: one test for each."
)
gpu_host_pair: HostPair = value_fixture(
    "gpu_host_pair", "Give two hosts of a group that compute together: one test for each pair that would be tried."
)


@pytest.fixture(scope="session")
def gpu_collective_run(gpu_collective: HostCollective) -> GroupRun:
    """
    Give the all-reduce over all hosts of the test's group.

    Raises:
        FactUnavailable: A host of it is not in this run or was not reached, or a recording is of another boot.
    """
    return gpu_collective.whole


@pytest.fixture(scope="session")
def gpu_host_pair_run(gpu_host_pair: HostPair, gpu_host: GpuHost) -> GroupRun:
    """
    Give the all-reduce over the test's two hosts; skip unless all hosts of the group together are wrong.

    Raises:
        FactUnavailable: As `gpu_collective_run`.
    """
    from pytest_gpuinfra.verdict.host_collective import judge_group

    group = next(one for one in gpu_host.collectives if one.name == gpu_host_pair.group)
    whole = group.whole
    ending = judge_group(whole.expected, whole.parts, whole.errors, group.name).ending
    if ending == "error":
        pytest.skip(f"group {group.name} could not be judged as a whole, so no pair is tried")
    if ending != "wrong":
        pytest.skip(f"group {group.name}: nothing is seen wrong with all hosts together, so no pair is tried")
    if len(whole.hosts) == 2:
        pytest.skip(f"group {group.name} is this pair, and was judged as a whole")
    return group.pairs[gpu_host_pair.one, gpu_host_pair.other]
