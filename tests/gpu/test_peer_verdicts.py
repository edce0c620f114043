"""Peer transfers and all-reduces judged: every ending of every verdict, from 2 to 16 GPUs."""

from __future__ import annotations

from itertools import permutations

import pytest

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.subjects.path_safety.judge import (
    IPC_MECHANISMS,
    NCCL_MECHANISMS,
    RankPath,
    ServicePath,
    judge_path_safety,
    judge_without_service,
)
from pytest_gpuinfra.subjects.transfers.all_reduce import AllReduceRun, RankChannels, RankReport, SumResult, SumSpeed
from pytest_gpuinfra.subjects.transfers.collective_log import judge_nccl_log
from pytest_gpuinfra.subjects.transfers.gpu_library import GpuLibrary
from pytest_gpuinfra.subjects.transfers.judge import (
    judge_all_reduce,
    judge_bandwidth,
    judge_busbw,
    judge_capability,
    judge_service_run,
    judge_transfer,
    judge_transport,
)
from pytest_gpuinfra.subjects.transfers.nccl_log import parse_nccl_log
from pytest_gpuinfra.subjects.transfers.transfer import PeerTransfer, WrongCopy

A, B = "0000:01:00.0", "0000:11:00.0"
RANK = RankReport(1, B, 7, "calling x", False, None, "SIGSEGV", "an error", "the last line", 0.1)
THROUGH = tuple(RankReport(rank, pci, 7, "leaving", True, None, None, None, "", 0.1) for rank, pci in enumerate((A, B)))
LIBRARY = GpuLibrary("/usr/lib/libnccl.so.2", "2.28.9", None)
SUM = SumResult("int32", 4, 1, 1, 2, 0, {}, 0, 0, None)
SPEED = SumSpeed("int32", 4, 1e-3, 20.0, 20.0)
FAILURE = WrongCopy(4096, 0, 0, 2, 9, 9, 0, 0, 4087, 4095, 16)


def copy(outcome="right", *, can_access=True, gb_s=None, reason=None, src=A, dst=B, mechanism="copy_engine"):
    """One transfer."""
    wrong = 9 if outcome == "wrong" else 0
    return PeerTransfer(
        src, dst, None, mechanism, False, can_access, outcome, "never_written" if wrong else None, reason, 4, 16384,
        4096, int(bool(wrong)), wrong, wrong, 0, 0, 16 if wrong else 0, (FAILURE,) if wrong else (), gb_s, None, None,
    )  # fmt: skip


def run(ending="right", *, arm="shm", seen=("SHM",), speed=SPEED, sums=(SUM,), devices=(A, B), reason=None):
    """One all-reduce."""
    return AllReduceRun(
        "cuda", arm, devices, ending, reason if ending == "right" else "rank 1 stopped", {}, (), LIBRARY, sums,
        speed if ending == "right" else None,
        tuple(RankChannels(*ends, word, "", 4) for word in seen for ends in ((0, 1), (1, 0))),
        THROUGH if ending == "right" else (RANK,), (), (), (), 1.0, 0.5,
    )  # fmt: skip


@pytest.mark.parametrize("peer_access", ["correct", "blocked", "any", None])
@pytest.mark.parametrize(
    ("transfer", "endings"),
    [
        # By what the inventory says: correct, blocked, any, nothing.
        (copy(), ("ok", "ok", "ok", "ok")),
        (copy("wrong"), ("wrong", "skip", "skip", "wrong")),
        (copy("failed", reason="x"), ("wrong", "skip", "skip", "wrong")),
        (copy("hang", reason="x"), ("wrong", "skip", "skip", "wrong")),
        (copy("crash", reason="x"), ("wrong", "skip", "skip", "wrong")),
        (copy("not_tested", can_access=False, reason="x"), ("wrong", "skip", "skip", "skip")),
        (copy("error", can_access=None, reason="no memory"), ("error", "error", "error", "error")),
        (None, ("error", "skip", "error", "error")),
    ],
    ids=["right", "wrong", "failed", "hang", "crash", "not-tested", "error", "nothing-said"],
)
def test_ending_of_a_copy_by_expectation(transfer, endings, peer_access):
    """Unknown is never a pass and never a failure; wrong where nothing relies on peers is told and skipped."""
    verdict = judge_transfer(transfer, "x", peer_access=peer_access, context=("IOMMU group types: DMA-FQ",))

    assert verdict.ending == endings[["correct", "blocked", "any", None].index(peer_access)], verdict
    assert transfer is None or "IOMMU group types: DMA-FQ" in verdict.observed


