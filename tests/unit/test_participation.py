"""Participation: the sampler, its lines as they were recorded on two H200s and as they could be, and every verdict."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError, ParseError
from pytest_gpuinfra.on_target.bundle import packed
from pytest_gpuinfra.on_target.plan import SamplingPlan
from pytest_gpuinfra.subjects.participation.judge import (
    LoadOutcome,
    judge_activity,
    judge_load,
    judge_memory,
    judge_no_other,
    judge_presence,
)
from pytest_gpuinfra.subjects.participation.samples import Participation, parse_participation

A, B, C = (f"0000:0{number}:00.0" for number in (1, 2, 3))
UNIT = "sglang-qwen.service"


def lines(
    gpus: dict[str, list[tuple[float | None, dict[int, float | None] | None]]],
    processes: dict[int, dict[str, Any]] | None = None,
    *,
    end: bool = True,
) -> list[str]:
    """Give what the sampler would write: by GPU, activity and memory by process of each sample."""
    start = {"event": "start", "source": "NVML", "boot_id": "b", "interval_s": 0.2, "gpus": []}
    start["gpus"] = [{"pci": pci, "uuid": f"GPU-{pci}", "name": "H200", "memory_total_mib": 1.0} for pci in gpus]
    said: list[dict[str, Any]] = [start]
    for pid, more in (processes or {}).items():
        about = {"name": "python3", "title": f"rank {pid}", "parents": [], "cgroup": f"/system.slice/{UNIT}"}
        said.append({"event": "process", "pid": pid, "serves": None, **about, **more})
    for at in range(len(next(iter(gpus.values())))):
        rows = []
        for pci, samples in gpus.items():
            activity, held = samples[at]
            listed = None if held is None else [{"pid": pid, "memory_mib": memory} for pid, memory in held.items()]
            row = {"pci": pci, "activity_percent": activity, "memory_used_mib": 9.0, "power_w": None}
            rows.append({**row, "processes": listed})
        said.append({"event": "sample", "at_s": at * 0.2, "gpus": rows})
    said += [{"event": "end", "samples": 1, "reason": "duration"}] if end else []
    return [json.dumps(one) for one in said]


def seen(*arguments: Any, **more: Any) -> Participation:
    """Parse made lines."""
    return parse_participation(lines(*arguments, **more))


BUSY = {A: [(50.0, {1: 900.0}), (70.0, {1: 900.0})], B: [(40.0, {2: 880.0}), (0.0, {2: 890.0})]}
RANKS: dict[int, dict[str, Any]] = {1: {}, 2: {}}


def presence(found: Participation, gpu: str = B, unit: str | None = UNIT) -> tuple[str, str]:
    """Judge presence; gives ending and what was seen."""
    verdict = judge_presence(found, gpu, unit, "x")
    return verdict.ending, verdict.observed


def test_ranks_are_named_by_the_unit_they_belong_to() -> None:
    """A process of the unit's control group, in every sample, with its memory."""
    assert presence(seen(BUSY, RANKS)) == ("ok", "2 (rank 2), 890 MiB")


def test_ranks_are_named_by_the_port_that_they_serve() -> None:
    """Without a unit, a process below the listener on the service's port is the service's; another is not."""
    found = seen(BUSY, {1: {"serves": True, "cgroup": "/"}, 2: {"serves": False, "cgroup": "/"}})
    assert presence(found, A, None)[0] == "ok"
    assert presence(found, B, None) == ("wrong", "no process of the service; there: 2 (rank 2); it runs on 01:00.0")


def test_rank_that_comes_and_goes_is_wrong() -> None:
    """A process that is not there in every sample was restarted, or has died."""
    found = seen({A: BUSY[A], B: [(1.0, {2: 1.0}), (1.0, {})]}, RANKS)
    assert presence(found) == ("wrong", "2 (rank 2) in 1 of 2 samples")


