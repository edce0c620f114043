"""After a change: baseline, reboot, waiting, what unknown is worth, and the first inventory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pytest_gpuinfra.capture import Capture
from pytest_gpuinfra.cli import main
from pytest_gpuinfra.inventory import parse_inventory, read_inventory
from pytest_gpuinfra.recording import Recording, read_recording, write_recording
from pytest_gpuinfra.run import Run, Settings
from pytest_gpuinfra.selection import SelectedHost
from tests.plugin.conftest import run_pytest
from tests.report.made import REFERENCE, TWO_GPUS


def changed(path: Path, **texts: str) -> None:
    """Write the reference recording with some texts replaced: boot id, command line."""
    document = json.loads(REFERENCE.read_text())
    boot = document["hosts"]["node-a"]["capture"]["answers"]["boot"][""]
    for name, text in texts.items():
        boot[name]["t"] = text
    path.write_text(json.dumps(document))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with the host before and after a reboot with another command line."""
    line = json.loads(REFERENCE.read_text())["hosts"]["node-a"]["capture"]["answers"]["boot"][""]["cmdline"]["t"]
    (tmp_path / "before.json").write_text(REFERENCE.read_text())
    changed(tmp_path / "same-boot.json")
    changed(
        tmp_path / "after.json", boot_id="6c0f0b7e-8a3e-4a2b-9c56-3f1f6f0d7a11\n", cmdline=line.strip() + " iommu=pt\n"
    )
    return tmp_path


def judged(folder: Path, recording: str, *arguments: str) -> dict[str, str]:
    """Judge a recording against the baseline; gives outcomes by item, and the exit status."""
    ended = run_pytest(
        folder,
        f"--gpu-host=replay:{recording}",
        "--gpu-baseline=before.json",
        "--gpu-recording=out.json",
        "-q",
        "-p",
        "no:cacheprovider",
        *arguments,
        str(Path(__file__).parents[2] / "suites" / "host" / "test_baseline.py"),
    )
    results = json.loads((folder / "out.json").read_text())["results"]
    return {"": str(ended.returncode)} | {r["id"].rpartition("::")[2]: r["outcome"] for r in results}


def test_baseline_finds_what_was_not_meant(folder: Path) -> None:
    """One item an area: the command line alone differs, and the host has rebooted."""
    ended = judged(folder, "after.json", "--gpu-after-reboot")
    assert ended[""] == "1"
    assert ended["test_host_has_rebooted[node-a]"] == "passed"
    failed = [name for name, outcome in ended.items() if outcome == "failed"]
    assert failed == ["test_nothing_changed_beside_what_was_meant[node-a-command-line]"]
    assert ended["test_nothing_changed_beside_what_was_meant[node-a-iommu]"] == "passed"


def test_allowed_change_passes_and_missing_reboot_fails(folder: Path) -> None:
    """The same with the change allowed, on the boot before."""
    ended = judged(folder, "after.json", "--gpu-allow-change=command line/iommu=pt")
    assert ended[""] == "0"
    assert ended["test_host_has_rebooted[node-a]"] == "skipped"
    ended = judged(folder, "same-boot.json", "--gpu-after-reboot")
    assert (ended[""], ended["test_host_has_rebooted[node-a]"]) == ("1", "failed")


def test_after_reboot_without_a_baseline_is_refused(folder: Path) -> None:
    """Nobody knows the boot before."""
    ended = run_pytest(folder, "--gpu-host=replay:after.json", "--gpu-after-reboot")
    assert ended.returncode == 4
    assert "--gpu-after-reboot needs --gpu-baseline" in ended.stderr + ended.stdout


def test_no_traceback_without_a_baseline(folder: Path) -> None:
    """The baseline's items skip, and say how to have them judged."""
    ended = run_pytest(
        folder, "--gpu-host=replay:after.json", "--gpu-recording=none", "-q", "-rs", "-k", "test_baseline"
    )
    assert ended.returncode == 6
    assert "name an earlier recording" in ended.stdout


UNKNOWN = "import pytest_gpuinfra as g\ndef test_a(gpu_kernel_release):\n    assert gpu_kernel_release\n"
UNREAD = "def test_b(gpu_kernel_release):\n    raise g.FactUnavailable('x', 'no permission')\n"


@pytest.mark.parametrize(("worth", "status"), [("error", 6), ("fail", 1), ("allow", 0)])
def test_unknown_is_worth_what_is_said(folder: Path, worth: str, status: int) -> None:
    """6 by default; 1 and 0 where somebody asks for it."""
    (folder / "test_own.py").write_text(UNKNOWN + UNREAD)
    arguments = ("--gpu-host=replay:after.json", "--gpu-recording=none", f"--gpu-unknown={worth}", "test_own.py")
    ended = run_pytest(folder, *arguments)
    assert ended.returncode == status, ended.stdout
    if worth == "allow":
        assert "nothing wrong seen, not all was" in ended.stdout


