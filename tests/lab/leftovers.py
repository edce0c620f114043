"""
What a killed run leaves: found and removed by the next one.

Booted hosts, virtual machines, sshd and Slurm nodes end with the process that started them (keep.py): the kernel does
that. What the kernel cannot end, since it runs in this machine's own namespaces (dockerd), is written down in a note:
/run/gpuinfra-lab/NAME.json with folder and owner. A process is its id and its start time, so a number that was given
again is nobody's. A note whose owner lives is left alone: runs side by side do not touch each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

RUN = Path("/run/gpuinfra-lab")
ENDS_WITHIN_S = 20.0


def started_at(pid: int) -> int:
    """Give when a process started, in clock ticks since boot (proc(5), stat, field 22); 0 if it is not there."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    return 0


@dataclass(frozen=True)
class Note:
    """
    What a run has begun in this machine's own namespaces.

    Attributes:
        file: Where it is noted.
        folder: Private to it, with a name that nothing else has.
        owner: Process id and start time of the run.
        main: Of the process that it has started there, or (0, 0).
    """

    file: Path
    folder: Path
    owner: tuple[int, int]
    main: tuple[int, int] = (0, 0)

    @property
    def owned(self) -> bool:
        """Whether the run that wrote it still lives."""
        return _is(self.owner)

    def remove(self) -> None:
        """End its processes and remove its mounts and its folder, then the note."""
        if _is(self.main):
            os.kill(self.main[0], signal.SIGTERM)
            _wait_for_none([self.main], ENDS_WITHIN_S)
        left = [self.main, *_inside(self.folder)]
        for pid, start in left:
            if _is((pid, start)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        _wait_for_none(left, 5)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith(f"{self.folder}/")]):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.file.unlink(missing_ok=True)


def note(folder: Path, main: int = 0) -> Note:
    """Write down what this process has begun in a folder, and which process it has started there."""
    RUN.mkdir(mode=0o755, exist_ok=True)
    made = Note(RUN / f"{folder.name}.json", folder, _known(os.getpid()), _known(main) if main else (0, 0))
    partial = made.file.with_suffix(".partial")
    partial.write_text(json.dumps({"folder": str(folder), "owner": made.owner, "main": made.main}))
    partial.replace(made.file)
    return made


def remove_leftovers() -> list[Path]:
    """Remove what runs that live no longer have left, and give the folders of it."""
    found = [one for one in map(_read, RUN.glob("*.json")) if one and not one.owned]
    for one in found:
        one.remove()
    return [one.folder for one in found]


def _read(file: Path) -> Note | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        raw = json.loads(file.read_text())
        return Note(file, Path(raw["folder"]), tuple(raw["owner"]), tuple(raw["main"]))
    return None


def _known(pid: int) -> tuple[int, int]:
    return pid, started_at(pid)


def _is(process: tuple[int, int]) -> bool:
    return process[0] > 0 and started_at(process[0]) == process[1]


def _inside(folder: Path) -> list[tuple[int, int]]:
    """Give the processes whose arguments name a path in the folder, or whose root file system is there."""
    found = []
    mark = f"/{folder.name}/"
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                arguments = Path("/proc", entry, "cmdline").read_text(errors="replace")
                mounts = [line.split() for line in Path("/proc", entry, "mountinfo").read_text().splitlines()]
                roots = [fields[3] for fields in mounts if fields[4] == "/"]
                if mark in arguments or any(mark in root for root in roots):
                    found.append(_known(int(entry)))
    return found


def _wait_for_none(processes: list[tuple[int, int]], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while any(map(_is, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
