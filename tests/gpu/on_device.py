"""
Run the GPU programs on a machine with real GPUs, and leave their events in a folder.

    python tests/gpu/on_device.py clean FOLDER      what a healthy machine gives, with times and left-overs
    python tests/gpu/on_device.py faults FOLDER     every fault, planted by the interposing libraries
    python tests/gpu/on_device.py again FOLDER      many runs, and runs whose controller is gone in the middle

It needs gcc (faults only), the driver, and a libnccl.so.2 that this Python or the loader finds; no pytest.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TARGET = HERE.parent.parent / "pytest_gpuinfra" / "on_target"
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


def load(path: Path) -> Any:
    """Load a module by its file, whatever is installed."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


sys.path.insert(0, str(HERE.parents[1]))
plans = importlib.import_module("pytest_gpuinfra.on_target.plan")
stand_ins = load(HERE / "sham" / "build.py")
TORCH = {"mechanisms": ("torch_copy",), "simultaneous": (), "chains": (), "sizes": (4096, 1 << 20, 64 << 20)}


def run(program: str, environment: dict[str, str] | None = None, **changes: Any) -> tuple[list[dict], float, str]:
    """Run a program as the connection does; gives its events, the seconds it took, and its standard error."""
    plan = plans.GpuPlan(**{**(TORCH if program == "torch" else {}), **changes})
    source = plans.program_text(program).encode()
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", FEED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdin.write(b"%d\n%b%b\n" % (len(source), source, json.dumps(plan.document(program)).encode()))
    process.stdin.flush()
    events = [json.loads(line) for line in process.stdout]
    process.wait(timeout=60)
    return events, time.monotonic() - began, process.stderr.read().decode()


