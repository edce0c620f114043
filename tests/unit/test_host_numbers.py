"""Numbers of a host: from the GPU programs, the endpoint and the driver; what is missing or unreadable is no number."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_gpuinfra.host.facts import HostFacts
from pytest_gpuinfra.inventory.inventory import Expectation
from pytest_gpuinfra.record.numbers import compare_recorded, kind_of, numbers_of
from pytest_gpuinfra.record.recording import RecordedHost, read_recording
from tests.report.made import REFERENCE, TWO_GPUS, gathered, lines, machine

ENDPOINT = {
    "readiness": {
        "models": ["qwen"],
        "rungs": [{"name": name, "reached_s": at} for name, at in (("port", 1.0), ("health", 30.0), ("token", 41.5))],
    },
    "throughput": [
        {"streams": 1, "tokens": 900, "wall_s": 10.0, "first_token_s": [0.1, 0.2, 0.4]},
        {"streams": 8, "tokens": 4000, "wall_s": 10.0, "first_token_s": []},
    ],
}


def facts(addresses: list[str]) -> HostFacts:
    """Give the facts of a machine with GPUs whose driver tells nothing."""
    return HostFacts(machine(addresses).capture("x", Expectation()))


def named(found: object) -> dict[tuple[str, str], float]:
    """Give values by measure and part."""
    return {(number.measure.name, number.about): number.value for number in found}  # type: ignore[attr-defined]


def test_gpu_programs_give_bandwidths_by_place() -> None:
    """Of two H200s: pairs by their places, one way and both, all-reduces by arm, head-room of each GPU."""
    host = read_recording(TWO_GPUS).hosts["h200"]
    found = named(numbers_of("a", HostFacts(host.capture), host.gathered))
    assert found["copy engine, one way", "GPU 0 to GPU 1"] == 394.0
    assert found["copy engine, both ways at once", "GPU 1 to GPU 0"] == 390.0
    assert found["all-reduce p2p (cuda), busbw", "2 GPUs"] == 300.37
    assert found["temperature head-room", "GPU 1"] == 54.0
    assert ("temperature", "GPU 1") not in found


def test_driver_without_head_room_gives_the_temperature() -> None:
    """A board that does not tell how far it is from slowing down."""
    host = read_recording(REFERENCE).hosts["node-a"]
    found = named(numbers_of("a", HostFacts(host.capture), host.gathered))
    assert found["temperature", "GPU 0"] == 41.0
    assert not any(name == "temperature head-room" for name, _ in found)


def test_endpoint_gives_time_to_ready_speed_and_first_token_by_model() -> None:
    """The last rung; tokens of all streams a second; the median; nothing of an empty list."""
    found = named(numbers_of("a", facts(["00:06.0"]), {"endpoint": ENDPOINT}))
    assert found == {
        ("time to ready", "qwen"): 41.5,
        ("tokens/s, 1 stream", "qwen"): 90.0,
        ("time to first token, 1 stream", "qwen"): 0.2,
        ("tokens/s, 8 streams", "qwen"): 400.0,
    }


def test_endpoint_that_is_not_ready_has_no_time_to_ready() -> None:
    """A rung that was not reached: no number, rather than the time until the last one that was."""
    rungs = [{"name": "port", "reached_s": 1.0}, {"name": "health", "reached_s": None}]
    endpoint = {"endpoint": {"readiness": {"models": [], "rungs": rungs}}}
    assert numbers_of("a", facts(["00:06.0"]), endpoint) == ()


@pytest.mark.parametrize(
    "said",
    [
        gathered(["no json"]),
        {"gpu": {"cuda": {"error": "no python"}}},
        {"endpoint": {"readiness": None, "throughput": None}},
        {},
    ],
)
def test_what_cannot_be_read_is_no_number(said: dict[str, Any]) -> None:
    """Damaged events, a program that did not run, an endpoint that was not asked."""
    assert numbers_of("a", facts(["00:06.0"]), said) == ()


def test_wrong_copy_has_no_bandwidth() -> None:
    """Bytes that never arrived were not fast."""
    found = named(numbers_of("a", facts(["00:06.0", "00:07.0"]), gathered(lines("fault-never-written-one-pair"))))
    right = named(numbers_of("a", facts(["00:06.0", "00:07.0"]), gathered(lines("cuda"))))
    assert set(found) < set(right)


def test_kind_is_gpus_by_name_and_number() -> None:
    """By the driver's names, by PCI ids where it gives none; no GPU is no kind, and has nothing to be compared."""
    host = read_recording(TWO_GPUS).hosts["h200"]
    assert kind_of(HostFacts(host.capture)) == "2 x NVIDIA H200"
    assert kind_of(facts(["00:06.0", "00:07.0"])) == "2 x GPU 10de:2335"
    assert kind_of(facts([])) == ""
    assert numbers_of("a", facts([]), {"endpoint": ENDPOINT}) == ()


def test_host_whose_model_differs_is_compared_with_nobody() -> None:
    """Five hosts with one model and one with another: tokens/s of the one are no outlier."""

    def endpoint(model: str, tokens: int) -> dict[str, Any]:
        data = json.loads(json.dumps(ENDPOINT))
        data["readiness"]["models"] = [model]
        data["throughput"][0]["tokens"] = tokens
        return {"endpoint": data}

    capture = facts(["00:06.0"]).capture
    hosts = {f"n{number}": RecordedHost({}, capture, endpoint("large", 900)) for number in range(5)}
    hosts["other"] = RecordedHost({}, capture, endpoint("small", 9000))
    found = compare_recorded(hosts)
    assert all("other" not in group.values for group in found.groups)
    hosts["other"] = RecordedHost({}, capture, endpoint("large", 100))
    assert compare_recorded(hosts).stragglers == ("other",)
