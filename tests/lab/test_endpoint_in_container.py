"""A loopback service inside a real container, asked through the host's one ssh connection."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.plugin.conftest import Judged, run_pytest

from .nspawn import NspawnHost

pytestmark = pytest.mark.lab


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