def test_message_of_a_wrong_copy_has_class_counts_place_and_neighbours():
    """What a person needs to see what kind of fault it is."""
    verdict = judge_transfer(copy("wrong"), "x", peer_access=None)

    for word in ("never written", "9 of 16384 bytes", "first at offset 4087", "16 bytes beside the destination"):
        assert word in verdict.observed


@pytest.mark.parametrize(
    ("transfer", "ending", "words"),
    [
        (copy(), "ok", "offered"),
        (copy("not_tested", can_access=False), "wrong", "not offered"),
        (copy("error", can_access=None, reason="no memory"), "error", "no memory"),
        (copy("error", can_access=None), "error", "the driver did not say"),
        (None, "error", "the driver was not asked"),
    ],
)
def test_capability(transfer, ending, words):
    """The driver's word alone."""
    verdict = judge_capability(transfer, "x")

    assert (verdict.ending, verdict.observed) == (ending, words)


@pytest.mark.parametrize(
    ("transfer", "least", "ending"),
    [
        (copy(gb_s=390.0), 380.0, "ok"),
        (copy(gb_s=370.0), 380.0, "wrong"),
        (copy("wrong"), 380.0, "error"),
        (None, 380.0, "error"),
        (copy(gb_s=370.0), None, "skip"),
    ],
)
def test_bandwidth(transfer, least, ending):
    """Only right bytes have one, and only an expectation makes it a verdict."""
    assert judge_bandwidth(transfer, "x", least).ending == ending


@pytest.mark.parametrize(
    ("result", "ending"),
    [
        (run(), "ok"),
        (run("wrong"), "wrong"),
        (run("failed"), "wrong"),
        (run("hang"), "wrong"),
        (run("crash", arm="p2p"), "wrong"),
        (run("inconclusive"), "error"),
        (run(sums=()), "error"),
        (None, "error"),
    ],
)
def test_all_reduce(result, ending):
    """Each bad ending with its rank's stage, error and last line; no sum is no pass."""
    for verdict in (judge_all_reduce(result, "x", (A, B)), judge_service_run(result, "x", (A, B))):
        assert verdict.ending == ending
        if ending == "wrong":
            assert f"rank 1 ({B}): calling x; an error; last line: the last line" in verdict.observed
    action = judge_all_reduce(result, "x", (A, B)).action
    assert ("NCCL_P2P_DISABLE=1" in action) == (result is not None and result.arm == "p2p")


@pytest.mark.parametrize(
    ("result", "arm", "ending"),
    [
        (run(), "shm", "ok"),
        (run(seen=("SHM", "P2P")), "shm", "wrong"),
        (run(seen=("P2P",)), "p2p", "ok"),
        (run(seen=()), "shm", "error"),
        (run("hang", seen=()), "shm", "error"),
        (None, "shm", "error"),
        (run(), "service", "skip"),
    ],
)
def test_transport(result, arm, ending):
    """Asked for and seen are two facts; a log that proves nothing is unknown."""
    assert judge_transport(result, "x", arm).ending == ending


@pytest.mark.parametrize(
    ("result", "least", "ending"),
    [
        (run(), {"shm": 19.0}, "ok"),
        (run(), {"shm": 21.0}, "wrong"),
        (run(), {"p2p": 21.0}, "skip"),
        (run("hang"), {"shm": 19.0}, "error"),
        (None, {"shm": 19.0}, "error"),
    ],
)
def test_busbw(result, least, ending):
    """Against what was measured before."""
    assert judge_busbw(result, "x", least, "shm").ending == ending