@pytest.mark.parametrize(
    ("found", "gpu", "unit", "said"),
    [
        (seen(BUSY, RANKS), C, UNIT, "does not show this GPU"),
        (seen({A: [(1.0, None)]}), A, UNIT, "does not list the processes"),
        (seen({A: [(1.0, {1: 2.0})]}, {1: {"name": "", "title": "", "cgroup": ""}}), A, UNIT, "look from the host"),
        (seen({A: [(30.0, {})]}), A, UNIT, "a GPU works and the driver lists no process"),
        (seen({A: [(1.0, {1: 2.0})]}, {1: {"cgroup": "/"}}), A, None, "nothing tells which"),
    ],
)
def test_what_cannot_be_known_is_an_error(found: Participation, gpu: str, unit: str | None, said: str) -> None:
    """No list, a hidden process, no way to tell: ERROR, and neither a pass nor a failure."""
    ending, observed = presence(found, gpu, unit)
    assert ending == "error"
    assert said in observed


def test_no_process_anywhere_and_no_activity_is_wrong() -> None:
    """The endpoint answers, and no GPU carries anything: it runs elsewhere."""
    ending, observed = presence(seen({A: [(0.0, {})], B: [(0.0, {})]}))
    assert (ending, observed) == ("wrong", "no process of the service; it runs on no GPU")


def test_idle_gpu_is_named_and_never_averaged() -> None:
    """One idle GPU beside a busy one fails, and says what the others did."""
    found = seen({A: BUSY[A], B: [(0.0, {2: 1.0}), (0.0, {2: 1.0})]}, RANKS)
    verdict = judge_activity(found, B, "x", unit=UNIT, least=None)
    assert verdict.ending == "wrong"
    assert "idle: activity 0 to 0 %" in verdict.observed
    assert "the others: 01:00.0: activity 50 to 70 %, median 60 %" in verdict.observed
    assert judge_activity(found, A, "x", unit=UNIT, least=None).ok


@pytest.mark.parametrize(("least", "ending"), [(None, "ok"), (20.0, "ok"), (20.5, "wrong"), (0.0, "ok")])
def test_floor_of_activity_is_that_of_the_gpu_itself(least: float | None, ending: str) -> None:
    """The median over this GPU's own samples is held against the inventory's floor."""
    assert judge_activity(seen(BUSY, RANKS), B, "x", unit=UNIT, least=least).ending == ending


def test_activity_that_is_not_told_is_an_error() -> None:
    """MIG and old drivers tell none."""
    assert judge_activity(seen({A: [(None, {})]}), A, "x", unit=UNIT, least=None).ending == "error"
    assert judge_activity(seen({A: [(1.0, {})]}), B, "x", unit=UNIT, least=None).ending == "error"


def test_another_process_on_the_gpu_is_a_warning() -> None:
    """The activity is the GPU's: who else computes there is told."""
    found = seen({A: [(50.0, {1: 1.0, 9: 1.0})]}, {1: {}, 9: {"cgroup": "/user.slice", "title": "train.py"}})
    assert judge_activity(found, A, "x", unit=UNIT, least=None).warnings == (
        "another process computes there: 9 (train.py)",
    )


@pytest.mark.parametrize(
    ("least", "most", "ending"),
    [(None, None, "skip"), (880.0, 890.0, "ok"), (881.0, None, "wrong"), (None, 889.0, "wrong"), (880.0, None, "ok")],
)
def test_memory_is_judged_against_its_band_at_any_time(least: float | None, most: float | None, ending: str) -> None:
    """Lowest and highest over all samples; without a band it is not judged."""
    assert judge_memory(seen(BUSY, RANKS), B, "x", unit=UNIT, least=least, most=most).ending == ending


def test_memory_that_is_not_told_is_an_error() -> None:
    """A driver that tells no memory of a process leaves it unknown."""
    found = seen({A: [(1.0, {1: None})]}, {1: {}})
    assert judge_memory(found, A, "x", unit=UNIT, least=1.0, most=None).ending == "error"


def test_service_on_another_gpu_is_named() -> None:
    """A GPU that is not the service's and carries one of its processes fails; a stranger's process does not."""
    verdict = judge_no_other(seen(BUSY, RANKS), (A,), UNIT, "x")
    assert (verdict.ending, verdict.observed) == ("wrong", "also on 02:00.0: 2 (rank 2)")
    assert judge_no_other(seen(BUSY, RANKS), (A, B), UNIT, "x").ok
    assert judge_no_other(seen(BUSY, {1: {}, 2: {"cgroup": "/"}}), (A,), UNIT, "x").ok
    assert judge_no_other(seen({A: [(0.0, {})]}), (A,), UNIT, "x").ending == "error"


