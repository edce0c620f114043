"""Without --gpu-host the plugin is inert in anybody's project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.plugin.conftest import run_pytest

HEAVY = ("pydantic", "rich", "httpx", "allure", "torch", "click")


def test_nothing_heavy_is_imported_at_load() -> None:
    """Loading the plugin and its fixtures imports none of the packages that cost."""
    code = (
        "import sys, pytest; before = set(sys.modules)\n"
        "import pytest_gpuinfra, pytest_gpuinfra.plugin, pytest_gpuinfra.fixtures.host, pytest_gpuinfra.hooks\n"
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not [name for name in HEAVY if repr(name) in loaded], loaded


def test_other_peoples_run_is_unchanged(tmp_path: Path) -> None:
    """A project without hosts sees no header line, no item, no file of ours."""
    (tmp_path / "test_theirs.py").write_text("def test_theirs():\n    assert True\n")
    ended = run_pytest(tmp_path, "-p", "no:cacheprovider")
    assert ended.returncode == 0
    assert "gpuinfra:" not in ended.stdout
    assert "collected 1 item" in ended.stdout
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["test_theirs.py"]


def test_our_fixtures_skip_without_a_host(tmp_path: Path) -> None:
    """A user's test on our fixtures skips in a run without hosts, and says how to name one."""
    (tmp_path / "test_own.py").write_text("def test_it(gpu_device, gpu_pci_function):\n    assert False\n")
    ended = run_pytest(tmp_path, "-rs")
    assert ended.returncode == 0
    assert "name one with --gpu-host" in ended.stdout


def test_options_are_explained(tmp_path: Path) -> None:
    """--help teaches every option."""
    ended = run_pytest(tmp_path, "--help")
    text = " ".join(ended.stdout.split())
    for option in ("--gpu-host", "--gpu-inventory", "--gpu-level", "--gpu-sudo", "--gpu-recording", "--gpu-deadline"):
        assert option in text
    assert "replay:FILE for a recording" in text


def test_default_suites_run_in_an_empty_directory(tmp_path: Path) -> None:
    """With a host and no path, the whole acceptance suite runs wherever pytest is started."""
    ended = run_pytest(tmp_path, "--gpu-host=local", "--collect-only", "-q")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "host/test_kernel_log.py::test_no_machine_check_and_no_memory_kill[local]" in ended.stdout


def test_a_path_or_testpaths_of_the_project_win(tmp_path: Path) -> None:
    """Users' own tests on our fixtures stay theirs."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "test_own.py").write_text("def test_mine(gpu_kernel_release):\n    assert gpu_kernel_release\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = own\n")
    ended = run_pytest(tmp_path, "--gpu-host=local", "--gpu-recording=none", "-q", "--collect-only")
    assert "own/test_own.py::test_mine[local]" in ended.stdout
    assert "test_kernel_log" not in ended.stdout
