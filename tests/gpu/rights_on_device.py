"""
The GPU programs beside a process of another user, on a machine with GPUs: whatever is that process's runs as it.

`python3 tests/gpu/rights_on_device.py OUT`, as root: starts a process of the user nobody that has torch and its NCCL
loaded, with a library of its own in LD_PRELOAD; runs both programs as a run does, with it as the service's process;
then compares what that library wrote down in every process that loaded it with the process itself. Writes the
programs' events into OUT, and ends with 1 where anything differs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from pytest_gpuinfra.connection.local import LocalConnection  # noqa: E402
from pytest_gpuinfra.on_target.plan import P2P, SHM, ArmPlan, GpuPlan, program_text  # noqa: E402

NOBODY = 65534
SERVE = """
import time, torch
torch.zeros(1).cuda()
import torch.distributed
open("/proc/self/comm", "w").write("rank")
print("ready", flush=True)
time.sleep(3600)
"""
SAME = ("Uid", "Gid", "Groups")
NO_MORE = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def witnessed(directory: Path) -> list[dict[str, str]]:
    """What the library wrote down, a dict a process."""
    return [
        dict(line.split(":\t", 1) for line in file.read_text().splitlines() if ":\t" in line)
        for file in sorted(directory.iterdir())
    ]


def main() -> None:
    """Run, compare, report."""
    out = Path(sys.argv[1])
    work = Path("/tmp/rights")
    marks = work / "marks"
    shutil.rmtree(work, ignore_errors=True)
    marks.mkdir(parents=True)
    os.chmod(marks, 0o777)
    library = work / "libwitness.so"
    source = ROOT / "tests/lab/witness.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "LD_PRELOAD": str(library),
        "GPUINFRA_MARKS": str(marks),
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
        "NCCL_P2P_DISABLE": "1",
        **{
            name: os.environ[name]
            for name in ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST")
            if name in os.environ
        },
    }
    service = subprocess.Popen(
        [shutil.which("python3") or "python3", "-c", SERVE],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env=environment,
        cwd="/tmp",
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert service.stdout
    assert service.stdout.readline().strip() == b"ready"
    started = int(Path(f"/proc/{service.pid}/stat").read_text().rpartition(")")[2].split()[19])
    maps = Path(f"/proc/{service.pid}/maps").read_text()
    nccl = sorted({line.split()[-1] for line in maps.splitlines() if "libnccl.so" in line})
    wanted = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{service.pid}/status").read_text().splitlines() if ":\t" in line
    )
    before = len(witnessed(marks))
    arm = ArmPlan("service", {"NCCL_P2P_DISABLE": "1"})
    failures = []
    connection = LocalConnection("device")
    try:
        for name, plan in {
            "cuda": GpuPlan(arms=(arm, SHM, P2P), process=(service.pid, started), nccl_paths=tuple(nccl)),
            "torch": GpuPlan(
                arms=(arm,),
                mechanisms=("torch_copy",),
                simultaneous=(),
                chains=(),
                sizes=(4096, 1 << 20),
                process=(service.pid, started),
            ),
        }.items():
            began = time.monotonic()
            result = connection.run_program(
                program_text(name),
                plan.document(name),
                timeout_s=240,
                process=plan.process if name == "torch" else None,
                site=name == "torch",
            )
            (out / f"{name}.jsonl").write_text(result.stdout)
            events = [json.loads(line) for line in result.stdout.splitlines()]
            for event in events:
                if event["event"] in ("allreduce", "error", "skipped", "end"):
                    print(
                        name,
                        {key: event.get(key) for key in ("event", "arm", "ending", "reason", "complete", "library")},
                    )
                if event["event"] == "allreduce" and event["ending"] != "right":
                    failures.append(f"{name}: {event['arm']}: {event['ending']}: {event['reason']}")
            seen = witnessed(marks)
            print(
                f"{name}: {time.monotonic() - began:.1f} s, status {result.exit_status}, library loaded in "
                f"{len(seen) - before} processes; {result.stderr[-300:]}"
            )
            if len(seen) == before:
                failures.append(f"{name}: nothing of the service's was loaded")
            before = len(seen)
        for one in witnessed(marks):
            failures += [
                f"{key}: {one[key]!r} for {wanted[key]!r}" for key in SAME if one[key].split() != wanted[key].split()
            ]
            failures += [f"{key}: {one[key]}" for key in NO_MORE if int(one[key], 16) & ~int(wanted[key], 16)]
    finally:
        connection.close()
        service.kill()
        service.wait()
    print(
        "gpus:", subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.count("GPU ")
    )
    print("failures:", failures)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