def test_load_that_was_dropped_is_wrong_and_none_is_unknown() -> None:
    """One lost request fails; a load of nothing proves nothing."""
    assert judge_load(LoadOutcome(4, 30, ()), "x").ok
    assert judge_load(LoadOutcome(4, 30, ("closed",)), "x").ending == "wrong"
    assert judge_load(LoadOutcome(4, 0, ()), "x").ending == "error"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ([], FactUnavailable),
        (lines(BUSY, RANKS, end=False), FactUnavailable),
        (['{"event": "error", "reason": "libnvidia-ml.so.1: cannot open"}'], FactUnavailable),
        (["nonsense"], ParseError),
        (['{"event": "news"}'], ParseError),
        (lines(BUSY, {1: {}}), ParseError),
        ([line.replace('percent": 50.0', 'percent": "50 %"') for line in lines(BUSY, RANKS)], ParseError),
        ([line for line in lines(BUSY, RANKS) if '"sample"' not in line], FactUnavailable),
    ],
)
def test_unreadable_sampling_is_an_error(text: list[str], error: type[GpuInfraError]) -> None:
    """Nothing, a torn end, no driver, another shape: never an observation."""
    with pytest.raises(error):
        parse_participation(text)


SMI = """#!/bin/sh
case "$*" in
*compute-apps*) echo "GPU-a, $PPID, 1200"; echo "GPU-b, $PPID, [N/A]";;
*memory.total*) echo "00000000:06:00.0, GPU-a, 143771, NVIDIA H200"; echo "00000000:07:00.0, GPU-b, 143771, H200";;
*) echo "00000000:06:00.0, 33, 1500, 120.5"; echo "00000000:07:00.0, 0, 1500, [N/A]";;
esac
"""


@pytest.fixture
def fake_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an nvidia-smi on the path; there is no NVML here."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("fake_smi")
def test_sampler_asks_nvidia_smi_where_there_is_no_nvml() -> None:
    """Sent like the probe, it samples until its time is over, and names the process."""
    connection = LocalConnection("here")
    plan = SamplingPlan(duration_s=0.4, interval_s=0.1, port=1).document()
    said = connection.run_program(packed("sampler"), plan, timeout_s=30)
    connection.close()
    found = parse_participation(said.stdout.splitlines())
    assert found.source == "nvidia-smi"
    assert [gpu.pci_address for gpu in found.gpus] == ["0000:06:00.0", "0000:07:00.0"]
    assert found.gpus[0].activity[0] == 33.0
    assert found.gpus[1].power_w == ()
    (process,) = found.processes.values()
    assert process.visible
    assert process.listens is False


def test_sampler_ends_with_its_controller(tmp_path: Path) -> None:
    """When standard input ends, so does it, before its time."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI)
    tool.chmod(0o755)
    plan = json.dumps(SamplingPlan(duration_s=60.0, interval_s=0.1).document()).encode() + b"\n"
    ended = subprocess.run(
        [sys.executable, "-c", packed("sampler")],
        input=plan,
        capture_output=True,
        timeout=20,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=False,
    )
    assert ended.returncode == 4
    assert b'"sample"' in ended.stdout
    with pytest.raises(FactUnavailable):
        parse_participation(ended.stdout.decode().splitlines())


def test_sampler_without_any_driver_says_so(tmp_path: Path) -> None:
    """Neither library nor command: one event with both reasons."""
    plan = json.dumps(SamplingPlan(duration_s=1.0).document()).encode() + b"\n"
    said = subprocess.run(
        [sys.executable, "-c", packed("sampler")],
        input=plan,
        capture_output=True,
        env={"PATH": str(tmp_path)},
        check=True,
    ).stdout.decode()
    with pytest.raises(FactUnavailable, match=r"libnvidia-ml\.so\.1.*nvidia-smi"):
        parse_participation(said.splitlines())
