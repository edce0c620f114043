"""Copies between GPUs, every directed pair, every way that an engine or NCCL uses: what arrived, not what was said."""

from collections.abc import Callable

import pytest

from pytest_gpuinfra import Expectation, GpuHost
from pytest_gpuinfra.gather.gpu import GpuRun
from pytest_gpuinfra.subjects.transfers.judge import judge_bandwidth, judge_capability, judge_transfer
from pytest_gpuinfra.subjects.transfers.pair import DirectedPair
from pytest_gpuinfra.subjects.transfers.transfer import PeerTransfer
from pytest_gpuinfra.subjects.verdict import Verdict

pytestmark = pytest.mark.gpu_level("active")
Judge = Callable[[Callable[[], Verdict]], Verdict]
ByMechanism = Callable[..., Verdict]


@pytest.fixture
def by_mechanism(
    gpu_host: GpuHost, gpu_pair: DirectedPair, gpu_expect: Expectation, gpu_cuda_run: GpuRun, gpu_judge: Judge
) -> ByMechanism:
    """Judge the test's pair by one mechanism."""

    def judge(mechanism: str, *, simultaneous: bool = False) -> Verdict:
        transfer = gpu_cuda_run.program.transfer(gpu_pair.src, gpu_pair.dst, mechanism, simultaneous=simultaneous)
        both = ", both directions at once" if simultaneous else ""
        return gpu_judge(
            lambda: judge_transfer(
                transfer,
                f"{gpu_pair}: peer copy by {mechanism.replace('_', ' ')}{both}",
                peer_access=gpu_expect.peer_access,
                context=gpu_cuda_run.context(gpu_host.facts, gpu_pair, transfer),
            )
        )

    return judge


@pytest.fixture
def capability(gpu_pair: DirectedPair, gpu_expect: Expectation, gpu_cuda_run: GpuRun, gpu_judge: Judge) -> Verdict:
    """Judge what the driver says of peer access."""
    if gpu_expect.peer_access != "correct":
        pytest.skip(f'inventory does not expect peer_access = "correct" of {gpu_pair.host}')
    transfer = gpu_cuda_run.program.transfer(gpu_pair.src, gpu_pair.dst, "copy_engine")
    return gpu_judge(lambda: judge_capability(transfer, f"{gpu_pair}: peer access by the driver's word"))


@pytest.fixture
def copy_engine(by_mechanism: ByMechanism) -> Verdict:
    """Judge copies by the copy engine."""
    return by_mechanism("copy_engine")


@pytest.fixture
def kernel_store(by_mechanism: ByMechanism) -> Verdict:
    """Judge copies by a kernel that writes to the peer."""
    return by_mechanism("kernel_store")


@pytest.fixture
def kernel_load(by_mechanism: ByMechanism) -> Verdict:
    """Judge copies by a kernel that reads from the peer."""
    return by_mechanism("kernel_load")


@pytest.fixture
def ipc_store(by_mechanism: ByMechanism) -> Verdict:
    """Judge copies into another process's memory."""
    return by_mechanism("ipc_store")


@pytest.fixture
def ipc_load(by_mechanism: ByMechanism) -> Verdict:
    """Judge copies out of another process's memory."""
    return by_mechanism("ipc_load")


@pytest.fixture
def both_ways(by_mechanism: ByMechanism) -> Verdict:
    """Judge copies by the copy engine while the other direction is busy too."""
    return by_mechanism("copy_engine", simultaneous=True)


@pytest.fixture
def both_ways_store(by_mechanism: ByMechanism) -> Verdict:
    """Judge copies by a writing kernel while the other direction is busy too."""
    return by_mechanism("kernel_store", simultaneous=True)


@pytest.fixture
def both_ways_load(by_mechanism: ByMechanism) -> Verdict:
    """Judge copies by a reading kernel while the other direction is busy too."""
    return by_mechanism("kernel_load", simultaneous=True)


@pytest.fixture
def bandwidth(gpu_pair: DirectedPair, gpu_expect: Expectation, gpu_cuda_run: GpuRun, gpu_judge: Judge) -> Verdict:
    """Judge the pair's bandwidth by the copy engine."""
    transfer = gpu_cuda_run.program.transfer(gpu_pair.src, gpu_pair.dst, "copy_engine")
    subject = f"{gpu_pair}: bandwidth by copy engine"
    return gpu_judge(lambda: judge_bandwidth(transfer, subject, gpu_expect.gpu.peer_copy_gb_s_min))


