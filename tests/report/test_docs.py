"""The documents about recordings, CI and reports: every option exists, and what can be run is run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pytest_gpuinfra.cli import main
from tests.plugin.conftest import run_pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / name for name in ("README.md", "docs/ci.md", "docs/recording.md", "reports/README.md")]


def blocks(language: str) -> list[str]:
    """Give the blocks of one language in docs/ci.md."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs/ci.md").read_text(), re.DOTALL)


def test_every_option_exists(tmp_path: Path) -> None:
    """Of pytest, and of each command of gpuinfra that is named."""
    known = run_pytest(tmp_path, "--help").stdout
    text = "\n".join(file.read_text() for file in DOCUMENTS)
    options = set(re.findall(r"--gpu-[a-z-]+", text))
    assert len(options) > 12
    assert [option for option in sorted(options) if option not in known] == []
    commands = set(re.findall(r"gpuinfra ([a-z]+)[ `]", text)) & {"init", "compare", "report", "schema", "check"}
    assert commands == {"init", "compare", "report", "schema", "check"}
    for command in commands:
        assert CliRunner().invoke(main, [command, "--help"]).exit_code == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_units_verify(tmp_path: Path) -> None:
    """systemd has nothing to say against the service and its timer."""
    service, timer = blocks("ini")
    (tmp_path / "gpuinfra.service").write_text(service.replace("/opt/gpuinfra/bin/pytest", sys.executable))
    (tmp_path / "gpuinfra.timer").write_text(timer)
    ended = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "gpuinfra.service"), str(tmp_path / "gpuinfra.timer")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_command_of_the_recipe_writes_what_the_recipe_keeps(tmp_path: Path) -> None:
    """The line that GitLab runs, on this machine: recording, summary, JUnit and Allure are there."""
    (line,) = re.findall(r"- (pytest .*?)\n  artifacts", blocks("yaml")[1], re.DOTALL)
    (tmp_path / "gpuinfra.toml").write_text('[hosts.here]\naddress = "local"\nendpoint = "http://localhost:1"\n')
    arguments = [word for word in shlex.split(line)[1:] if word not in ("-n", "auto")]
    ended = run_pytest(tmp_path, *arguments, "-n", "1", "-q", "-p", "no:cacheprovider", "-k", "boot or machine_check")
    assert ended.returncode in (0, 1, 6), ended.stdout + ended.stderr
    for name in ("recording.json", "summary.html", "junit.xml", "allure-results/environment.properties"):
        assert (tmp_path / "reports" / name).is_file(), name
    assert list((tmp_path / "reports/allure-results").glob("*-result.json"))
