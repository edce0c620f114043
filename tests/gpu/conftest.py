"""Fixtures that run the real GPU programs over the sham driver."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_gpuinfra.on_target.plan import Deadlines, GpuPlan, program_text
from pytest_gpuinfra.subjects.transfers.program import GpuProgramRun, parse_gpu_program_events

SHAM = Path(__file__).parent / "sham"
KIB, MIB = 1 << 10, 1 << 20
QUICK = Deadlines(prepare_s=10, task_s=1.5, stall_s=1.5, arm_s=8, total_s=60)
SMALL: dict[str, Any] = {
    "sizes": (4 * KIB, 256 * KIB),
    "messages": (("int32", 4), ("int32", 256 * KIB), ("float32", 4100), ("bfloat16", 4098)),
    "timed_copies": 2,
    "timed_sums": 2,
    "deadlines": QUICK,
}
TORCH: dict[str, Any] = {"mechanisms": ("torch_copy",), "simultaneous": (), "chains": (), "odd_cases": ()}
FEED = """
import os
def take(size):
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data))
    return data
line = b""
while not line.endswith(b"\\n"):
    line += take(1)
exec(compile(take(int(line)), "<program>", "exec"), {"__name__": "__main__"})
"""


@dataclass
class Started:
    """A running program, fed as a connection feeds it."""

    process: subprocess.Popen[bytes]

    def lines(self) -> list[str]:
        """Wait for its end and give all lines."""
        assert self.process.stdout is not None
        lines = self.process.stdout.read().decode().splitlines()
        self.process.wait(timeout=60)
        return lines

    def wait_for(self, text: str) -> str:
        """Read until a line holds a text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line.decode():
                return line.decode()
        raise AssertionError(f"the program ended without {text!r}")

    def descendants(self) -> list[int]:
        """Give the processes that it started."""
        return [int(pid) for pid in subprocess.run(
            ["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False
        ).stdout.split()]  # fmt: skip


Start = Callable[..., Started]
Run = Callable[..., GpuProgramRun]


@pytest.fixture(scope="session")
def sham_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sham driver's libraries."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed: the sham driver cannot be built")
    sys.path.insert(0, str(SHAM))
    try:
        import build  # noqa: PLC0415
    finally:
        sys.path.pop(0)
    directory = tmp_path_factory.mktemp("sham")
    build.build_sham(directory)
    return directory


@pytest.fixture
def start(sham_libraries: Path) -> Any:
    """Start a program over the sham driver: start(program, environment, **plan)."""
    started: list[Started] = []

    def begin(
        program: Literal["cuda", "torch"] = "cuda",
        environment: dict[str, str] | None = None,
        *,
        python: str = sys.executable,
        libraries: Path | None = sham_libraries,
        document: dict[str, Any] | None = None,
        bare: bool | None = None,
        **changes: Any,
    ) -> Started:
        bare = program == "cuda" if bare is None else bare  # no site-packages: the standard library is enough
        plan = GpuPlan(**{**SMALL, **(TORCH if program == "torch" else {}), **changes}).document(program)
        plan.update(document or {})
        source = program_text(program).encode()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "CUDA"))}
        if libraries:
            inherited["LD_LIBRARY_PATH"] = str(libraries)
        process = subprocess.Popen(
            [python, *(["-S"] if bare else []), "-c", FEED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**inherited, **(environment or {})},
            start_new_session=True,
        )
        started.append(Started(process))
        assert process.stdin is not None
        process.stdin.write(b"%d\n%b%b\n" % (len(source), source, json.dumps(plan).encode()))
        process.stdin.flush()
        return started[-1]

    yield begin
    for one in started:
        put_away(one.process)


def put_away(process: subprocess.Popen[bytes]) -> None:
    """End a program that may still run, and close its pipes."""
    if process.poll() is None:
        process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream:
            stream.close()


@pytest.fixture
def run(start: Start) -> Run:
    """Run a program over the sham driver to its end: run(program, environment, **plan)."""

    def to_the_end(*arguments: Any, **options: Any) -> GpuProgramRun:
        return parse_gpu_program_events(start(*arguments, **options).lines())

    return to_the_end


@contextlib.contextmanager
def serving(environment: dict[str, str]) -> Iterator[tuple[int, int]]:
    """A process that is there to be run as: (number, start time)."""
    with subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"],
                          env=environment, stdout=subprocess.PIPE) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid, int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        process.kill()


@pytest.fixture
def nccl_files() -> Callable[[], set[str]]:
    """Give what NCCL's files in /dev/shm are there beyond those of before the test."""
    before = {name for name in os.listdir("/dev/shm") if name.startswith("nccl-")}
    return lambda: {name for name in os.listdir("/dev/shm") if name.startswith("nccl-")} - before
