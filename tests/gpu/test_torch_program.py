"""torch_program over a sham torch and the sham driver."""

from __future__ import annotations

import pytest

from pytest_gpuinfra.target.plan import P2P, SHM

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


def test_error_of_a_copy_is_a_failed_copy(torch_run):
    """The rest goes on in a new process."""
    result = torch_run("copy_error,pair=0-1", arms=())

    assert wrong(result) == {(ONE, OTHER): ("failed", None)}
    assert "illegal memory access" in result.transfer(ONE, OTHER, "torch_copy").reason
    assert result.complete


@pytest.mark.parametrize(
    ("fault", "ending", "text"),
    [
        ("rank_wrong,rank=1", "wrong", f"rank 1 ({OTHER}) holds 1 wrong"),
        ("rank_hang,rank=0", "hang", f"rank 0 ({ONE}) in: calling an all-reduce"),
        ("rank_die,rank=1", "crash", f"rank 1 ({OTHER}) was ended by SIGKILL"),
        ("rank_error,rank=0", "failed", "unhandled system error"),
    ],
)
def test_ranks_ending_is_named(torch_run, fault, ending, text):
    """As in cuda_program."""
    result = torch_run(fault, mechanisms=())

    assert result.runs[0].ending == ending
    assert text in result.runs[0].reason


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
