"""What is expected and judged by nobody is an error, and a verdict is as wide as what was run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pytest_gpuinfra.inventory.inventory import parse_inventory
from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.plugin.conftest import Judged, judge_recording, run_pytest
from tests.recorded.made_host import MadeFunction, MadeHost
from tests.report.made import BOOT, REFERENCE, TWO_GPUS

ITEM = "test_every_expectation_was_judged[]"


def no_gpu(directory: Path, expect: str) -> Judged:
    """Judge a healthy machine on which no GPU is seen, by an inventory with these lines."""
    files = {
        "/proc/sys/kernel/random/boot_id": f"{BOOT}\n",
        "/proc/uptime": "1000.0 1000.0\n",
        "/proc/sys/kernel/osrelease": "6.18.44\n",
        "/proc/cmdline": "quiet\n",
    }
    nic = MadeFunction("0000:02:00.0", (), device=0x1021, class_code=0x020000, driver="mlx5_core", numa_node=0)
    host = MadeHost([nic], files=files, kmsg=[(5, 0.0, "Linux version 6.18.44")])
    (directory / "gpuinfra.toml").write_text(f"[hosts.bare]\n{expect}\n")
    spec = parse_inventory({"hosts": {"bare": {}}}, "made").hosts["bare"]
    recorded = RecordedHost({}, host.capture("bare", spec.expect))
    write_recording(directory / "bare.json", Recording({"bare": recorded}, (), "2026-11-30T12:00:00+00:00", "0.1"))
    return judge_recording(directory, "bare.json")


UNSEEN = {
    "peers": ('expect.peer_access = "correct"', "expect.peer_access"),
    "blocked peers": ('expect.peer_access = "blocked"', "expect.peer_access"),
    "bandwidth": ("expect.gpu.peer_copy_gb_s_min = 300.0", "expect.gpu.peer_copy_gb_s_min"),
    "busbw": ("expect.gpu.busbw_gb_s_min = {shm = 20.0}", "expect.gpu.busbw_gb_s_min"),
    "model": ('expect.kernel_release = "6.*"\nexpect.model.id = "m"', "expect.model.id"),
    "context": ("expect.model.max_model_len = 4096", "expect.model.max_model_len"),
    "speculation": ('expect.model.speculation.algorithm = "NEXTN"', "expect.model.speculation.algorithm"),
    "participation": ('expect.model.participation.gpus = ["01:00.0"]', "expect.model.participation.gpus"),
}


@pytest.mark.parametrize(("expect", "key"), UNSEEN.values(), ids=UNSEEN)
def test_what_nothing_could_judge_is_an_error(expect: str, key: str, tmp_path: Path) -> None:
    """Named by key, file and line, with the reason; the host may not take traffic."""
    judged = no_gpu(tmp_path, expect)
    host = judged.of_host("bare")
    line = 1 + len(expect.splitlines())
    assert host.outcomes[ITEM] == "error"
    assert f"{key} ({tmp_path}/gpuinfra.toml, line {line}): bare has no" in host.messages[ITEM]
    assert judged.exit_status != 0
    assert "may take traffic" not in judged.output


def test_what_is_allowed_is_no_expectation(tmp_path: Path) -> None:
    """A host of which only harmless messages are named is one that nothing is expected of."""
    judged = no_gpu(tmp_path, 'expect.kernel_log.allow = ["harmless"]')
    assert judged.of_host("bare").outcomes[ITEM] == "skipped"
    assert "nothing expected" in judged.output
    assert "may take traffic" not in judged.output


def test_each_judged_expectation_is_counted(tmp_path: Path) -> None:
    """The healthy host whose whole run was recorded is as it is expected to be, and all of that was looked at."""
    (tmp_path / "gpuinfra.toml").write_text('[hosts.h200.expect]\npeer_access = "correct"\nkernel_release = "*"\n')
    judged = judge_recording(tmp_path, str(TWO_GPUS), "-n", "1")
    assert judged.of_host("h200").outcomes[ITEM] == "passed"
    assert "h200  may take traffic" in judged.output
    assert judged.recording["narrowed"] == {}


WAYS = {
    "keyword": (["-k", "xid"], r"\d+ of \d+ checks \(-k xid\)"),
    "marker": (["-m", "not gpu_level"], r"\d+ of \d+ checks \(-m not gpu_level\)"),
    "level": (["--gpu-level=passive"], r"all but peer_access \(--gpu-level=passive\)"),
    "workers": (["-n", "2", "-k", "xid"], r"\d+ of \d+ checks \(-k xid\)"),
    "own tests": (["test_own.py"], r"1 check \(test_own.py\)"),
    "hook": (["-p", "odd_plugin"], r"\d+ of \d+ checks \(items were left out\)"),
}


@pytest.mark.parametrize(("arguments", "words"), WAYS.values(), ids=WAYS)
def test_verdict_of_a_part_names_the_part(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the terminal, the recording, and the page that is made of it."""
    (tmp_path / "gpuinfra.toml").write_text('[hosts.h200.expect]\npeer_access = "correct"\n')
    (tmp_path / "test_own.py").write_text("def test_it(gpu_kernel_release):\n    assert gpu_kernel_release\n")
    (tmp_path / "odd_plugin.py").write_text("def pytest_collection_modifyitems(items):\n    del items[3:30]\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    judged = judge_recording(tmp_path, str(TWO_GPUS), "--gpu-summary=page.md", *arguments)
    assert judged.exit_status == 0, judged.output
    narrowed = judged.recording["narrowed"]
    assert isinstance(narrowed, dict)
    assert re.fullmatch(words, narrowed["h200"])
    for text in (judged.output, (tmp_path / "page.md").read_text()):
        assert f"{narrowed['h200']}, nothing wrong" in text
        assert "may take traffic" not in text
    assert judged.of_host("h200").outcomes.get(ITEM, "skipped") == "skipped"


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_mark_with_a_key_that_does_not_exist_is_a_usage_error(workers: list[str], tmp_path: Path) -> None:
    """A slip would skip the test for ever."""
    (tmp_path / "test_own.py").write_text(
        "import pytest\n@pytest.mark.gpu_expects('peer_acess')\ndef test_it(gpu_host):\n    assert gpu_host\n"
    )
    ended = run_pytest(tmp_path, f"--gpu-host=replay:{TWO_GPUS}", "--gpu-recording=none", *workers, "test_own.py")
    shown = ended.stdout + ended.stderr
    assert ended.returncode == (1 if workers else 4), shown
    assert "gpu_expects('peer_acess'): no such key of the inventory; did you mean 'peer_access'?" in shown
    assert "INTERNALERROR" not in shown


def test_recording_of_a_part_keeps_its_verdict_when_merged(tmp_path: Path) -> None:
    """A node that ran a part of all checks did not clear itself."""
    (tmp_path / "gpuinfra.toml").write_text('[hosts.h200.expect]\npeer_access = "correct"\n')
    judge_recording(tmp_path, str(TWO_GPUS), "-k", "xid")
    assert "(-k xid)" in json.loads((tmp_path / "judged.json").read_text())["narrowed"]["h200"]


def test_no_mates_is_an_expectation(tmp_path: Path) -> None:
    """`group_mates = []` is judged, not skipped: what shares the group is named."""
    document = json.loads(REFERENCE.read_text())
    for row in document["hosts"]["node-a"]["spec"]["expect"]["devices"]:
        row["group_mates"] = []
    (tmp_path / "reference.json").write_text(json.dumps(document))
    judged = judge_recording(tmp_path, "reference.json", "-k", "group_is_shared").of_host("node-a")
    assert set(judged.outcomes.values()) <= {"passed", "failed"}
    assert len(judged.outcomes) == 8