def left_overs() -> str:
    """Say what is still there of us: files, processes, GPU memory."""
    smi = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    shm = [name for name in os.listdir("/dev/shm") if name.startswith("nccl-")]
    cache = Path.home() / ".nv"
    kept = [str(path) for path in cache.rglob("*") if path.is_file()] if cache.exists() else []
    processes = subprocess.run(
        ["pgrep", "-fc", "<program>"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return f"memory {smi[:-1]}, /dev/shm {shm}, ~/.nv {kept}, processes {processes}"


def summary(events: list[dict], seconds: float, stderr: str) -> str:
    """Give a run in a few lines."""
    lines = [f"  {seconds:.2f} s, {len(events)} events {stderr[-2000:]}"]
    for event in events:
        kind = event["event"]
        if kind in ("pair", "chain"):
            lines.append(
                "  {} {} {}{} {} {} {} wrong {} {}".format(
                    event["src"],
                    event["dst"],
                    event["mechanism"],
                    " both" if event.get("simultaneous") else "",
                    event["outcome"],
                    event["class"] or "",
                    event["gb_s"] or "",
                    event["wrong_bytes"],
                    event["reason"] or "",
                )
                + f" {event.get('ended_monotonic_s', 0) - event.get('began_monotonic_s', 0):.3f}s"
                + (f" first {event['failures'][0]}" if event["failures"] else "")
            )
        elif kind == "allreduce":
            seen = sorted({(c["transport"], c["detail"], c["count"]) for c in event["channels"]})
            lines.append(
                f"  arm {event['arm']} {event['ending']} {event['reason'] or ''} {event['speed']} {seen} "
                f"took {event['took_s']} joining {event['joining_s']} removed {event['removed_files']}"
            )
            if event["ending"] != "right":
                lines += [f"    {rank}" for rank in event["ranks"]]
        elif kind in ("error", "skipped", "end", "device", "plan"):
            lines.append(f"  {json.dumps(event)[:700]}")
    return "\n".join(lines)


class MemoryWatch:
    """The most memory that the GPUs had in use, MiB, looked at every 0.1 s; a watched run is slower."""

    def __init__(self, on: bool) -> None:
        self.most: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._on = on

    def __enter__(self) -> MemoryWatch:
        if self._on:
            self._thread.start()
        return self

    def _watch(self) -> None:
        process = subprocess.Popen(
            ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits", "-lms", "100"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        used: dict[int, int] = {}
        for line in process.stdout:
            index, mebibytes = (int(word) for word in line.split(","))
            used[index] = max(used.get(index, 0), mebibytes)
            if self._over.is_set():
                break
        process.kill()
        process.wait()
        self.most = [used[index] for index in sorted(used)]

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._on:
            self._thread.join()


def clean(folder: Path) -> None:
    """Run both programs on the machine as it is."""
    report = []
    for number in range(3):
        with MemoryWatch(number == 2) as watch:
            events, seconds, stderr = run("cuda")
        report += [f"cuda, most memory in use {watch.most}", summary(events, seconds, stderr), left_overs()]
        (folder / "cuda-clean.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    for number in range(2):
        with MemoryWatch(number == 1) as watch:
            events, seconds, stderr = run("torch", arms=(plans.SHM,))
        report += [f"torch, most memory in use {watch.most}", summary(events, seconds, stderr), left_overs()]
        (folder / "torch-clean.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "clean.txt").write_text("\n".join(report) + "\n")
    print("\n".join(report))


FAULTS = (
    ("never written, one pair", "never_written,pair=0-1"),
    ("zeroed, one mechanism", "zeroed,pair=1-0,mechanism=ipc_load"),
    ("scrambled, from the second repeat on", "scrambled,pair=0-1,mechanism=copy_engine,from_repeat=2"),
    ("zeroed, above 1 MiB only", "zeroed,pair=0-1,mechanism=kernel_store,min_bytes=1048577"),
    ("scrambled, last bytes only", "scrambled,pair=1-0,mechanism=kernel_load,last_bytes=3"),
    ("never written, last bytes only, by IPC", "never_written,pair=0-1,mechanism=ipc_store,last_bytes=5"),
    ("outside of the destination", "outside,pair=0-1,mechanism=kernel_store"),
    ("a copy that hangs", "stall,pair=0-1,mechanism=kernel_load"),
    ("a copy that crashes", "die,pair=1-0,mechanism=copy_engine"),
    ("a rank that hangs", "rank_hang,rank=1,min_bytes=1048576"),
    ("a rank that crashes", "rank_die,rank=0,min_bytes=1048576"),
    ("a wrong sum in one rank", "rank_wrong,rank=1,min_bytes=1048576"),
    ("NCCL returns an error", "rank_error,rank=1"),
    ("the wrong transport", "rank_p2p"),
    ("too little memory", "little_memory,device=1,free_bytes=900000000"),
)


def faults(folder: Path) -> None:
    """Plant every fault in front of the real libraries."""
    nccl = subprocess.run(
        [sys.executable, "-c", "import glob, sys; print(*[p for d in sys.path for p in "
         "glob.glob(d + '/nvidia/nccl/lib/libnccl.so.2')], sep='\\n')"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    libraries = Path("/tmp/gpuinfra-interposer")
    stand_ins.build_interposer(
        libraries,
        {
            "libcuda.so.1": stand_ins.real_path("libcuda.so.1"),
            "libnvidia-ml.so.1": stand_ins.real_path("libnvidia-ml.so.1"),
            "libnccl.so.2": nccl[0] if nccl else stand_ins.real_path("libnccl.so.2"),
        },
    )
    path = os.pathsep.join([str(libraries), os.environ.get("LD_LIBRARY_PATH", "")])
    deadlines = plans.Deadlines(prepare_s=20, task_s=4, stall_s=4, arm_s=20, total_s=60)
    kept = []
    report = []
    for title, fault in (("no fault", ""), *FAULTS):
        changes: dict[str, Any] = {"deadlines": deadlines, "nccl_paths": (str(libraries / "libnccl.so.2"),)}
        changes |= {"arms": (plans.SHM, plans.P2P) if fault == "" else (plans.SHM,)}
        if fault.startswith("rank_"):
            changes |= {"mechanisms": (), "simultaneous": ()}
        elif fault:
            changes |= {"arms": ()}
        table = libraries / "ipc-table"
        table.write_bytes(b"")
        planted = {"LD_LIBRARY_PATH": path, "GPUINFRA_FAULTS": fault, "GPUINFRA_IPC_TABLE": str(table)}
        events, seconds, stderr = run("cuda", planted, **changes)
        kept.append({"title": title, "fault": fault, "events": events})
        report += [f"== {title}: {fault}", summary(events, seconds, stderr), left_overs()]
    report += two_at_once()
    (folder / "faults.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept))
    (folder / "faults.txt").write_text("\n".join(report) + "\n")
    print("\n".join(report))


def two_at_once() -> list[str]:
    """Start a second run while the first is on."""
    results: list[tuple[list[dict], float, str]] = []
    threads = [threading.Thread(target=lambda: results.append(run("cuda", arms=()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = ["== two runs at the same time"]
    for events, seconds, _ in results:
        waits = [event["text"] for event in events if event.get("phase") == "lock"]
        good = sum(event.get("outcome") == "right" for event in events)
        lines.append(f"  {seconds:.2f} s, {good} right, waited: {waits}")
    return lines


def again(folder: Path) -> None:
    """Run the healthy machine many times, then cut the controller off at several moments."""
    endings: dict[str, int] = {}
    times = []
    for _ in range(12):
        events, seconds, _ = run("cuda")
        times.append(round(seconds, 2))
        for event in events:
            word = event.get("outcome") or event.get("ending") or (event["event"] == "end" and str(event["complete"]))
            if word:
                endings[word] = endings.get(word, 0) + 1
    report = [f"12 runs: endings {endings}, seconds {times}"]
    for program, moments in (("cuda", (0.2, 0.7, 1.1, 1.8, 2.6, 3.3)), ("torch", (1.0, 5.5, 7.0))):
        for moment in moments:
            plan = plans.GpuPlan(**(TORCH if program == "torch" else {})).document(program)
            source = plans.program_text(program).encode()
            process = subprocess.Popen(
                [sys.executable, "-c", FEED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            assert process.stdin
            process.stdin.write(b"%d\n%b%b\n" % (len(source), source, json.dumps(plan).encode()))
            process.stdin.flush()
            time.sleep(moment)
            began = time.monotonic()
            process.stdin.close()
            status = process.wait(timeout=20)
            took = time.monotonic() - began
            report.append(f"{program} cut after {moment} s: status {status} in {took:.2f} s; {left_overs()}")
    (folder / "again.txt").write_text("\n".join(report) + "\n")
    print("\n".join(report))


if __name__ == "__main__":
    output = Path(sys.argv[2])
    output.mkdir(parents=True, exist_ok=True)
    {"clean": clean, "faults": faults, "again": again}[sys.argv[1]](output)
