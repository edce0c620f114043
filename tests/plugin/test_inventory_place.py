"""The inventory is found from within the folders below it, and its absence is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_gpuinfra.inventory.inventory import Expectation
from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.plugin.conftest import run_pytest
from tests.recorded.reference.compose import reference_host


@pytest.fixture
def below(tmp_path: Path) -> Path:
    """Give a folder two below an inventory that a recorded host does not meet."""
    folder = tmp_path / "project" / "gpu" / "nightly"
    folder.mkdir(parents=True)
    capture = reference_host().capture("node-a", Expectation())
    write_recording(folder / "host.json", Recording({"node-a": RecordedHost({}, capture)}))
    (tmp_path / "project" / "gpuinfra.toml").write_text("[hosts.node-a.expect]\nkernel_release = 'another'\n")
    return folder


def judged(folder: Path) -> tuple[str, str]:
    """Judge the kernel's release; gives its outcome and the output."""
    ended = run_pytest(
        folder,
        *("--gpu-host=replay:host.json", "--gpu-recording=out.json", "-p", "no:cacheprovider"),
        *("-k", "kernel_release_is_the_expected"),
    )
    results = json.loads((folder / "out.json").read_text())["results"]
    return results[0]["outcome"], ended.stdout


@pytest.mark.parametrize("top", [".git", "pytest.ini"])
def test_inventory_above_the_run_holds(below: Path, top: str) -> None:
    """Up to the top of the repository, or pytest's root directory."""
    place = below.parents[1] / top
    place.write_text("[pytest]\n") if "." in top[1:] else place.mkdir()
    outcome, output = judged(below)
    assert outcome == "failed"
    assert f"expected by {below.parents[1] / 'gpuinfra.toml'}" in output


def test_nearest_inventory_holds(below: Path) -> None:
    """One beside the run goes before one above it."""
    (below.parents[1] / ".git").mkdir()
    (below / "gpuinfra.toml").write_text("[hosts.node-a.expect]\nkernel_release = '*'\n")
    assert judged(below)[0] == "passed"


def test_absence_is_said_and_one_further_up_is_named(below: Path) -> None:
    """Outside of a repository no folder above is believed; the header says what to do."""
    outcome, output = judged(below)
    assert outcome == "skipped"
    said = "".join(line for line in output.splitlines() if "no gpuinfra.toml in" in line)
    assert f"{below}: nothing is expected" in said
    assert f"--gpu-inventory={below.parents[1] / 'gpuinfra.toml'}" in said
