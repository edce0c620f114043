"""The GPU suites on what two H200s said: everything right, and each planted fault found by the checks meant for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinfra.inventory.inventory import Expectation
from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.plugin.conftest import HostOutcomes, Judged, judge_recording
from tests.recorded.made_host import MadeFunction, MadeHost

PROGRAMS = Path(__file__).parents[1] / "recorded" / "gpu-programs"
BOOT = "00000000-0000-4000-8000-000000000001"
A, B = "00:06.0", "00:07.0"
THERE, BACK = f"{A}-to-{B}", f"{B}-to-{A}"
ALL_WAYS = (
    *("test_copy_engine_delivers_every_byte", "test_kernel_stores_deliver_every_byte"),
    *("test_kernel_loads_deliver_every_byte", "test_ipc_stores_deliver_every_byte"),
    *("test_ipc_loads_deliver_every_byte", "test_copies_in_both_directions_at_once_deliver_every_byte"),
    *("test_stores_in_both_directions_at_once_deliver_every_byte",),
    *("test_loads_in_both_directions_at_once_deliver_every_byte",),
)


def machine(boot_id: str = BOOT, addresses: Sequence[str] = (f"0000:{A}", f"0000:{B}")) -> MadeHost:
    """Give the machine that the programs ran on, as far as the capture goes."""
    gpus = [
        MadeFunction(address, (), device=0x2335, class_code=0x030200, driver="nvidia", numa_node=-1)
        for address in addresses
    ]
    return MadeHost(
        gpus,
        files={
            "/proc/sys/kernel/random/boot_id": f"{boot_id}\n",
            "/proc/uptime": "1000.0 1000.0\n",
            "/proc/sys/kernel/osrelease": "6.18.44\n",
            "/proc/cmdline": "quiet\n",
        },
        kmsg=[(5, 0.0, "Linux version 6.18.44")],
    )


def both(mechanism: str) -> list[str]:
    """Give the items of a mechanism tried in both directions at once."""
    name = {"copy_engine": "copies", "kernel_store": "stores", "kernel_load": "loads"}[mechanism]
    return [f"test_{name}_in_both_directions_at_once_deliver_every_byte[{pair}]" for pair in (THERE, BACK)]


FAULTS: dict[str, list[str]] = {
    "no-fault": [],
    "a-copy-that-crashes": [f"test_copy_engine_delivers_every_byte[{BACK}]", *both("copy_engine")],
    "a-copy-that-hangs": [f"test_kernel_loads_deliver_every_byte[{THERE}]", *both("kernel_load")],
    "a-rank-that-crashes": ["test_all_reduce_is_right[shm]"],
    "a-rank-that-hangs": ["test_all_reduce_is_right[shm]"],
    "a-wrong-sum-in-one-rank": ["test_all_reduce_is_right[shm]"],
    "nccl-returns-an-error": ["test_all_reduce_is_right[shm]"],
    "never-written-last-bytes-only-by-ipc": [f"test_ipc_stores_deliver_every_byte[{THERE}]"],
    "never-written-one-pair": [f"{name}[{THERE}]" for name in ALL_WAYS],
    "outside-of-the-destination": [f"test_kernel_stores_deliver_every_byte[{THERE}]", both("kernel_store")[0]],
    "scrambled-from-the-second-repeat-on": [f"test_copy_engine_delivers_every_byte[{THERE}]", both("copy_engine")[0]],
    "scrambled-last-bytes-only": [f"test_kernel_loads_deliver_every_byte[{BACK}]", both("kernel_load")[1]],
    "the-wrong-transport": ["test_all_reduce_uses_the_transport_that_it_was_run_for[shm]"],
    "too-little-memory": [],
    "zeroed-above-1-mib-only": [f"test_kernel_stores_deliver_every_byte[{THERE}]", both("kernel_store")[0]],
    "zeroed-one-mechanism": [f"test_ipc_loads_deliver_every_byte[{BACK}]"],
}
WORDS = {
    "a-copy-that-crashes": "crash",
    "a-copy-that-hangs": "hang",
    "a-rank-that-crashes": "rank 1",
    "a-rank-that-hangs": "rank 1",
    "a-wrong-sum-in-one-rank": "rank 1",
    "never-written-one-pair": "never written",
    "outside-of-the-destination": "bytes beside the destination",
    "scrambled-last-bytes-only": "scrambled",
    "the-wrong-transport": "via P2P",
    "zeroed-one-mechanism": "zeroed",
}


def lines(name: str) -> list[str]:
    """Give the events of a recorded run."""
    return (PROGRAMS / f"h200-{name}.jsonl").read_text().splitlines()


def gathered(cuda: list[str], torch: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """Give what a recording holds of GPU programs; these went through the tests' own libraries, and may."""
    said = {"cuda": {"lines": cuda, "kmsg": "", "log_reason": "", "stand_in_allowed": True, **more}}
    if torch is not None:
        said["torch"] = {"lines": torch, "kmsg": "", "log_reason": ""}
    return {"gpu": said}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Judge every recorded run, in one run of ours."""
    nothing = Expectation()
    capture = machine().capture("x", nothing)
    hosts: dict[str, RecordedHost] = {}

    def add(alias: str, spec: dict[str, Any], data: dict[str, Any], boot_id: str = BOOT) -> None:
        made = capture if boot_id == BOOT else machine(boot_id).capture("x", nothing)
        hosts[alias] = RecordedHost(spec, made, data)

    clean, torch = lines("cuda"), lines("torch")
    add("clean", {}, gathered(clean, torch))
    for name in FAULTS:
        add(f"fault-{name}", {}, gathered(lines(f"fault-{name}"), torch))
    numbers = {"peer_copy_gb_s_min": 390.0, "busbw_gb_s_min": {"shm": 26.0, "p2p": 290.0}}
    add("correct", {"expect": {"peer_access": "correct", "gpu": numbers}}, gathered(clean, torch))
    fast = {"peer_copy_gb_s_min": 1000.0, "busbw_gb_s_min": {"shm": 100.0}}
    add("slow", {"expect": {"gpu": fast}}, gathered(clean, torch))
    add("blocked", {"expect": {"peer_access": "blocked"}}, gathered(lines("fault-never-written-one-pair"), torch))
    no_access = [re.sub(r'"can_access": true', '"can_access": false', line) for line in clean]
    no_access = [_not_tested(line) for line in no_access]
    add("no-access", {}, gathered(no_access, torch))
    add("no-access-but-expected", {"expect": {"peer_access": "correct"}}, gathered(no_access, torch))
    add("other-boot", {}, gathered(clean, torch), "00000000-0000-4000-8000-000000000002")
    add("cut-off", {}, gathered(clean[: len(clean) // 2], torch))
    add("died", {}, gathered([], torch, error="it ended with status 1 and said nothing: no libcuda.so.1"))
    add("three-expected", {"expect": {"devices": [{"pci": [A, B, "00:08.0"]}]}}, gathered(clean, torch))
    sham = gathered(lines("fault-no-fault"), torch)
    del sham["gpu"]["cuda"]["stand_in_allowed"]
    add("stand-in", {}, sham)
    directory = tmp_path_factory.mktemp("gpu")
    write_recording(directory / "made.json", Recording(hosts))
    return judge_recording(directory, "made.json", "-k", "peer_copies or all_reduce")


def _not_tested(line: str) -> str:
    if '"event": "pair"' not in line:
        return line
    return re.sub(r'"outcome": "right"', '"outcome": "not_tested", "_": 0', line).replace(
        '"reason": null', '"reason": "no peer access"'
    )


def unobserved(outcomes: HostOutcomes) -> set[str]:
    """Give the names of the tests that ended in ERROR."""
    return {name.partition("[")[0] for name in outcomes.ended("error")}


def test_healthy_machine_passes(judged: Judged) -> None:
    """Every pair by every mechanism, both arms with their transport, copies and sum by torch: 24 passes, no other."""
    outcomes = judged.of_host("clean")
    assert outcomes.ended("failed", "error") == []
    assert len(outcomes.ended("passed")) == 2 * (8 + 1) + 2 * 2 + 1


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found_and_named_alone(name: str, judged: Judged) -> None:
    """Each fault that was planted on the real GPUs fails exactly the checks that are meant for it."""
    outcomes = judged.of_host(f"fault-{name}")
    assert outcomes.ended("failed") == sorted(FAULTS[name])
    for failed in FAULTS[name]:
        assert WORDS.get(name, "wrong") in outcomes.messages[failed] or name == "nccl-returns-an-error"


def test_too_little_memory_is_unknown(judged: Judged) -> None:
    """What could not be tried for want of memory is ERROR, and never a pass."""
    outcomes = judged.of_host("fault-too-little-memory")
    assert {name.partition("[")[0] for name in outcomes.ended("passed")} <= {
        "test_torch_copy_delivers_every_byte",
        "test_all_reduce_by_torch_is_right",
        "test_all_reduce_is_right",
        "test_all_reduce_uses_the_transport_that_it_was_run_for",
    }
    assert len(outcomes.ended("error")) >= 2 * 8


def test_numbers_are_judged_against_what_was_measured_before_only(judged: Judged) -> None:
    """With a floor, bandwidth and busbw are judged; without, recorded."""
    assert judged.of_host("correct").ended("failed", "error") == []
    assert "test_bandwidth_is_what_it_was[00:06.0-to-00:07.0]" in judged.of_host("correct").ended("passed")
    assert "test_peer_access_is_offered[00:06.0-to-00:07.0]" in judged.of_host("correct").ended("passed")
    assert judged.of_host("slow").ended("failed") == [
        "test_all_reduce_is_as_fast_as_before[shm]",
        *(f"test_bandwidth_is_what_it_was[{pair}]" for pair in (THERE, BACK)),
    ]


def test_corruption_where_nothing_relies_on_peers_is_no_failure(judged: Judged) -> None:
    """A host that expects peer access to be blocked skips what was seen wrong, with what was seen in the reason."""
    outcomes = judged.of_host("blocked")
    assert [name for name in outcomes.ended("failed", "error") if "all_reduce" not in name] == []
    skipped = outcomes.messages[f"test_copy_engine_delivers_every_byte[{THERE}]"]
    assert "nothing may rely on it" in skipped
    assert "never written" in skipped


def test_no_peer_access_is_not_tested_and_never_a_pass(judged: Judged) -> None:
    """A copy through the host proves nothing about peers; where they must be correct it is a failure."""
    outcomes = judged.of_host("no-access")
    assert [name for name in outcomes.ended("passed") if "every_byte" in name and "torch" not in name] == []
    assert "not tested: no peer access" in outcomes.messages[f"test_copy_engine_delivers_every_byte[{THERE}]"]
    assert f"test_copy_engine_delivers_every_byte[{THERE}]" in judged.of_host("no-access-but-expected").ended("failed")
    assert f"test_peer_access_is_offered[{THERE}]" in judged.of_host("no-access-but-expected").ended("failed")


@pytest.mark.parametrize(
    ("alias", "said"),
    [
        ("other-boot", "its results belong to boot"),
        ("died", "no libcuda.so.1"),
        ("stand-in", "which is for tests only"),
    ],
)
def test_run_that_proves_nothing_is_unknown_throughout(alias: str, said: str, judged: Judged) -> None:
    """Another boot's results, a program that died, a stand-in for the driver: nothing passes by them."""
    outcomes = judged.of_host(alias)
    assert [name for name in outcomes.ended("passed", "failed") if "torch" not in name] == []
    assert said in outcomes.messages[f"test_copy_engine_delivers_every_byte[{THERE}]"]


