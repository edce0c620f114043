"""Real SGLang on two H200s, judged again from what was recorded there: readiness, speculation, participation, paths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.subjects.participation.samples import Participation, parse_participation
from pytest_gpuinfra.subjects.path_safety.judge import PathSafety, ServicePath, judge_path_safety
from pytest_gpuinfra.subjects.path_safety.service import path_of_service
from pytest_gpuinfra.subjects.service.engine import find_engine, find_ranks
from pytest_gpuinfra.subjects.service.environment import EnvironmentWitnesses
from pytest_gpuinfra.subjects.service.process import parse_process
from pytest_gpuinfra.subjects.service.python import parse_python_start
from pytest_gpuinfra.subjects.transfers.program import GpuProgramRun, parse_gpu_program_events
from tests.plugin.conftest import Judged, judge_recording

RECORDED = Path(__file__).parents[1] / "recorded"
SGLANG = RECORDED / "sglang"
SERVERS = ("plain", "nextn", "nextn-spoiled", "standalone", "ngram")
DEVICES = ("0000:00:06.0", "0000:00:07.0")


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    """Give what was recorded."""
    document: dict[str, Any] = json.loads((SGLANG / "recording.json").read_text())
    return document


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Judge all of it again, in one run."""
    directory = tmp_path_factory.mktemp("sglang")
    (directory / "recording.json").write_bytes((SGLANG / "recording.json").read_bytes())
    return judge_recording(directory, "recording.json", "-k", "test_endpoint or participation")


def test_every_item_ends_as_it_did_there(recording: dict[str, Any], judged: Judged) -> None:
    """163 items of twelve hosts: the replay ends each as the run on the machine did."""
    compared = 0
    for alias in recording["hosts"]:
        live = Judged(recording, 0, "").of_host(alias)
        again = judged.of_host(alias)
        assert {name: again.outcomes.get(name) for name in live.outcomes} == dict(live.outcomes), alias
        compared += len(live.outcomes)
    assert compared == 163


def test_start_that_died_of_memory_ends_as_it_did_there(tmp_path: Path) -> None:
    """Its GPUs were taken: no rung was ever reached, and that is wrong, not unknown."""
    live = Judged(json.loads((SGLANG / "dying.json").read_text()), 0, "").of_host("gpus-taken")
    (tmp_path / "dying.json").write_bytes((SGLANG / "dying.json").read_bytes())
    again = judge_recording(tmp_path, "dying.json", "-k", "endpoint_is_ready").of_host("gpus-taken")
    assert dict(again.outcomes) == dict(live.outcomes) == {"test_endpoint_is_ready[]": "failed"}
    assert "port not reached, health not reached, models not reached" in again.messages["test_endpoint_is_ready[]"]


@pytest.mark.parametrize("name", SERVERS)
def test_readiness_was_climbed_through_its_real_states(name: str, recording: dict[str, Any], judged: Judged) -> None:
    """Refused, then 503 with an empty body, then 200: each rung with its time, from nothing on."""
    readiness = recording["hosts"][f"ready-{name}"]["gathered"]["endpoint"]["readiness"]
    times = [rung["reached_s"] for rung in readiness["rungs"]]
    assert times == sorted(times)
    assert 45 < times[0] < times[1] < 100
    said = " ".join(readiness["history"])
    assert said.index("refused") < said.index("503 with an empty body (starting)") < said.index("ready", -5)
    assert "test_endpoint_is_ready[]" in judged.of_host(f"ready-{name}").ended("passed")


@pytest.mark.parametrize("name", SERVERS)
def test_answers_are_right_whatever_the_speculation(name: str, judged: Judged) -> None:
    """Answers, repeats, streams, 32 requests at concurrency 8, bad requests: right on every server."""
    outcomes = judged.of_host(name)
    bad = outcomes.ended("failed", "error")
    assert [item for item in bad if "speculation" not in item and "as_fast_as" not in item] == []
    assert len([item for item in outcomes.ended("passed") if item.startswith("test_answer_is_right")]) == 5
    assert "test_tensor_parallel_size_is_the_expected_one[]" in outcomes.ended("passed")