def gpus(count):
    """Addresses of so many GPUs."""
    return tuple(f"0000:{number * 16 + 1:02x}:00.0" for number in range(count))


def path_of(count, *, wrong=None, arm=None):
    """Path safety over so many GPUs: all pairs by all mechanisms, both arms, P2P on and the engine's own on."""
    devices = gpus(count)
    transfers = [
        copy("wrong" if (src, dst, mechanism) == wrong else "right", src=src, dst=dst, mechanism=mechanism)
        for src, dst in permutations(devices, 2)
        for mechanism in (*NCCL_MECHANISMS, *IPC_MECHANISMS)
    ]
    runs = (run(devices=devices), run(arm or "right", arm="p2p", seen=("P2P",), devices=devices))
    ranks = tuple(RankPath(rank, {}, True) for rank in range(count))
    return judge_path_safety(transfers, runs, ServicePath("engine", devices, ranks, True))


@pytest.mark.parametrize("count", [2, 3, 4, 8, 16])
def test_one_bad_pair_of_many_is_named_and_nothing_else(count):
    """n(n-1) pairs by five mechanisms: all right is safe; one wrong one is unsafe and the only one named."""
    devices = gpus(count)
    assert path_of(count).state == "safe"
    assert f"all {count * (count - 1)} directed pairs" in path_of(count).reasons[0]

    bad = path_of(count, wrong=(devices[-1], devices[0], "ipc_load"))
    assert bad.state == "unsafe"
    assert len(bad.reasons) == 1
    assert f"{devices[-1]} to {devices[0]} by ipc_load" in bad.reasons[0]
    assert bad.switches == ("--disable-custom-all-reduce",)
    assert path_of(count, arm="hang").switches == ("NCCL_P2P_DISABLE=1",)


@pytest.mark.parametrize(
    ("safety", "words"),
    [
        (None, "what would be safe to run is unknown"),
        (judge_path_safety([], (run(),), None, devices=(A, B)), "safe to run, by what was proven: NCCL_P2P_DISABLE=1"),
        (
            judge_path_safety([], (run("hang"),), None, devices=(A, B)),
            "nothing is proven to be safe to run: all-reduce",
        ),
        (judge_path_safety([], (), None, devices=(A, B)), "nothing is proven to be safe to run: no result"),
    ],
)
def test_without_an_expected_service_it_is_skipped_with_what_would_be_safe(safety, words):
    """Nobody expects anything: no pass, no failure, and what was proven all the same."""
    verdict = judge_without_service(safety, "node-a", "inventory names no service")

    assert verdict.ending == "skip"
    assert words in verdict.reason


EDGE = "node-a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct"
NODES = "node-a:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2"
WRONG = "# Out of bounds values : 3 FAILED"


@pytest.mark.parametrize(
    ("text", "options", "ending", "words"),
    [
        (EDGE, {}, "ok", "1 connections by SHM"),
        (f"{EDGE}\nnode-a:1:1 [0] NCCL WARN NUMA auto balancing enabled", {}, "ok", "1 connections"),
        (f"{EDGE}\nnode-a:1:1 [0] NCCL WARN Cuda failure 2 'out of memory'", {}, "wrong", "NCCL warns"),
        (f"{EDGE}\nWatchdog caught collective operation timeout", {}, "wrong", "the framework gives up"),
        (f"{EDGE}\n{WRONG}", {}, "wrong", "3 wrong values in the result"),
        (EDGE, {"timed_out": True}, "wrong", "it did not come to an end; its last line"),
        (NODES, {}, "error", "no line names a transport"),
        (f"{NODES}\n{EDGE}", {"direct": True}, "wrong", "not direct inside the host: 0-1 SHM"),
    ],
)
def test_log_of_a_collective(text, options, ending, words):
    """Warnings, the framework's word, wrong values, a missing end: wrong; a log without a transport is unknown."""
    verdict = judge_nccl_log(parse_nccl_log(Reading("log", text)), **options)

    assert verdict.ending == ending, verdict
    assert words in verdict.observed
