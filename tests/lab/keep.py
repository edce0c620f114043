"""Processes of lab hosts that cannot outlive the lab, and the private addresses that they take."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from .image import Image, LabError

HERE = Path(__file__).parent
RUN = Path("/run/gpuinfra-lab")
SLOTS = 250
ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Command = str | Sequence[str]


class Kept:
    """
    One host's slot, folder and processes; see `keep.sh` for how they end.

    Args:
        image: What the host runs on; not pruned until `close`.

    Attributes:
        slot: A number of its own among all labs of this machine: its network is 10.77.SLOT.0/24.
        folder: Private files; gone once the host has ended.

    Raises:
        LabError: All slots are taken.
    """

    def __init__(self, image: Image) -> None:
        RUN.mkdir(mode=0o755, exist_ok=True)
        remove_ended()
        self._lock: IO[str]
        self._process: subprocess.Popen[bytes] | None = None
        for slot in range(1, SLOTS):
            if lock := _take_lock(RUN / f"slot-{slot}.lock"):
                self._lock, self.slot = lock, slot
                break
        else:
            raise LabError(f"all {SLOTS - 1} networks of the lab are taken; see {RUN}")
        self.folder = RUN / f"host-{slot}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o755)
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(image.in_use())

    def start(self, *argv: str) -> None:
        """Start a script as PID 1 of namespaces of its own."""
        self._process = subprocess.Popen(
            [str(HERE / "keep.sh"), str(self.folder), *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the lab, which then ends this in order
            pass_fds=(self._lock.fileno(),),  # the slot stays taken until all of this has ended
        )

    def end(self, *, again: bool = False) -> None:
        """End all processes and wait for it; keep the folder if the host is to be started `again`."""
        mark = self.folder / "again"
        if self._process is not None:
            if again:
                mark.touch()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None
        mark.unlink(missing_ok=True)
        if not again:
            shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """End all processes, remove the folder, give the slot back."""
        if not self._lock.closed:
            self.end()
            Path(self._lock.name).unlink(missing_ok=True)
            self._lock.close()
            self._stack.close()

    @property
    def alive(self) -> bool:
        """Whether the script's namespaces are there."""
        return self._process is not None and self._process.poll() is None

    def inits(self, depth: int) -> list[int]:
        """Give each PID 1 of a PID namespace `depth` levels below the lab's; the script's own is at 1."""
        if self._process is None:
            return []
        parents = _parents()
        found: list[int] = []
        for pid in parents:
            if self._process.pid in _ancestors(pid, parents):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    status = Path(f"/proc/{pid}/status").read_text()
                    numbers = status.partition("NSpid:")[2].partition("\n")[0].split()
                    if len(numbers) == depth + 1 and numbers[-1] == "1":
                        found.append(pid)
        return found


def remove_ended() -> list[Path]:
    """
    Remove what `keep.sh` could not, where it was killed too: folders and cgroups of slots that no process holds.

    Every process of a host has its slot's lock open, so a lock that can be had is one of a host that has ended.
    """
    removed = []
    for folder in RUN.glob("host-*"):
        slot = RUN / f"slot-{folder.name.removeprefix('host-')}.lock"
        if lock := _take_lock(slot):
            for group in Path("/sys/fs/cgroup").glob(f"*/gpuinfra-lab-{folder.name}"):
                for inner in [*sorted(group.rglob("*/"), reverse=True), group]:
                    with contextlib.suppress(OSError):
                        inner.rmdir()
            shutil.rmtree(folder, ignore_errors=True)
            slot.unlink(missing_ok=True)
            lock.close()
            removed.append(folder)
    return removed


def _take_lock(path: Path) -> IO[str] | None:
    lock = path.open("a")
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A lock of a file that its last holder has removed since is worth nothing.
        if os.fstat(lock.fileno()).st_ino == path.stat().st_ino:
            return lock
    lock.close()
    return None


def _parents() -> dict[int, int]:
    """Give the parent of every process of this machine."""
    found: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found[int(entry)] = int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
    return found


def _ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    found = []
    while pid := parents.get(pid, 0):
        found.append(pid)
    return found


def run_inside(
    leader: int, command: Command, *, stdin: str, check: bool, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """
    Run a command as root in the namespaces and cgroups of `leader`.

    Args:
        leader: PID 1 of a host, as numbered here.
        command: Text for /bin/sh, or an argument list.
        stdin: Text for its standard input.
        check: Whether an exit status other than 0 is an error.
        timeout_s: Deadline; the command and its children in its process group are killed then.

    Raises:
        LabError: The command failed and `check` is set; its output is in the text.
        subprocess.TimeoutExpired: The deadline passed.
    """
    argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
    with subprocess.Popen(
        [*_enter_argv(leader), *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": ROOT_PATH, "LC_ALL": "C.UTF-8"},
        start_new_session=True,
    ) as process:
        try:
            shown, errors = process.communicate(stdin, timeout_s)
        except BaseException:
            _kill_inside(process)
            raise
    if check and process.returncode:
        raise LabError(f"{command!r} ended with {process.returncode}: {shown}{errors}")
    return subprocess.CompletedProcess(argv, process.returncode, shown, errors)


def _kill_inside(process: subprocess.Popen[str]) -> None:
    """Kill an nsenter, its child and the child's children."""
    # The child first, so that nsenter reaps it. Orphaned, it would be a zombie in the host that the host's own init
    # cannot reap, and the host's next shutdown would wait 10 s for it.
    for pid, parent in _parents().items():
        if parent == process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _enter_argv(leader: int) -> list[str]:
    groups = " ".join(f"{path}/cgroup.procs" for path in _cgroups_of(leader))
    # Into its cgroups first, so that the command counts as one of the host's.
    join = f'for f in {groups}; do echo $$ >$f; done 2>/dev/null; exec "$@"'
    spaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
    into = ["nsenter", f"--target={leader}", *spaces, "--root", f"--wd=/proc/{leader}/root"]
    return ["sh", "-c", join, "sh", *into]


def _cgroups_of(pid: int) -> list[str]:
    """Give the directories of a process's cgroups, below wherever each hierarchy is mounted."""
    mounted: dict[str, str] = {}
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            mounted[""] = where
        elif kind == "cgroup":
            mounted.update((option, where) for option in options.split(","))
    found = []
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if (first := names.split(",")[0]) in mounted and path != "/":
            found.append(mounted[first] + path)
    return found


def wait_for_exit(pids: list[int], timeout_s: float = 10) -> None:
    """Wait until none of these processes is there."""
    deadline = time.monotonic() + timeout_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
