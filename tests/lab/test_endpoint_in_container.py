"""A loopback service inside a real container, asked through the host's one ssh connection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.conftest import Judged, run_pytest

from .nspawn import NspawnHost

pytestmark = pytest.mark.lab
DYING = Path(__file__).parents[1] / "recorded" / "sglang" / "dying.log"


def test_endpoint_of_the_container_is_asked_through_the_tunnel(lab_host: NspawnHost, tmp_path: Path) -> None:
    """The service listens on the container's loopback; the ladder is climbed and the known answer judged there."""
    (tmp_path / "gpuinfra.toml").write_text(
        f'[hosts.{lab_host.alias}]\ncontainer = "pct:101"\nendpoint = "http://127.0.0.1:30000"\n'
        f'[hosts.{lab_host.alias}.expect.model]\nid = "tiny-times"\n'
    )
    ended = run_pytest(
        tmp_path,
        *(f"--gpu-ssh-config={lab_host.ssh_config}", f"--gpu-host={lab_host.alias}", "--gpu-recording=out.json"),
        *("-p", "no:cacheprovider", "-k", "endpoint_is_ready or model_is", "--gpu-wait=20"),
    )
    judged = Judged(json.loads((tmp_path / "out.json").read_text()), ended.returncode, ended.stdout + ended.stderr)
    outcomes = judged.of_host(lab_host.alias)
    assert outcomes.ended("passed") == ["test_endpoint_is_ready[]", "test_model_is_the_expected_one[]"], judged.output
    assert outcomes.ended("failed", "error") == []


def test_waiting_ends_early_when_the_unit_has_failed(lab_host: NspawnHost, tmp_path: Path) -> None:
    """A service that dies of memory at its start: minutes of patience are not spent, and the journal says why."""
    lab_host.container_shell("cat >/run/dying.log", stdin=DYING.read_text())
    lab_host.container_shell(
        "mkdir -p /run/systemd/system/infer.service.d && cat >/run/systemd/system/infer.service.d/dying.conf && "
        "systemctl daemon-reload && systemctl stop infer && systemctl start --no-block infer",
        stdin="[Service]\nExecStart=\nExecStart=/bin/sh -c 'cat /run/dying.log; exit 137'\nRestart=no\n",
    )
    (tmp_path / "gpuinfra.toml").write_text(
        f'[hosts.{lab_host.alias}]\ncontainer = "pct:101"\nservice = "infer"\nendpoint = "http://127.0.0.1:30000"\n'
    )
    ended = run_pytest(
        tmp_path,
        *(f"--gpu-ssh-config={lab_host.ssh_config}", f"--gpu-host={lab_host.alias}", "--gpu-recording=out.json"),
        *("-p", "no:cacheprovider", "-k", "endpoint_is_ready", "--gpu-wait=240"),
    )
    judged = Judged(json.loads((tmp_path / "out.json").read_text()), ended.returncode, ended.stdout + ended.stderr)
    message = judged.of_host(lab_host.alias).messages["test_endpoint_is_ready[]"]
    assert "infer.service is failed" in message
    assert "torch.AcceleratorError: CUDA error: out of memory" in message
    hosts: Any = judged.recording["hosts"]
    assert hosts[lab_host.alias]["gathered"]["endpoint"]["readiness"]["stop"] == "unit"