def test_nothing_observed_is_never_allowed(folder: Path) -> None:
    """A host of which nothing at all was seen is no success, whatever was allowed; nor is a failure."""
    (folder / "test_own.py").write_text(f"import pytest_gpuinfra as g\n{UNREAD}")
    arguments = ("--gpu-host=replay:after.json", "--gpu-recording=none", "--gpu-unknown=allow", "test_own.py")
    assert run_pytest(folder, *arguments).returncode == 6


class _Connection:
    """A connection that is never used."""

    def close(self) -> None:
        """Do nothing."""


def waited(monkeypatch: pytest.MonkeyPatch, captures: list[Capture], **settings: Any) -> tuple[Capture, int]:
    """Capture a host that answers so, one after another; gives the last answer and how often it was asked."""
    answers: Iterator[Capture] = iter(captures)
    asked: list[int] = []

    def take(*_: object, **__: object) -> Capture:
        asked.append(1)
        return next(answers)

    monkeypatch.setattr("pytest_gpuinfra.run.capture_host", take)
    monkeypatch.setattr("pytest_gpuinfra.run._RETRY_S", 0.01)
    spec = parse_inventory({"hosts": {"node-a": {}}}, "x").hosts["node-a"]
    run = Run(Settings(**settings), {"node-a": SelectedHost("node-a", "ssh", "node-a", spec)})
    run.baseline = read_recording(REFERENCE)
    monkeypatch.setattr(run, "connect", lambda host: _Connection())
    run.capture_all(lambda host, left: None)
    return run.hosts["node-a"].capture, len(asked)


def test_wait_covers_a_host_that_comes_back(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Not reached, still the old boot, then the new one; without waiting it is asked once."""
    lost = Capture("node-a", "ssh", (), {}, ("UnreachableError", "node-a: refused", ""))
    old, new = (read_recording(folder / f"{name}.json").hosts["node-a"].capture for name in ("before", "after"))
    captures = [lost, old, lost, new]
    assert waited(monkeypatch, captures, wait_s=5.0, after_reboot=True) == (new, 4)
    assert waited(monkeypatch, [lost, old], wait_s=5.0) == (old, 2)
    assert waited(monkeypatch, [lost]) == (lost, 1)


def test_wait_is_bounded(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A host that does not reboot is given up; the check of the boot id tells."""
    old = read_recording(folder / "before.json").hosts["node-a"].capture
    last, asked = waited(monkeypatch, [old] * 1000, wait_s=0.1, after_reboot=True)
    assert last == old
    assert 1 < asked < 50


@pytest.mark.parametrize(("file", "alias"), [(REFERENCE, "node-a"), (TWO_GPUS, "h200")])
def test_first_inventory_is_true_on_its_host(tmp_path: Path, file: Path, alias: str) -> None:
    """Written from a recording, read without a fault, and nothing of it fails there."""
    recording = read_recording(file)
    write_recording(tmp_path / "good.json", Recording(recording.hosts))
    ended = CliRunner().invoke(
        main, ["init", f"--gpu-host=replay:{tmp_path / 'good.json'}", "-o", str(tmp_path / "gpuinfra.toml")]
    )
    assert ended.exit_code == 0, ended.output
    expect = read_inventory(tmp_path / "gpuinfra.toml").hosts[alias].expect
    assert expect.devices
    judged_by = run_pytest(
        tmp_path,
        "--gpu-host=replay:good.json",
        "--gpu-recording=none",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "not iommu_fault and not delivers_every_byte and not torch",
    )
    assert judged_by.returncode == 0, judged_by.stdout[-3000:]
    again = CliRunner().invoke(main, ["init", "--gpu-host=local", "-o", str(tmp_path / "gpuinfra.toml")])
    assert again.exit_code == 2
    assert "exists" in again.output


def test_first_inventory_finds_what_changes(folder: Path) -> None:
    """The host after the change fails on what was written down before it."""
    CliRunner().invoke(
        main, ["init", f"--gpu-host=replay:{folder / 'before.json'}", "-o", str(folder / "gpuinfra.toml")]
    )
    ended = run_pytest(folder, "--gpu-host=replay:after.json", "--gpu-recording=none", "-q", "-k", "command_line")
    assert ended.returncode == 1
    assert "iommu=pt" in ended.stdout