@pytest.fixture
def chain(
    gpu_host: GpuHost, gpu_chain: DirectedPair, gpu_expect: Expectation, gpu_cuda_run: GpuRun, gpu_judge: Judge
) -> Verdict:
    """Judge the test's chain by every mechanism that was tried: the first that is not right, or the last."""
    wanted = (gpu_chain.src, gpu_chain.via, gpu_chain.dst)
    found: list[PeerTransfer | None] = [
        transfer for transfer in gpu_cuda_run.program.chains if (transfer.src, transfer.via, transfer.dst) == wanted
    ]

    def judge() -> Verdict:
        verdicts = [
            judge_transfer(
                transfer,
                f"{gpu_chain}: chain of copies",
                peer_access=gpu_expect.peer_access,
                context=gpu_cuda_run.context(gpu_host.facts, gpu_chain, transfer),
            )
            for transfer in found or [None]
        ]
        return next((verdict for verdict in verdicts if not verdict.ok), verdicts[-1])

    return gpu_judge(judge)


@pytest.fixture
def torch_copy(
    gpu_host: GpuHost, gpu_pair: DirectedPair, gpu_expect: Expectation, gpu_torch_run: GpuRun, gpu_judge: Judge
) -> Verdict:
    """Judge a copy by torch in the service's Python."""
    transfer = gpu_torch_run.program.transfer(gpu_pair.src, gpu_pair.dst, "torch_copy")
    return gpu_judge(
        lambda: judge_transfer(
            transfer,
            f"{gpu_pair}: peer copy by torch",
            peer_access=gpu_expect.peer_access,
            context=gpu_torch_run.context(gpu_host.facts, gpu_pair, transfer),
        )
    )


@pytest.mark.gpu_judges("peer_access")
def test_peer_access_is_offered(capability: Verdict) -> None:
    """
    The driver offers peer access for the pair.

    "Can" is not "works": whether the bytes arrive is another fact, and another check.
    """
    assert capability.ok, capability.message


@pytest.mark.gpu_judges("peer_access")
def test_copy_engine_delivers_every_byte(copy_engine: Verdict) -> None:
    """
    A copy by the copy engine leaves on the destination exactly what the source held.

    CUDA can report success for a copy that the platform dropped; only the owner's own look shows it.
    """
    assert copy_engine.ok, copy_engine.message


@pytest.mark.gpu_judges("peer_access")
def test_kernel_stores_deliver_every_byte(kernel_store: Verdict) -> None:
    """
    A kernel that writes into the peer's memory leaves there exactly what it wrote.

    NCCL's peer-to-peer transport and the engines' own all-reduces write this way.
    """
    assert kernel_store.ok, kernel_store.message


@pytest.mark.gpu_judges("peer_access")
def test_kernel_loads_deliver_every_byte(kernel_load: Verdict) -> None:
    """
    A kernel that reads the peer's memory gets exactly what stands there.

    Reads and writes take different ways through bridges and IOMMU, and can fail alone.
    """
    assert kernel_load.ok, kernel_load.message


def test_ipc_stores_deliver_every_byte(ipc_store: Verdict) -> None:
    """
    A write into another process's memory by CUDA IPC arrives.

    The engines' custom all-reduces use this, and NCCL_P2P_DISABLE does not switch it off.
    """
    assert ipc_store.ok, ipc_store.message


def test_ipc_loads_deliver_every_byte(ipc_load: Verdict) -> None:
    """
    A read from another process's memory by CUDA IPC gets what stands there.

    The engines' custom all-reduces use this, and NCCL_P2P_DISABLE does not switch it off.
    """
    assert ipc_load.ok, ipc_load.message


def test_copies_in_both_directions_at_once_deliver_every_byte(both_ways: Verdict) -> None:
    """
    A copy is right also while the other direction is busy.

    An all-reduce drives both directions at the same time.
    """
    assert both_ways.ok, both_ways.message


def test_stores_in_both_directions_at_once_deliver_every_byte(both_ways_store: Verdict) -> None:
    """
    Kernel writes are right also while the other direction is busy.

    An all-reduce drives both directions at the same time.
    """
    assert both_ways_store.ok, both_ways_store.message


def test_loads_in_both_directions_at_once_deliver_every_byte(both_ways_load: Verdict) -> None:
    """
    Kernel reads are right also while the other direction is busy.

    An all-reduce drives both directions at the same time.
    """
    assert both_ways_load.ok, both_ways_load.message


def test_chain_of_three_delivers_every_byte(chain: Verdict) -> None:
    """
    What goes from GPU to GPU to GPU arrives as it left.

    A ring passes data on that was just received: every pair can be right and a chain still wrong.
    """
    assert chain.ok, chain.message


def test_torch_copy_delivers_every_byte(torch_copy: Verdict) -> None:
    """
    A copy by torch, in the service's own Python, arrives.

    Its sitecustomize and environment apply, as they do to the service.
    """
    assert torch_copy.ok, torch_copy.message


@pytest.mark.gpu_judges("gpu.peer_copy_gb_s_min")
def test_bandwidth_is_what_it_was(bandwidth: Verdict) -> None:
    """
    The pair is as fast as it was measured before.

    A link that trained down is right, and slow.
    """
    assert bandwidth.ok, bandwidth.message