def test_run_that_was_cut_off_leaves_the_rest_unknown(judged: Judged) -> None:
    """What was said before stands; what was not said is ERROR."""
    outcomes = judged.of_host("cut-off")
    assert outcomes.ended("failed") == []
    assert "test_all_reduce_is_right[p2p]" in outcomes.ended("error")


def test_gpu_that_is_expected_and_missing_keeps_its_pairs(judged: Judged) -> None:
    """Three GPUs expected, two seen: six pairs, of which four are ERROR, and chains that are ERROR."""
    outcomes = judged.of_host("three-expected")
    pairs = [name for name in outcomes.outcomes if name.startswith("test_copy_engine_delivers_every_byte[")]
    assert len(pairs) == 6
    assert len([name for name in pairs if outcomes.outcomes[name] == "error"]) == 4
    assert unobserved(outcomes) >= {"test_chain_of_three_delivers_every_byte"}


def test_host_with_two_real_gpus_may_take_traffic(tmp_path: Path) -> None:
    """All that was expected of it was judged, the driver's own word on peer access, too."""
    judged = judge_recording(tmp_path, str(PROGRAMS.parent / "h200" / "two-gpus-topology.json"))
    host = judged.of_host("h200")
    assert host.ended("failed", "error") == []
    assert host.outcomes["test_driver_grants_peer_access[]"] == "passed"
    assert host.outcomes["test_every_expectation_was_judged[]"] == "passed"
    assert "h200  may take traffic" in judged.output


def test_host_with_one_real_gpu_may_take_traffic(tmp_path: Path) -> None:
    """Every check of a pair is skipped with its reason; what runs on one GPU ran, and is right."""
    judged = judge_recording(tmp_path, str(PROGRAMS.parent / "h200" / "one-gpu.json"))
    host = judged.of_host("h200")
    assert host.ended("failed", "error") == []
    assert "h200  may take traffic" in judged.output
    assert {name for name in host.ended("passed") if "test_single_gpu" in name or "00:06.0" in name}
    skipped = [host.messages[name] for name in host.ended("skipped") if "peer_copies" in name or "delivers" in name]
    assert all("no two GPUs" in reason or "three GPUs" in reason for reason in skipped), skipped
