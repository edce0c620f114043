"""The GPU programs leave nothing behind: not after a hang, a kill, a cut connection, or a second run."""

from __future__ import annotations

import os
import signal
import time

import pytest

from pytest_gpuinfra.on_target.plan import SHM, Deadlines
from pytest_gpuinfra.subjects.transfers.program import parse_gpu_program_events

PATIENT = Deadlines(prepare_s=30, task_s=30, stall_s=30, arm_s=60, total_s=120)
HANGS = {
    "copy": ("stall,pair=0-1,mechanism=kernel_store", "by kernel_store", {"arms": ()}),
    "rank": ("rank_hang,rank=1", "shm: 2 ranks", {"mechanisms": (), "simultaneous": (), "arms": (SHM,)}),
}


def gone(pids, wait_s=3.0):
    """Whether all these processes end within a time."""
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(params=sorted(HANGS))
def hanging(request, nccl_files, start):
    """A program in the middle of a hang, and the processes that it started; a rank has NCCL's file open."""
    fault, text, plan = HANGS[request.param]
    started = start(environment={"GPUINFRA_FAULTS": fault}, deadlines=PATIENT, **plan)
    started.wait_for(text)
    time.sleep(0.4)
    pids = started.descendants()
    assert pids
    assert len(nccl_files()) == (request.param == "rank")
    return started, pids


def test_end_of_standard_input_ends_everything(hanging, nccl_files):
    """The controller is gone: so is every process, at once, and every file."""
    started, pids = hanging
    began = time.monotonic()
    started.process.stdin.close()

    assert started.process.wait(timeout=5) == 4
    assert time.monotonic() - began < 2.0
    assert gone(pids)
    assert not nccl_files()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signal_ends_everything(hanging, nccl_files, number):
    """As the end of standard input."""
    started, pids = hanging
    started.process.send_signal(number)

    assert started.process.wait(timeout=5) == 5
    assert gone(pids)
    assert not nccl_files()


def test_kill_of_the_parent_ends_its_workers(hanging, nccl_files):
    """Not even kill -9 leaves a process: the kernel ends the workers. NCCL's file is then nobody's to remove."""
    started, pids = hanging
    started.process.kill()
    started.process.wait(timeout=5)

    assert gone(pids)
    for name in nccl_files():
        os.unlink(f"/dev/shm/{name}")


def test_gone_reader_ends_everything(start):
    """Nobody reads the events any more."""
    started = start(arms=())
    started.wait_for('"event": "plan"')
    pids = started.descendants()
    started.process.stdout.close()

    assert started.process.wait(timeout=10) == 4
    assert gone(pids)


def test_overall_deadline_ends_everything(start):
    """The program's own last resort; the run is incomplete."""
    hasty = Deadlines(prepare_s=30, task_s=30, stall_s=30, arm_s=60, total_s=1.5)
    started = start(environment={"GPUINFRA_FAULTS": "stall"}, deadlines=hasty, arms=())
    result = parse_gpu_program_events(started.lines())

    assert not result.complete
    assert "overall deadline" in result.incomplete_reason


def test_two_runs_go_one_after_the_other(start):
    """The second waits, says for whom, and is then right."""
    first = start(arms=())
    first.wait_for('"event": "plan"')
    second = start(arms=())
    waiting = second.wait_for('"phase": "lock"')
    lines = second.lines()
    result = parse_gpu_program_events(lines)

    assert f"process {first.process.pid}" in waiting
    assert result.complete
    assert {one.outcome for one in result.transfers} == {"right"}


def test_run_gives_up_on_a_lock_that_is_kept(start):
    """Whose it is, and no result."""
    first = start(environment={"GPUINFRA_FAULTS": "stall"}, deadlines=PATIENT, arms=())
    first.wait_for("by copy_engine")
    result = parse_gpu_program_events(start(arms=(), lock_wait_s=0.3).lines())

    assert not result.complete
    assert f"process {first.process.pid}" in result.incomplete_reason
    assert not result.transfers


def test_lock_of_a_killed_run_is_free(start):
    """It vanishes with the processes."""
    first = start(environment={"GPUINFRA_FAULTS": "stall"}, deadlines=PATIENT, arms=())
    first.wait_for("by copy_engine")
    pids = first.descendants()
    first.process.kill()
    first.process.wait(timeout=5)
    assert gone(pids)

    result = parse_gpu_program_events(start(arms=(), lock_wait_s=2.0).lines())

    assert result.complete
