"""Participation as a user has it judged: sampled under load on a live endpoint, in the recording, and replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_gpuinfra.endpoint.embedded import EmbeddedServer, ServerSettings
from tests.plugin.conftest import Judged, judge_recording, run_pytest

SMI = """#!/bin/sh
pid={pid}
case "$*" in
*compute-apps*) echo "GPU-a, $pid, 1200"; echo "GPU-b, $pid, 1100";;
*memory.total*) echo "00000000:06:00.0, GPU-a, 9000, H200"; echo "00000000:07:00.0, GPU-b, 9000, H200";;
*utilization*) echo "00000000:06:00.0, 33, 1500, 120.5"; echo "00000000:07:00.0, 0, 1500, [N/A]";;
*) exit 1;;
esac
"""
INVENTORY = """[hosts.h]
address = "local"
endpoint = "{url}"
[[hosts.h.expect.devices]]
pci = ["06:00.0", "07:00.0"]
driver = "nvidia"
[hosts.h.expect.model]
participation = {{ memory_min_mib = 1150.0 }}
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Judge a real server whose process a made nvidia-smi shows on two GPUs, of which one does nothing."""
    directory = tmp_path_factory.mktemp("participation")
    with EmbeddedServer(ServerSettings()) as server, pytest.MonkeyPatch.context() as patch:
        tool = directory / "nvidia-smi"
        assert server._process
        tool.write_text(SMI.format(pid=server._process.pid))
        tool.chmod(0o755)
        patch.setenv("PATH", str(directory), prepend=":")
        (directory / "gpuinfra.toml").write_text(INVENTORY.format(url=server.base_url))
        ended = run_pytest(
            directory, "--gpu-host=h", "--gpu-recording=live.json", "-p", "no:cacheprovider", "-k", "participation"
        )
        assert (directory / "live.json").exists(), ended.stdout + ended.stderr
    return directory


def test_idle_gpu_and_band_of_memory_are_judged_gpu_by_gpu(directory: Path) -> None:
    """The idle GPU fails, the one below its band fails, the other GPU passes both; a replay ends each the same."""
    again = judge_recording(directory, "live.json", "-k", "participation")
    live = Judged(json.loads((directory / "live.json").read_text()), 0, "").of_host("h")
    assert dict(again.of_host("h").outcomes) == dict(live.outcomes)
    failed = [name for name in live.ended("failed") if "load_is_answered" not in name]
    assert live.ended("error") == [], live.messages
    assert failed == [
        "test_gpu_works_under_load[07:00.0]",
        "test_memory_of_the_service_is_within_its_band[07:00.0]",
    ]
    assert "the others: 06:00.0: activity 33 to 33 %" in live.messages[failed[0]]
    assert live.ended("error") == []


def test_load_stays_out_of_the_recording(directory: Path) -> None:
    """What the GPUs did is kept; hundreds of answers that nobody judges are not."""
    document = json.loads((directory / "live.json").read_text())
    gathered = document["hosts"]["h"]["gathered"]
    assert gathered["participation"]["load"]["answered"] > 20
    assert len(gathered["endpoint"]["exchanges"]) < 20


def test_host_without_gpu_skips(tmp_path: Path) -> None:
    """The embedded server runs on the controller's processor: nothing is sampled, and nothing passes."""
    ended = run_pytest(
        tmp_path,
        *("--gpu-host=local", "--gpu-endpoint=embedded", "--gpu-recording=none", "-p", "no:cacheprovider"),
        *("-k", "participation"),
    )
    assert ended.returncode == 6, ended.stdout
    assert "5 skipped" in ended.stdout.splitlines()[-1]
