"""The truth table of path safety: every branch, with the pair and the switch that a reason has to name."""

from __future__ import annotations

from itertools import permutations

import pytest

from pytest_gpuinfra.subjects.path_safety.judge import (
    IPC_MECHANISMS,
    NCCL_MECHANISMS,
    RankPath,
    ServicePath,
    custom_all_reduce_in_effect,
    judge_path_safety,
    peer_arguments_in_effect,
)
from pytest_gpuinfra.subjects.transfers.all_reduce import AllReduceRun, RankChannels
from pytest_gpuinfra.subjects.transfers.transfer import PeerTransfer

A, B, C, D = (f"0000:{bus}:00.0" for bus in ("01", "11", "61", "71"))
OFF = {"NCCL_P2P_DISABLE": "1"}


def transfer(src, dst, mechanism, outcome="right", simultaneous=False):
    """One transfer."""
    wrong = 4096 if outcome == "wrong" else 0
    return PeerTransfer(
        src, dst, None, mechanism, simultaneous, outcome != "not_tested", outcome,
        "never_written" if wrong else None, None if outcome in ("right", "wrong") else "because", 1, 4096, 4096,
        int(bool(wrong)), wrong, wrong, 0, 0, 0, (), None, None, None,
    )  # fmt: skip


def transfers(devices=(A, B), wrong=(), outcome="wrong", leave_out=()):
    """All pairs by all mechanisms; those of `wrong`, (src, dst, mechanism), with another outcome."""
    return [
        transfer(src, dst, mechanism, outcome if (src, dst, mechanism) in wrong else "right")
        for src, dst in permutations(devices, 2)
        for mechanism in (*NCCL_MECHANISMS, *IPC_MECHANISMS)
        if mechanism not in leave_out
    ]


def run(arm, ending="right", seen=None, environment=None, devices=(A, B)):
    """One all-reduce arm."""
    seen = ({"shm": ("SHM",), "p2p": ("P2P",)}.get(arm, ())) if seen is None else seen
    environment = ({"shm": OFF}.get(arm, {})) if environment is None else environment
    return AllReduceRun(
        "cuda", arm, devices, ending, None if ending == "right" else "rank 1 stopped", environment, (), None, (), None,
        tuple(RankChannels(0, 1, word, "", 4) for word in seen), (), (), (), (), 1.0, 0.5,
    )  # fmt: skip


def service(environment=None, *, whole=True, transport=None, custom=False, devices=(A, B), **changes):
    """A service whose ranks are all alike."""
    ranks = tuple(RankPath(rank, environment or {}, whole, transport) for rank in range(len(devices)))
    return ServicePath("sglang-qwen", devices, **{"ranks": ranks, "custom_all_reduce": custom, **changes})


BOTH = (run("shm"), run("p2p"))
CORRUPT = transfers(wrong={(A, B, "kernel_store"), (A, B, "ipc_load")})
MIXED_RANKS = (RankPath(0, OFF, True), RankPath(1, {}, True))
SEVERAL = (A, B, C)

