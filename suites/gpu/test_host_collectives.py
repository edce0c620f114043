"""All-reduces over groups of hosts: exact sums on every one, over the network that is expected; else, which host."""

from collections.abc import Callable

import pytest

from pytest_gpuinfra.gather.groups import GroupRun, HostCollective, HostPair
from pytest_gpuinfra.subjects.groups.judge import (
    judge_group,
    judge_group_busbw,
    judge_group_direct,
    judge_group_transport,
    judge_with_pairs,
)
from pytest_gpuinfra.subjects.verdict import Verdict

pytestmark = pytest.mark.gpu_level("active")
Judge = Callable[[Callable[[], Verdict]], Verdict]


@pytest.fixture
def sums(gpu_collective: HostCollective, gpu_collective_run: GroupRun, gpu_judge: Judge) -> Verdict:
    """Judge the sums of the test's group; where they are wrong, pairs of its hosts name the bad one."""
    run, hosts = gpu_collective_run, ", ".join(gpu_collective_run.hosts)

    def judge() -> Verdict:
        verdict = judge_group(run.expected, run.parts, run.errors, f"group {gpu_collective.name} ({hosts}): all-reduce")
        if verdict.ending != "wrong" or len(run.hosts) < 3:
            return verdict
        return judge_with_pairs(
            verdict,
            {
                pair: judge_group(one.expected, one.parts, one.errors, str(pair)).ending
                for pair, one in gpu_collective.pairs.items()
            },
        )

    return gpu_judge(judge)


@pytest.fixture
def transport(gpu_collective: HostCollective, gpu_collective_run: GroupRun, gpu_judge: Judge) -> Verdict:
    """Judge the transport between the hosts of the test's group."""
    wanted = gpu_collective.expect.transport
    if wanted is None:
        pytest.skip(f"inventory expects no collectives.{gpu_collective.name}.transport")
    subject = f"group {gpu_collective.name}: transport between its hosts"
    return gpu_judge(lambda: judge_group_transport(gpu_collective_run.parts, subject, wanted))


@pytest.fixture
def direct(gpu_collective: HostCollective, gpu_collective_run: GroupRun, gpu_judge: Judge) -> Verdict:
    """Judge whether the network of the test's group reaches GPU memory directly; skip where it is not named."""
    expect, name = gpu_collective.expect, gpu_collective.name
    if expect.transport is None and expect.gpu_direct_rdma is None:
        pytest.skip(f"inventory expects no collectives.{name}.gpu_direct_rdma")
    subject = f"group {name}: GPU Direct RDMA between its hosts"
    return gpu_judge(lambda: judge_group_direct(gpu_collective_run.parts, subject, expect.gpu_direct_rdma))


@pytest.fixture
def busbw(gpu_collective: HostCollective, gpu_collective_run: GroupRun, gpu_judge: Judge) -> Verdict:
    """Judge the speed of the test's group."""
    least = gpu_collective.expect.busbw_gb_s_min
    if least is None:
        pytest.skip(f"inventory expects no collectives.{gpu_collective.name}.busbw_gb_s_min")
    subject = f"group {gpu_collective.name}: busbw of the all-reduce"
    return gpu_judge(lambda: judge_group_busbw(gpu_collective_run.parts, subject, least))


@pytest.fixture
def pair_sums(gpu_host_pair: HostPair, gpu_host_pair_run: GroupRun, gpu_judge: Judge) -> Verdict:
    """Judge the sums of the test's two hosts."""
    run = gpu_host_pair_run
    subject = f"group {gpu_host_pair.group}: all-reduce over {gpu_host_pair}"
    return gpu_judge(lambda: judge_group(run.expected, run.parts, run.errors, subject))


def test_hosts_sum_right_together(sums: Verdict) -> None:
    """
    All hosts of a group meet, and an all-reduce over them gives the exact sum in every rank.

    One bad link, route or host stops or spoils all of them; the message says which.
    """
    assert sums.ok, sums.message


def test_hosts_use_the_network_that_was_built_for_it(transport: Verdict) -> None:
    """
    NCCL's own log proves the expected transport on every channel between hosts.

    Without its plugin or its adapter NCCL falls back to plain sockets, and says so nowhere else.
    """
    assert transport.ok, transport.message


def test_hosts_reach_gpu_memory_directly(direct: Verdict) -> None:
    """
    NCCL's own log tells of every channel between hosts whether the network card reaches GPU memory directly.

    Without nvidia_peermem or dma-buf NCCL copies everything through host memory, and is right, and slow.
    """
    assert direct.ok, direct.message


def test_hosts_are_as_fast_together_as_before(busbw: Verdict) -> None:
    """
    The largest all-reduce over the group is as fast as it was measured before.

    The slowest link of the group sets the pace for all.
    """
    assert busbw.ok, busbw.message


def test_two_hosts_sum_right_together(pair_sums: Verdict) -> None:
    """
    Two hosts of a group that fails as a whole sum right with each other.

    The pairs that fail have the bad host in common.
    """
    assert pair_sums.ok, pair_sums.message
