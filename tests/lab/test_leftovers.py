"""What a killed run leaves is removed by the next one, and what a living run has is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .docker import DockerHost
from .keep import remove_ended
from .leftovers import RUN, note, remove_leftovers, started_at

pytestmark = pytest.mark.lab

HOLDER = """
from tests.lab.docker import DockerHost
import time
with DockerHost() as host:
    print(host.folder, host._daemon.pid, host.docker("inspect", "-f", "{{.State.Pid}}", "gpuinfra-ct1"), flush=True)
    time.sleep(600)
"""


def _mounted(folder: str) -> list[str]:
    return [line for line in Path("/proc/mounts").read_text().splitlines() if folder in line]


def test_docker_of_a_killed_run_is_removed_by_the_next() -> None:
    """Daemon, container, mounts, folder and note are gone; beside a run that lives, nothing is."""
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        folder, *numbers = holder.stdout.readline().split()
        pids = [int(number) for number in numbers]
        assert len(pids) == 2

        assert Path(folder) not in remove_leftovers()
        assert all(map(started_at, pids))

        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    assert all(map(started_at, pids)), "a killed run's daemon ends by itself: this test is about nothing"

    with DockerHost() as mine:
        assert not any(map(started_at, pids))
        assert not Path(folder).exists()
        assert _mounted(folder) == []
        assert not (RUN / f"{Path(folder).name}.json").exists()
        assert mine.docker("ps", "-q")
    assert not mine.folder.exists()


def test_number_that_was_given_again_is_nobodys(tmp_path: Path) -> None:
    """A process with the noted id and another start time is neither owner nor to be ended."""
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        left = note(tmp_path / "gpuinfra-test-left", bystander.pid)
        left.folder.mkdir()
        text = left.file.read_text()
        own, others = f"[{os.getpid()}, {started_at(os.getpid())}]", f"[{bystander.pid}, {started_at(bystander.pid)}]"
        assert own in text
        assert others in text
        left.file.write_text(text.replace(own, f"[{os.getpid()}, 1]").replace(others, f"[{bystander.pid}, 2]"))

        assert left.folder in remove_leftovers()

        assert bystander.poll() is None
        assert not left.folder.exists()
        assert not left.file.exists()
    finally:
        bystander.kill()
        bystander.wait()


KEPT = """
from tests.lab.sshd import SshdHost
import time
with SshdHost("normal") as host:
    print(host.folder, host._kept._process.pid, flush=True)
    time.sleep(600)
"""


def test_folder_of_a_host_whose_keeper_was_killed_is_removed() -> None:
    """A host that lives keeps its folder; one that was killed with what cleans up after it does not."""
    with subprocess.Popen([sys.executable, "-c", KEPT], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        folder, keeper = holder.stdout.readline().split()
        assert Path(folder) not in remove_ended()
        os.kill(int(keeper), signal.SIGKILL)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    assert Path(folder).exists()

    limit = time.monotonic() + 20  # its processes end by themselves, and give the lock back
    while Path(folder) not in remove_ended():
        assert time.monotonic() < limit
        time.sleep(0.1)
    assert not Path(folder).exists()