def test_head_of_noise_is_configured_and_not_accepting(judged: Judged) -> None:
    """The same server with a trained head passes; with random weights it fails, with that reason."""
    item = "test_speculation_is_as_expected[]"
    for name in ("plain", "nextn", "standalone", "ngram"):
        assert item in judged.of_host(name).ended("passed"), name
    spoiled = judged.of_host("nextn-spoiled")
    assert item in spoiled.ended("failed")
    assert "configured but not accepting" in spoiled.messages[item]
    assert "mean length 1.02" in spoiled.messages[item]


def test_speed_is_judged_against_the_server_without_speculation(judged: Judged) -> None:
    """A head of noise costs 45 %; a replay judges the speed that was measured then, not its own."""
    one, eight = "test_one_stream_is_as_fast_as_before[]", "test_eight_streams_are_as_fast_as_before[]"
    assert {one, eight} <= set(judged.of_host("nextn-spoiled").ended("failed"))
    assert "-45% of the baseline" in judged.of_host("nextn-spoiled").messages[one]
    assert {one, eight} <= set(judged.of_host("nextn").ended("passed"))
    assert {one, eight} <= set(judged.of_host("ngram").ended("passed"))
    assert eight in judged.of_host("standalone").ended("failed")
    assert "no baseline" in judged.of_host("plain").messages[one]


def test_replay_without_a_measurement_has_no_speed(judged: Judged) -> None:
    """A recording that holds no speed gives an error, never a speed of the replay."""
    message = judged.of_host("ready-plain").messages["test_one_stream_is_as_fast_as_before[]"]
    assert "the recording holds no such measurement" in message or "no " in message
    assert "test_one_stream_is_as_fast_as_before[]" in judged.of_host("ready-plain").ended("error")


@pytest.mark.parametrize("name", [*SERVERS, "two-ranks"])
def test_both_ranks_take_part(name: str, judged: Judged) -> None:
    """Each GPU carries a rank, works, holds memory within the band; no other GPU is used; no request is lost."""
    passed = judged.of_host(name).ended("passed")
    for gpu in ("00:06.0", "00:07.0"):
        assert f"test_gpu_carries_a_rank_of_the_service[{gpu}]" in passed
        assert f"test_gpu_works_under_load[{gpu}]" in passed
        assert f"test_memory_of_the_service_is_within_its_band[{gpu}]" in passed
    assert {"test_service_runs_on_no_other_gpu[]", "test_every_request_of_the_load_is_answered[]"} <= set(passed)


def test_idle_rank_is_found_and_named_alone(judged: Judged) -> None:
    """A rank that holds its memory and does nothing: exactly its GPU's item fails, with every answer right."""
    outcomes = judged.of_host("idle-rank")
    item = "test_gpu_works_under_load[00:07.0]"
    assert list(outcomes.ended("failed")) == [item]
    assert "idle: activity 0 to 0 %" in outcomes.messages[item]
    assert "the others: 00:06.0: activity 89 to 92 %" in outcomes.messages[item]


def participation(recording: Mapping[str, Any], name: str) -> Participation:
    """Give a recorded sampling."""
    return parse_participation(recording["hosts"][name]["gathered"]["participation"]["lines"])


@pytest.mark.parametrize("name", SERVERS)
def test_ranks_of_one_server_are_told_from_those_of_five_others(name: str, recording: dict[str, Any]) -> None:
    """Six servers share the GPUs: twelve processes, of which two are this one's, by the port that it listens on."""
    seen = participation(recording, name)
    assert len(seen.processes) == 12
    titles = {seen.processes[pid].title for pid in seen.serving(None)}
    assert titles == {"sglang::scheduler_TP0", "sglang::scheduler_TP1"}


