"""From the sham driver to the verdict: of 2 to 16 GPUs, exactly the pair or rank with the fault is wrong."""

from __future__ import annotations

from itertools import permutations

import pytest

from pytest_gpuinfra.on_target.plan import MECHANISMS, P2P, SHM
from pytest_gpuinfra.subjects.path_safety.judge import RankPath, ServicePath, judge_path_safety
from pytest_gpuinfra.subjects.transfers.judge import judge_all_reduce, judge_transfer, judge_transport

from .conftest import KIB, Run

COUNTS = (2, 3, 4, 8, 16)
SMALL = {
    "sizes": (4 * KIB,),
    "odd_cases": (),
    "simultaneous": (),
    "chains": (),
    "repeats": 1,
    "timed_copies": 0,
    "messages": (("int32", 64), ("float32", 64), ("bfloat16", 64)),
    "timed_sums": 0,
}
OFF = {"NCCL_P2P_DISABLE": "1"}


def gpus(count: int) -> tuple[str, ...]:
    """Addresses of the sham's GPUs."""
    return tuple(f"0000:{number * 16 + 1:02x}:00.0" for number in range(count))


def safety(result, count, environment, custom):
    """Path safety of a service over all of them."""
    ranks = tuple(RankPath(rank, environment, True) for rank in range(count))
    service = ServicePath("engine", gpus(count), ranks, custom)
    return judge_path_safety(result.transfers, result.runs, service)


@pytest.mark.parametrize("count", COUNTS)
def test_one_bad_pair_by_one_mechanism(run: Run, count: int) -> None:
    """Last GPU to first, loads by CUDA IPC: one verdict of n(n-1) x 5 is wrong, and path safety follows from it."""
    environment = {
        "GPUINFRA_SHAM_GPUS": str(count),
        "GPUINFRA_FAULTS": f"zeroed,pair={count - 1}-0,mechanism=ipc_load",
    }
    result = run(environment=environment, arms=(SHM, P2P), **SMALL)
    bad = (gpus(count)[-1], gpus(count)[0], "ipc_load")
    endings = {
        (src, dst, mechanism): judge_transfer(result.transfer(src, dst, mechanism), "x", peer_access=None).ending
        for src, dst in permutations(gpus(count), 2)
        for mechanism in MECHANISMS
    }

    assert len(endings) == count * (count - 1) * 5
    assert {key: ending for key, ending in endings.items() if ending != "ok"} == {bad: "wrong"}
    assert [judge_all_reduce(one, "x", one.devices).ending for one in result.runs] == ["ok", "ok"]
    assert [judge_transport(one, "x", one.arm).ending for one in result.runs] == ["ok", "ok"]
    assert safety(result, count, OFF, False).state == "safe"
    assert safety(result, count, {}, False).state == "safe"
    wrong = safety(result, count, OFF, True)
    assert (wrong.state, wrong.switches) == ("unsafe", ("--disable-custom-all-reduce",))
    assert f"{bad[0]} to {bad[1]} by ipc_load" in wrong.reasons[0]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", ["rank_wrong", "rank_hang", "rank_die", "rank_error", "rank_p2p"])
def test_one_bad_rank(run: Run, count: int, kind: str) -> None:
    """The last rank is named in every bad ending; right sums over the wrong transport are the transport's failure."""
    last = gpus(count)[-1]
    rank = "" if kind == "rank_p2p" else f",rank={count - 1}"
    environment = {"GPUINFRA_SHAM_GPUS": str(count), "GPUINFRA_FAULTS": f"{kind}{rank}"}
    result = run(environment=environment, arms=(SHM,), **{**SMALL, "mechanisms": ()})
    verdict = judge_all_reduce(result.runs[0], "x", result.runs[0].devices)
    if kind == "rank_p2p":
        assert verdict.ok
        assert judge_transport(result.runs[0], "x", "shm").ending == "wrong"
    else:
        assert verdict.ending == "wrong"
        assert f"rank {count - 1} ({last})" in verdict.observed.split("\n")[0]


@pytest.mark.parametrize("count", COUNTS)
def test_gpu_without_memory_leaves_its_pairs_unknown(run: Run, count: int) -> None:
    """2(n-1) pairs are ERROR by every mechanism, the others pass; nothing fails."""
    environment = {
        "GPUINFRA_SHAM_GPUS": str(count),
        "GPUINFRA_FAULTS": "little_memory,device=1,free_bytes=900000000",
    }
    result = run(environment=environment, arms=(SHM,), **{**SMALL, "mechanisms": ("copy_engine",)})
    endings = [judge_transfer(one, "x", peer_access="correct").ending for one in result.transfers]

    assert endings.count("error") == 2 * (count - 1)
    assert endings.count("ok") == count * (count - 1) - 2 * (count - 1)
    assert judge_all_reduce(result.runs[0], "x", result.runs[0].devices).ending == "error"