# name: (transfers, runs, service, state, words that the reasons hold, switches)
TABLE = {
    "P2P off, custom off, pairs corrupt: the reference host as it runs":
        (CORRUPT, BOTH, service(OFF), "safe", ("shared memory", "own all-reduce is off"), ()),
    "P2P on, custom on, all right":
        (transfers(), BOTH, service(custom=True), "safe", ("peer-to-peer", "all 2 directed pairs"), ()),
    "P2P on, pairs corrupt":
        (CORRUPT, BOTH, service(), "unsafe",
         (f"{A} to {B} by kernel_store", "NCCL_P2P_DISABLE=1 is missing in rank 0, 1"), ("NCCL_P2P_DISABLE=1",)),
    "P2P off, custom on, IPC corrupt: the switch of the other layer":
        (CORRUPT, BOTH, service(OFF, custom=True), "unsafe",
         (f"{A} to {B} by ipc_load", "--disable-custom-all-reduce is missing"), ("--disable-custom-all-reduce",)),
    "both on, both corrupt":
        (CORRUPT, BOTH, service(custom=True), "unsafe", ("kernel_store", "ipc_load"),
         ("NCCL_P2P_DISABLE=1", "--disable-custom-all-reduce")),
    "P2P on, pairs right, all-reduce over P2P hangs":
        (transfers(), (run("shm"), run("p2p", "hang")), service(), "unsafe", ("ended hang",), ("NCCL_P2P_DISABLE=1",)),
    "all-reduce hangs before NCCL logs a transport: it was on its way to P2P":
        (transfers(), (run("shm"), run("p2p", "hang", seen=())), service(), "unsafe", ("over P2P",),
         ("NCCL_P2P_DISABLE=1",)),
    "the same with P2P off counts against SHM":
        (transfers(), (run("shm", "hang", seen=()),), service(OFF), "unsafe", ("shared memory", "over SHM"), ()),
    "SHM wrong, P2P right: P2P is the way":
        (transfers(), (run("shm", "wrong"), run("p2p")), service(OFF), "unsafe", ("ended wrong",),
         ("NCCL_P2P_DISABLE=0",)),
    "P2P corrupt and SHM wrong: no switch helps":
        (CORRUPT, (run("shm", "crash"), run("p2p")), service(), "unsafe", ("kernel_store",), ()),
    "P2P off, SHM never proven":
        (transfers(), (run("p2p"),), service(OFF), "unknown", ("no all-reduce over SHM",), ()),
    "SHM arm inconclusive proves nothing":
        (transfers(), (run("shm", "inconclusive", seen=()),), service(OFF), "unknown", ("no all-reduce over SHM",), ()),
    "the arm asked for SHM and NCCL took P2P":
        (transfers(), (run("shm", seen=("P2P",)),), service(OFF), "unknown", ("no all-reduce over SHM",), ()),
    "P2P on, a pair not proven":
        (transfers(wrong={(B, A, "kernel_load")}, outcome="error"), BOTH, service(), "unknown",
         (f"not proven: {B} to {A} by kernel_load",), ()),
    "P2P on, no P2P arm":
        (transfers(), (run("shm"),), service(), "unknown", ("no all-reduce over P2P",), ()),
    "results of other GPUs prove nothing":
        (transfers((C, D)), (run("shm", devices=(C, D)), run("p2p", devices=(C, D))), service(OFF), "unknown",
         ("exactly these GPUs",), ()),
    "corruption on GPUs that the service does not use":
        (transfers() + transfers((C, D), wrong={(C, D, "copy_engine")}), BOTH, service(custom=True), "safe",
         ("peer-to-peer",), ()),
    "no results at all":
        ([], (), service(OFF), "unknown", ("no all-reduce over SHM",), ()),
    "custom on, IPC not tested":
        (transfers(leave_out=IPC_MECHANISMS), BOTH, service(OFF, custom=True), "unknown", ("not proven",), ()),
    "custom unknown, IPC right: it does not matter":
        (transfers(), BOTH, service(OFF, custom=None), "safe", ("use or not",), ()),
    "custom unknown, IPC corrupt":
        (CORRUPT, BOTH, service(OFF, custom=None), "unknown", ("is unknown, and CUDA IPC is wrong",), ()),
    "custom unknown, IPC not tested":
        (transfers(leave_out=IPC_MECHANISMS), BOTH, service(OFF, custom=None), "unknown", ("not proven",), ()),
    "another peer path of the engine's":
        (CORRUPT, BOTH, service(OFF, peer_arguments=("--enable-mscclpp",)), "unsafe", ("--enable-mscclpp is on",),
         ("no --enable-mscclpp",)),
    "P2P off in some ranks only":
        (CORRUPT, BOTH, service(ranks=MIXED_RANKS), "unsafe", ("not in rank 1",),
         ("NCCL_P2P_DISABLE=1 in every rank",)),
    "environment overwritten, transport seen":
        (CORRUPT, BOTH, service(whole=False, transport="SHM"), "safe", ("shared memory",), ()),
    "environment overwritten, P2P seen, corrupt":
        (CORRUPT, BOTH, service(whole=False, transport="P2P"), "unsafe", ("kernel_store",), ("NCCL_P2P_DISABLE=1",)),
    "environment overwritten, nothing seen":
        (CORRUPT, BOTH, service(whole=False), "unknown", ("path in rank 0, 1 is unknown",), ()),
    "environment overwritten, nothing seen, everything right":
        (transfers(), BOTH, service(whole=False), "safe", ("both shared memory and peer-to-peer",), ()),
    "environment overwritten, what is left says it":
        (CORRUPT, BOTH, service(OFF, whole=False), "safe", ("shared memory",), ()),
    "ranks not found":
        (CORRUPT, BOTH, service(ranks=()), "unknown", ("ranks of sglang-qwen were not found",), ()),
    "ranks not found, everything right":
        (transfers(), BOTH, service(ranks=()), "safe", ("both shared memory and peer-to-peer",), ()),
    "variables say off, P2P is seen, corrupt":
        (CORRUPT, BOTH, service(OFF, transport="P2P"), "unsafe", ("although its variables switch that off",), ()),
    "variables say off, P2P is seen, right":
        (transfers(), BOTH, service(OFF, transport="P2P"), "safe", ("although its variables switch that off",), ()),
    "P2P off by its level":
        (CORRUPT, BOTH, service({"NCCL_P2P_LEVEL": "LOC"}), "safe", ("shared memory",), ()),
    "NCCL_P2P_DISABLE=0 is on":
        (CORRUPT, BOTH, service({"NCCL_P2P_DISABLE": "0"}), "unsafe", ("is missing",), ("NCCL_P2P_DISABLE=1",)),
    "P2P and SHM off: the network":
        (transfers(), BOTH, service({**OFF, "NCCL_SHM_DISABLE": "1"}), "unknown", ("goes over the network",), ()),
    "P2P and SHM off, and the network proven":
        (transfers(), (run("service", seen=("NET",)),), service({**OFF, "NCCL_SHM_DISABLE": "1"}), "safe",
         ("goes over the network",), ()),
    "no peer access anywhere: NCCL has only SHM":
        ([transfer(src, dst, word, "not_tested") for src, dst in ((A, B), (B, A)) for word in NCCL_MECHANISMS],
         (run("shm"),), service(), "safe", ("shared memory",), ()),
    "peer access between some: the mixture is proven":
        (transfers(SEVERAL, {(A, C, m) for m in NCCL_MECHANISMS} | {(C, A, m) for m in NCCL_MECHANISMS}, "not_tested"),
         (run("p2p", seen=("P2P", "SHM"), devices=SEVERAL),), service(devices=SEVERAL), "safe",
         ("all 4 directed pairs",), ()),
    "three ranks share memory: P2P may be in use beside it":
        (transfers(SEVERAL, {(A, B, "kernel_load")}), (run("shm", devices=SEVERAL), run("p2p", devices=SEVERAL)),
         service(transport="SHM", devices=SEVERAL), "unsafe", ("kernel_load",), ("NCCL_P2P_DISABLE=1",)),
    "three ranks share memory, P2P off":
        (transfers(SEVERAL, {(A, B, "kernel_load")}), (run("shm", devices=SEVERAL),),
         service(OFF, transport="SHM", devices=SEVERAL), "safe", ("shared memory",), ()),
    "a pair that is wrong only while the other direction is busy":
        ([*transfers(), transfer(A, B, "copy_engine", "wrong", simultaneous=True)], BOTH, service(), "unsafe",
         ("both directions at once",), ("NCCL_P2P_DISABLE=1",)),
    "a copy that hangs is wrong, not unknown":
        (transfers(wrong={(A, B, "copy_engine")}, outcome="hang"), BOTH, service(), "unsafe", ("copy_engine: hang",),
         ("NCCL_P2P_DISABLE=1",)),
    "one GPU":
        ([], (), service(devices=(A,)), "none", ("one GPU",), ()),
    "GPUs unknown":
        (transfers(), BOTH, service(devices=(), ranks=()), "unknown", ("GPUs of sglang-qwen are unknown",), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_truth_table(name):
    """State, what the reasons name, and the missing switches."""
    pairs, runs, running, state, words, switches = TABLE[name]
    safety = judge_path_safety(pairs, runs, running)

    assert safety.state == state, safety
    assert not [word for word in words if word not in " ".join(safety.reasons)], safety.reasons
    assert safety.switches == switches


@pytest.mark.parametrize(
    ("pairs", "runs", "choices"),
    [
        (transfers(), BOTH, ("peer-to-peer in NCCL (NCCL_P2P_DISABLE not set), the engine's own all-reduce on or off",
                             "NCCL_P2P_DISABLE=1, the engine's own all-reduce on or off")),
        (CORRUPT, BOTH, ("NCCL_P2P_DISABLE=1, --disable-custom-all-reduce",)),
        (CORRUPT, (), ()),
    ],
)  # fmt: skip
def test_without_a_service_it_says_what_would_be_safe(pairs, runs, choices):
    """Nothing is running: unknown, with what was proven."""
    safety = judge_path_safety(pairs, runs, None, devices=(A, B))

    assert safety.state == "unknown"
    assert safety.reasons[0] == "no service is running"
    assert safety.choices == choices


@pytest.mark.parametrize(
    ("running", "ending", "action"),
    [
        (service(OFF), "ok", ""),
        (service(custom=True), "wrong", "set NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce"),
        (service(whole=False), "error", "NCCL_P2P_DISABLE=1, --disable-custom-all-reduce"),
        (service(devices=(A,)), "skip", ""),
    ],
)
def test_verdict_has_the_ending_and_the_next_step(running, ending, action):
    """Unknown is an error, never a pass."""
    verdict = judge_path_safety(CORRUPT, BOTH, running).verdict("node-a sglang-qwen")

    assert verdict.ending == ending
    assert action in verdict.action
    assert verdict.observed


@pytest.mark.parametrize(
    ("engine", "arguments", "expected"),
    [
        ("sglang", ["--tp", "2"], True),
        ("sglang", ["--tp", "2", "--disable-custom-all-reduce"], False),
        ("vllm", ["--disable-custom-all-reduce"], False),
        ("vllm", [], True),
        ("sglang", None, None),
        ("llama.cpp", ["--tp", "2"], None),
    ],
)
def test_custom_all_reduce_by_the_command_line(engine, arguments, expected):
    """On unless switched off; unread or unknown is unknown."""
    assert custom_all_reduce_in_effect(engine, arguments) is expected


def test_other_peer_paths_by_the_command_line():
    """SGLang has more than one."""
    assert peer_arguments_in_effect("sglang", ["--enable-mscclpp", "--tp", "2"]) == ("--enable-mscclpp",)
    assert peer_arguments_in_effect("vllm", None) == ()
