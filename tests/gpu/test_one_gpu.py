"""A host with one GPU, from the sham driver to the verdict: what it can do is judged, the rest does not apply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinfra.inventory.inventory import Expectation
from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.gpu.conftest import Start
from tests.plugin.conftest import HostOutcomes, judge_recording
from tests.plugin.test_gpu import BOOT, machine

ONE, TWO = "0000:01:00.0", "0000:11:00.0"
EXPECTED: dict[str, Any] = {"devices": [{"pci": [ONE], "driver": "nvidia"}]}
ITEMS = (
    "test_host_memory_copies_deliver_every_byte",
    "test_own_kernels_copy_every_byte",
    "test_torch_copies_on_the_gpu_deliver_every_byte",
)
ALONE = "single_gpu or peer_copies or all_reduce or path_safety"


def said(start: Start, program: str, environment: dict[str, str], **plan: Any) -> dict[str, Any]:
    """Give what a program says over the sham driver, as of the made machine's boot."""
    sham = {"PYTHONPATH": str(Path(__file__).parent / "sham")} if program == "torch" else {}
    local = {"local": ("torch_copy",), "mechanisms": ()} if program == "torch" else {}
    lines = start(program, {"GPUINFRA_SHAM_GPUS": "1", **sham, **environment}, arms=(), **local, **plan).lines()
    events = [json.loads(line) for line in lines]
    events = [{**event, "boot_id": BOOT} if event["event"] == "plan" else event for event in events]
    return {"lines": [json.dumps(event) for event in events], "kmsg": "", "log_reason": "", "stand_in_allowed": True}


@pytest.fixture
def judged(start: Start, tmp_path: Path) -> Any:
    """Run both programs over one sham GPU and judge: judged(environment, expect) gives outcomes and the status."""

    def judge(environment: dict[str, str], expect: dict[str, Any], *options: str) -> tuple[HostOutcomes, int]:
        gathered = {"gpu": {name: said(start, name, environment) for name in ("cuda", "torch")}}
        capture = machine(addresses=(ONE,)).capture("x", Expectation())
        host = RecordedHost({"expect": expect} if expect else {}, capture, gathered)
        write_recording(tmp_path / "made.json", Recording({"one": host}))
        ended = judge_recording(tmp_path, "made.json", "-k", ALONE, *options)
        return ended.of_host("one"), ended.exit_status

    return judge


@pytest.mark.parametrize("expect", [{}, EXPECTED], ids=["nothing-expected", "one-expected"])
def test_healthy_host_with_one_gpu_is_judged(judged: Any, expect: dict[str, Any]) -> None:
    """Its copies pass, nothing is unknown, and what needs a second GPU says so."""
    outcomes, status = judged({}, expect)

    assert outcomes.ended("failed", "error") == []
    assert outcomes.ended("passed") == sorted(f"{name}[01:00.0]" for name in ITEMS)
    assert "one GPU on the nvidia driver" in outcomes.messages["test_service_uses_a_path_that_was_proven_right[]"]
    for name in ("test_all_reduce_is_right[]", "test_all_reduce_by_torch_is_right[]"):
        assert "no two GPUs on the nvidia driver" in outcomes.messages[name]
    assert status == 0


@pytest.mark.parametrize(
    ("fault", "item", "ending", "word"),
    [
        ("zeroed,mechanism=host_memory", ITEMS[0], "failed", "zeroed"),
        ("error,mechanism=host_memory,min_bytes=4096", ITEMS[0], "failed", "cuMemcpyHtoD_v2 returned 700"),
        ("never_written,mechanism=kernel_copy,min_bytes=4096", ITEMS[1], "failed", "never written"),
        ("stall,mechanism=kernel_copy", ITEMS[1], "failed", "hang: no end within"),
        ("die,mechanism=kernel_copy", ITEMS[1], "failed", "crash: the copying process was ended by SIGSEGV"),
        ("little_memory,device=0,free_bytes=1048576", ITEMS[0], "error", "too little free memory"),
    ],
)
def test_fault_of_the_only_gpu_is_found(judged: Any, fault: str, item: str, ending: str, word: str) -> None:
    """Wrong bytes, a refused call, a hang and a crash fail; too little memory is unknown."""
    outcomes, status = judged({"GPUINFRA_FAULTS": fault}, {})

    assert f"{item}[01:00.0]" in outcomes.ended(ending)
    assert word in outcomes.messages[f"{item}[01:00.0]"]
    assert status == {"failed": 1, "error": 6}[ending]


def test_second_gpu_that_is_expected_is_not_waived(judged: Any) -> None:
    """Where the inventory has two GPUs and CUDA shows one, every check of the other, and of both, is ERROR."""
    outcomes, status = judged({}, {"devices": [{"pci": [ONE, TWO], "driver": "nvidia"}]})

    unknown = {name.partition("[")[0] for name in outcomes.ended("error")}
    assert unknown >= {ITEMS[0], "test_copy_engine_delivers_every_byte", "test_all_reduce_is_right"}
    assert f"{ITEMS[0]}[11:00.0]" in outcomes.ended("error")
    assert status != 0
