"""torch_program over a sham torch and the sham driver."""

from __future__ import annotations

import pytest

from pytest_gpuinfra.on_target.plan import P2P, SHM
from pytest_gpuinfra.subjects.transfers.judge import judge_transport

from .conftest import SHAM

pytest.importorskip("numpy")
ONE, OTHER = "0000:01:00.0", "0000:11:00.0"


@pytest.fixture
def torch_run(run):
    """Run torch_program with the sham torch: torch_run(faults, **plan)."""

    def go(faults="", environment=None, **changes):
        given = {"PYTHONPATH": str(SHAM), "GPUINFRA_FAULTS": faults, **(environment or {})}
        return run("torch", given, **{"arms": (SHM,), **changes})

    return go


def wrong(result):
    """Give what is not right."""
    return {(one.src, one.dst): (one.outcome, one.corruption) for one in result.transfers if one.outcome != "right"}


def test_healthy_pair_of_gpus_is_right(torch_run):
    """A copy each way, and both arms, each over its transport."""
    result = torch_run(arms=(SHM, P2P))

    assert result.complete
    assert [(one.src, one.dst, one.outcome, one.can_access) for one in result.transfers] == [
        (ONE, OTHER, "right", True),
        (OTHER, ONE, "right", True),
    ]
    assert [(one.arm, one.ending, one.transports) for one in result.runs] == [
        ("shm", "right", {"SHM"}),
        ("p2p", "right", {"P2P"}),
    ]
    assert result.plan.about["torch"] == "2.99.0+sham"
    assert result.stand_in


@pytest.mark.parametrize("kind", ["never_written", "zeroed", "scrambled"])
def test_corruption_is_named(torch_run, kind):
    """One directed pair, with the class."""
    result = torch_run(f"{kind},pair=0-1", arms=())

    assert wrong(result) == {(ONE, OTHER): ("wrong", kind)}


def test_no_peer_access_by_torchs_word(torch_run):
    """torch's word is its own fact; the driver may say otherwise."""
    result = torch_run("no_access,pair=1-0", arms=())

    assert wrong(result) == {(OTHER, ONE): ("not_tested", None)}
    assert "torch says" in result.transfer(OTHER, ONE, "torch_copy").reason


@pytest.mark.parametrize(
    ("fault", "outcome", "text"),
    [
        ("stall,pair=0-1", "hang", "no end within 1.5 s"),
        ("die,pair=0-1", "crash", "ended by SIGSEGV"),
        ("oom,pair=0-1", "error", "out of memory"),
    ],
)
def test_copy_that_never_ends_dies_or_has_no_memory(torch_run, fault, outcome, text):
    """Hang and crash are wrong, no memory is unknown; the other direction is tried all the same."""
    result = torch_run(fault, arms=())

    assert wrong(result) == {(ONE, OTHER): (outcome, None)}
    assert text in result.transfer(ONE, OTHER, "torch_copy").reason
    assert result.complete


def test_corruption_of_the_second_repeat_of_large_copies_and_of_the_last_bytes(torch_run):
    """A first right copy, and small ones, do not excuse the rest."""
    result = torch_run("scrambled,pair=0-1,from_repeat=2,min_bytes=262144,last_bytes=3", arms=())

    one = result.transfer(ONE, OTHER, "torch_copy")
    assert {(each.size_bytes, each.repeat, each.wrong_bytes) for each in one.failures} == {
        (262144, 2, 3),
        (262144, 3, 3),
    }
    assert {each.first_wrong_offset for each in one.failures} == {262141}


def test_error_of_a_copy_is_a_failed_copy(torch_run):
    """The rest goes on in a new process."""
    result = torch_run("copy_error,pair=0-1", arms=())

    assert wrong(result) == {(ONE, OTHER): ("failed", None)}
    assert "illegal memory access" in result.transfer(ONE, OTHER, "torch_copy").reason
    assert result.complete


ENDINGS = [
    ("rank_wrong,rank=1", "wrong", f"rank 1 ({OTHER}) holds 1 wrong"),
    ("rank_wrong,rank=0,min_bytes=262144", "wrong", f"rank 0 ({ONE}) holds 1 wrong of 65536 int32"),
    ("rank_hang,rank=0", "hang", f"rank 0 ({ONE}) in: calling an all-reduce"),
    ("rank_hang,rank=1,min_bytes=262144", "hang", f"rank 1 ({OTHER}) in: calling an all-reduce of 262144 bytes"),
    ("rank_die,rank=1", "crash", f"rank 1 ({OTHER}) was ended by SIGKILL"),
    ("rank_error,rank=0", "failed", "unhandled system error"),
    ("little_memory,device=1,free_bytes=900000000", "inconclusive", OTHER),
]


@pytest.mark.parametrize("arm", [SHM, P2P], ids=["shm", "p2p"])
@pytest.mark.parametrize(("fault", "ending", "text"), ENDINGS)
def test_ranks_ending_is_named(torch_run, arm, fault, ending, text):
    """As in cuda_program, over shared memory and peer to peer."""
    result = torch_run(fault, mechanisms=(), arms=(arm,))

    assert (result.runs[0].arm, result.runs[0].ending) == (arm.name, ending)
    assert text in result.runs[0].reason
    assert result.complete


@pytest.mark.parametrize(("arm", "seen"), [(SHM, "P2P"), (P2P, "SHM")], ids=["shm", "p2p"])
def test_transport_asked_for_and_transport_seen_are_two_facts(torch_run, arm, seen):
    """Right sums by another way: the arm's own transport is what NCCL's log shows."""
    result = torch_run("rank_other_way", mechanisms=(), arms=(arm,))

    assert (result.runs[0].ending, result.runs[0].transports) == ("right", {seen})
    assert judge_transport(result.runs[0], "here", arm.name).ending == "wrong"


def test_python_without_torch_is_skipped(run):
    """It says so, and whose Python it was."""
    result = run("torch", {"PYTHONPATH": ""}, bare=True)

    assert result.complete
    assert "No module named 'torch'" in result.skipped_reason


def test_torch_without_cuda_is_skipped(torch_run):
    """A CPU build says nothing of the GPUs."""
    result = torch_run(environment={"GPUINFRA_SHAM_TORCH": "cpu"})

    assert "built without CUDA" in result.skipped_reason


def test_too_little_memory_names_the_gpu(torch_run):
    """As in cuda_program."""
    result = torch_run("little_memory,device=1,free_bytes=900000000")

    assert set(wrong(result).values()) == {("error", None)}
    assert OTHER in result.runs[0].reason
