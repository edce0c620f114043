"""Groups of hosts in a recording: judged again, with and without xdist, and only by the boot that they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinfra.inventory.inventory import Expectation
from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.gpu.test_host_collective_verdict import lines_of
from tests.plugin.conftest import Judged, judge_recording
from tests.recorded.made_host import MadeFunction, MadeHost

BOOT = "00000000-0000-4000-8000-000000000001"
HOSTS = ("a", "b", "c")
GPUS = ("00:06.0", "00:07.0")
ITEMS = "hosts_sum or hosts_use or hosts_are or two_hosts"
TRANSPORT = "test_hosts_use_the_network_that_was_built_for_it[two]"
H200 = Path(__file__).parents[1] / "recorded" / "h200"
CUT = {"ending": "inconclusive", "met": None, "error": ("unreachable", "no way to a")}
ALONE = {"ending": "inconclusive", "met": None, "error": ("rendezvous", "not all of the 3 hosts came")}


def machine() -> MadeHost:
    """Give a host with two GPUs."""
    gpus = [
        MadeFunction(f"0000:{address}", (), device=0x2335, class_code=0x030200, driver="nvidia", numa_node=-1)
        for address in GPUS
    ]
    return MadeHost(
        gpus,
        files={
            "/proc/sys/kernel/random/boot_id": f"{BOOT}\n",
            "/proc/uptime": "1000.0 1000.0\n",
            "/proc/sys/kernel/osrelease": "6.18.44\n",
            "/proc/cmdline": "quiet\n",
        },
        kmsg=[(5, 0.0, "Linux version 6.18.44")],
    )


def run(**changes: dict[str, Any]) -> dict[str, Any]:
    """Give what the hosts said in one run, by alias."""
    return {
        alias: {"lines": lines_of(place, **{"boot_id": BOOT, **changes.get(alias, {})})}
        for place, alias in enumerate(HOSTS)
    }


def pair(one: str, other: str, **changes: Any) -> dict[str, Any]:
    """Give what two hosts said."""
    met = {one: 2, other: 2}
    return {
        alias: {"lines": lines_of(place, **{"boot_id": BOOT, "met": met, **changes})}
        for place, alias in enumerate((one, other))
    }


@pytest.fixture
def judge(tmp_path: Path) -> Any:
    """Give a function that judges a recording of three hosts, in which the first one carries the group."""

    def go(runs: dict[str, Any] | None, *arguments: str, **expect: Any) -> Judged:
        capture = machine().capture("x", Expectation())
        gathered = (
            {} if runs is None else {"collectives": {"rack": {"expect": {"hosts": HOSTS, **expect}, "runs": runs}}}
        )
        hosts = {alias: RecordedHost({}, capture, gathered if alias == "a" else {}) for alias in HOSTS}
        write_recording(tmp_path / "made.json", Recording(hosts))
        return judge_recording(tmp_path, "made.json", "-k", ITEMS, *arguments)

    return go


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_recorded_group_is_judged_again(judge: Any, workers: tuple[str, ...]) -> None:
    """Its expectation is in the recording; the pairs were not needed; hosts other than the first carry no item."""
    judged = judge({"whole": run()}, *workers, transport="NET/IB", busbw_gb_s_min=41.0)

    assert judged.of_host("a").ended("passed") == [
        "test_hosts_sum_right_together[rack]",
        "test_hosts_use_the_network_that_was_built_for_it[rack]",
    ]
    assert judged.of_host("a").ended("failed") == ["test_hosts_are_as_fast_together_as_before[rack]"]
    assert len(judged.of_host("a").ended("skipped")) == 3
    assert {*judged.of_host("b").outcomes.values()} == {"skipped"}


PLAIN = {alias: {"via": ("NET/IB/0", "NET/IB/1")} for alias in HOSTS}
DIRECT = {alias: {"via": ("NET/IB/0/GDRDMA", "NET/IB/1(0)/GDRDMA/Shared")} for alias in HOSTS}
MIXED = {**DIRECT, "b": PLAIN["b"]}
NONE = {alias: {"via": ()} for alias in HOSTS}


@pytest.mark.parametrize(
    ("vias", "expect", "outcome", "said"),
    [
        (DIRECT, {"gpu_direct_rdma": True}, "passed", ""),
        (PLAIN, {"gpu_direct_rdma": True}, "failed", "a to b: 8 channels without GDRDMA"),
        (MIXED, {"gpu_direct_rdma": True}, "failed", "b to c: 8 channels without GDRDMA"),
        (DIRECT, {"gpu_direct_rdma": False}, "failed", "with GDRDMA"),
        (NONE, {"gpu_direct_rdma": True}, "error", "proves no channel"),
        (PLAIN, {"transport": "NET/IB"}, "skipped", "nothing is expected; a to b: 8 channels without GDRDMA"),
        (PLAIN, {}, "skipped", "inventory expects no collectives.rack.gpu_direct_rdma"),
    ],
)
def test_direct_access_of_the_network_to_gpu_memory_is_judged(
    judge: Any, vias: dict[str, Any], expect: dict[str, Any], outcome: str, said: str
) -> None:
    """Right sums over host memory fail where the network is to reach GPU memory directly; else what is seen is told."""
    outcomes = judge({"whole": run(**vias)}, "-k", "hosts_reach", **expect).of_host("a")

    assert outcomes.outcomes == {"test_hosts_reach_gpu_memory_directly[rack]": outcome}
    assert said in outcomes.messages["test_hosts_reach_gpu_memory_directly[rack]"]


def test_pairs_name_the_bad_host(judge: Any) -> None:
    """The third host has no way to the first; the two pairs with it fail."""
    whole = run(a=ALONE, b=ALONE, c=CUT)
    bad = {"ending": "failed", "reason": "connection refused", "met": None}
    judged = judge({"whole": whole, "a+b": pair("a", "b"), "a+c": pair("a", "c", **bad), "b+c": pair("b", "c", **bad)})
    outcomes = judged.of_host("a")

    assert outcomes.ended("failed") == [
        "test_hosts_sum_right_together[rack]",
        "test_two_hosts_sum_right_together[rack-a+c]",
        "test_two_hosts_sum_right_together[rack-b+c]",
    ]
    assert outcomes.ended("passed") == ["test_two_hosts_sum_right_together[rack-a+b]"]
    message = outcomes.messages["test_hosts_sum_right_together[rack]"]
    assert "partition, c is cut off" in message
    assert "pairs: c fails with every other host" in message


def test_another_boots_results_prove_nothing(judge: Any) -> None:
    """What was proven before the reboot is unknown now."""
    outcomes = judge({"whole": run(b={"boot_id": "00000000-0000-4000-8000-000000000009"})}).of_host("a")

    assert outcomes.ended("passed", "failed") == []
    assert "its results belong to boot" in outcomes.messages["test_hosts_sum_right_together[rack]"]


def test_recording_without_a_run_has_nothing_to_judge(judge: Any, tmp_path: Path) -> None:
    """The inventory names a group, and the recorded hosts cannot be asked."""
    (tmp_path / "gpuinfra.toml").write_text('[collectives.rack]\nhosts = ["a", "b", "c"]\n')
    outcomes = judge(None).of_host("a")

    assert {*outcomes.outcomes.values()} == {"skipped"}


@pytest.mark.parametrize(("name", "wrong"), [("hosts-sockets", []), ("hosts-another-network", [TRANSPORT])])
def test_two_h200s_over_sockets_are_judged_again(name: str, wrong: list[str], tmp_path: Path) -> None:
    """NCCL between "hosts" of one GPU each (tests/gpu/hosts_on_device.sh): sockets are seen, and no other network."""
    outcomes = judge_recording(tmp_path, str(H200 / f"{name}.json"), "-k", ITEMS).of_host("gpu-a")

    assert outcomes.ended("failed") == wrong
    assert len(outcomes.ended("passed")) == 3 - len(wrong)
    assert outcomes.ended("error") == []
    for item in wrong:
        assert "gpu-a to gpu-b: 2 channels via NET/Socket" in outcomes.messages[item]