def test_gpu_programs_beside_the_service_keep_their_budget_and_lose_no_request() -> None:
    """All pairs and both arms ran under load; the service answered every request; 1 GiB and contexts were taken."""
    load = json.loads((SGLANG / "beside-load.json").read_text())
    assert load["lost"] == []
    assert load["empty"] == 0
    assert load["answered_meanwhile"] > 50
    seen = parse_participation((SGLANG / "beside-samples.jsonl").read_text().splitlines())
    for gpu in seen.gpus:
        used = [one.memory_used_mib or 0.0 for one in gpu.samples]
        assert max(used) - min(used) < 1024 + 3 * 640 + 512
    run = programs(SGLANG / "beside-cuda.jsonl")
    assert {one.outcome for one in run.transfers} == {"right"}
    assert [one.ending for one in run.runs] == ["right", "right"]


def programs(path: Path) -> GpuProgramRun:
    """Give a run of the GPU programs."""
    return parse_gpu_program_events(path.read_text().splitlines(), source=path.name)


def service(name: str) -> ServicePath:
    """Put a running server's path together, from what /proc said of its processes."""
    seen = json.loads((SGLANG / f"proc-{name}.json").read_text())

    def reading(raw: Mapping[str, Any]) -> Reading:
        return Reading(name, raw.get("t"), raw.get("e"), raw.get("x"), raw.get("s", ""))

    parsed = (
        parse_process(int(pid), {entry: reading(raw) for entry, raw in node.items()})
        for pid, node in seen["processes"].items()
    )
    processes = sorted((one for one in parsed if one is not None), key=lambda process: process.pid)
    main = next(process for process in processes if process.pid == seen["main"])
    witnesses = EnvironmentWitnesses(processes, main, parse_python_start(reading(seen["python"])), "", ())
    ranks = find_ranks(processes)
    return path_of_service(name, ranks, witnesses, engine=find_engine(processes), devices=DEVICES)


STARTS = {  # server: NCCL_P2P_DISABLE in effect, transport seen, engine's own all-reduce on
    "plain": (True, "SHM", False),
    "nextn": (False, None, True),
    "nextn-spoiled": (True, "SHM", True),
    "standalone": (False, None, False),
}


@pytest.mark.parametrize("name", STARTS)
def test_path_of_each_start_is_read_from_its_running_ranks(name: str) -> None:
    """Titles overwrote both ranks' environments; what the main process was started with, and shared files, tell."""
    off, transport, custom = STARTS[name]
    path = service(name)
    assert [rank.peers_off for rank in path.ranks] == [off, off]
    assert [rank.transport for rank in path.ranks] == [transport, transport]
    assert path.custom_all_reduce is custom


def judge(name: str, *, corrupt: bool) -> PathSafety:
    """Judge a start by what was proven beside it; or with one pair that drops every byte beside right shared memory."""
    right = programs(SGLANG / "beside-cuda.jsonl")
    if not corrupt:
        return judge_path_safety(right.transfers, right.runs, service(name))
    bad = programs(RECORDED / "gpu-programs" / "h200-fault-never-written-one-pair.jsonl")
    runs = [run for run in right.runs if run.transports == {"SHM"}]
    return judge_path_safety(bad.transfers, runs, service(name))


@pytest.mark.parametrize("name", STARTS)
def test_every_start_is_safe_where_peers_are_right(name: str) -> None:
    """On this machine every pair copies right, so all four starts are safe, each by its own proof."""
    safety = judge(name, corrupt=False)
    assert safety.state == "safe"
    over = "shared memory" if STARTS[name][0] else "peer-to-peer"
    assert safety.reasons[0].startswith(f"NCCL goes over {over}")


@pytest.mark.parametrize(
    ("name", "state", "switches"),
    [
        ("plain", "safe", ()),
        ("nextn", "unsafe", ("NCCL_P2P_DISABLE=1", "--disable-custom-all-reduce")),
        ("nextn-spoiled", "unsafe", ("--disable-custom-all-reduce",)),
        ("standalone", "unsafe", ("NCCL_P2P_DISABLE=1",)),
    ],
)
def test_start_is_unsafe_where_its_path_corrupts(name: str, state: str, switches: tuple[str, ...]) -> None:
    """With one pair corrupt, only the start with both switches is safe; the others are told which one is missing."""
    safety = judge(name, corrupt=True)
    assert (safety.state, safety.switches) == (state, switches)
    assert state == "safe" or "0000:00:06.0 to 0000:00:07.0" in safety.reasons[0]
