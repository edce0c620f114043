"""What root itself runs lies where nobody else may write; what a user planted on root's PATH is run by nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.conftest import run_pytest

from .nspawn import NspawnHost

pytestmark = pytest.mark.lab
PLANTED = "/opt/op"
NAMES = ("nvidia-smi", "systemctl", "systemd-analyze", "journalctl", "dmesg", "docker", "pct", "ldconfig", "id", "stat")


@pytest.fixture
def host(lab_host: NspawnHost) -> Iterator[NspawnHost]:
    """The lab host, with programs of a user's own first on root's PATH; each of them writes a mark."""
    lab_host.shell(
        f"mkdir -p {PLANTED}; chown op {PLANTED}; cp /root/.bashrc /root/.bashrc-kept;"
        f" echo 'PATH={PLANTED}:$PATH; export PATH' | cat - /root/.bashrc-kept >/root/.bashrc;"
        f" for name in {' '.join(NAMES)}; do"
        f" printf '#!/bin/sh\\necho \"$0 $*\" >>/run/planted-ran\\n' >{PLANTED}/$name; done; chmod 755 {PLANTED}/*"
    )
    assert lab_host.ssh("command -v nvidia-smi").stdout.strip() == f"{PLANTED}/nvidia-smi"
    yield lab_host
    lab_host.shell(f"rm -rf {PLANTED} /run/planted-ran; mv /root/.bashrc-kept /root/.bashrc")


def judge(host: NspawnHost, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run the plugin on the host as a user does; gives the results."""
    (folder / "gpuinfra.toml").write_text(
        f"[hosts.x]\naddress = '{host.destination}'\n"
        "[[hosts.x.expect.devices]]\npci = ['0000:01:00.0', '0000:11:00.0']\ndriver = 'nvidia'\n"
    )
    ended = run_pytest(
        folder,
        *("--gpu-host=x", f"--gpu-ssh-config={host.ssh_config}", "--gpu-recording=judged.json", "-q"),
        *("-p", "no:cacheprovider", *arguments),
    )
    assert (folder / "judged.json").exists(), ended.stdout + ended.stderr
    results: list[dict[str, Any]] = json.loads((folder / "judged.json").read_text())["results"]
    return results


@pytest.mark.parametrize("level", ["passive", "active"])
def test_planted_programs_are_not_run(level: str, host: NspawnHost, tmp_path: Path) -> None:
    """Where root has its own it is taken; nvidia-smi is nowhere else: an ERROR that names it and its owner."""
    results = judge(host, tmp_path, f"--gpu-level={level}")
    assert host.shell("cat /run/planted-ran", check=False).stdout == ""
    told = [one["message"] for one in results if one["outcome"] == "error" and "nvidia-smi" in one["message"]]
    assert any(f"{PLANTED}/nvidia-smi: {PLANTED} belongs to user 1000" in message for message in told), told
    assert any(one["outcome"] == "passed" for one in results)


def test_only_python_is_a_users(host: NspawnHost, tmp_path: Path) -> None:
    """Every item is ERROR, with the path and whose it is; it is not started."""
    host.shell(
        f"mv /usr/bin/python3 /usr/bin/python3-kept; cp {PLANTED}/id {PLANTED}/python3; chmod 755 {PLANTED}/python3"
    )
    try:
        results = judge(host, tmp_path, "--gpu-level=passive")
    finally:
        host.shell("mv /usr/bin/python3-kept /usr/bin/python3")
    assert {one["outcome"] for one in results} <= {"error", "skipped"}
    told = [one["message"] for one in results if one["outcome"] == "error"]
    assert told
    assert all(f"{PLANTED}/python3" in message and "1000" in message for message in told), told[0]
    assert host.shell("cat /run/planted-ran", check=False).stdout == ""
