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
from pytest_gpuinfra.connection.container import KINDS
from pytest_gpuinfra.host.capture import requests_of
from pytest_gpuinfra.inventory.inventory import parse_inventory
from tests.plugin.conftest import run_pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "reports/README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(file.read_text() for file in DOCUMENTS)


def blocks(language: str) -> list[str]:
    """Give the blocks of one language in docs/ci.md."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs/ci.md").read_text(), re.DOTALL)


def test_every_option_of_pytest_is_documented_and_exists(tmp_path: Path) -> None:
    """README's table has each option; no document names another one."""
    known = set(re.findall(r"^  (--gpu-[a-z-]+)", run_pytest(tmp_path, "--help").stdout, re.MULTILINE))
    table = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `--gpu-")]
    assert known - set(re.findall(r"`(--gpu-[a-z-]+)", "\n".join(table))) == set()
    assert set(re.findall(r"--gpu-[a-z]+(?:-[a-z]+)*", TEXT)) - known == set()


def test_every_command_is_documented_and_exists() -> None:
    """So is each of its options; no document names a command that there is not."""
    code = "\n".join(re.findall(r"`[^`\n]+`|^    .*$|^[a-z$].*$", TEXT, re.MULTILINE))
    named = set(re.findall(r"(?:^|[`\s])gpuinfra ([a-z]+)\b", code, re.MULTILINE))
    assert named >= set(main.commands)
    assert [name for name in sorted(named) if name not in main.commands] == []
    for command in sorted(main.commands):
        shown = CliRunner().invoke(main, [command, "--help"])
        assert shown.exit_code == 0
        options = set(re.findall(r"(--[a-z][a-z-]+)", shown.output)) - {"--help"}
        assert {option for option in options if option not in TEXT} == set(), command


def test_every_finding_of_the_diagnosis_is_documented() -> None:
    """By its key; none is told that there is not."""
    code = "".join(file.read_text() for file in (ROOT / "pytest_gpuinfra/diagnosis").glob("*.py"))
    keys = {key for line in re.findall(r"\bkey=(.*),$", code, re.MULTILINE) for key in re.findall(r'"([a-z-]+)"', line)}
    keys.discard("possible")  # a condition, not a key
    told = set(re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs/diagnosis.md").read_text(), re.MULTILINE))
    assert told == keys
    assert len(keys) > 20


def test_every_command_of_a_passive_run_is_told() -> None:
    """docs/levels.md names what is run on a host, whatever its inventory asks for and whatever its container is."""
    expect = {
        "units": {"a.service": "active"},
        "module_parameters": {"a.b": "1"},
        "files_absent": ["/a"],
        "devices": [{"pci": ["01:00.0"]}],
        "container": {"devices": ["01:00.0"], "mounted": ["/srv"], "disk_free_gib": {"/": 1.0}},
    }
    told = (ROOT / "docs/levels.md").read_text()
    run: set[str] = set()
    for kind in KINDS:
        spec = {"container": f"{kind}:101", "service": "serve", "expect": expect}
        for request in requests_of(parse_inventory({"hosts": {"h": spec}}, "x").hosts["h"]):
            for inner in (request, *request.get("requests", ())):
                run |= {item["argv"][0] for item in inner.get("items", ()) if item["kind"] == "command"}
    assert {"nvidia-smi", "systemctl"} < run
    assert {name for name in run if name not in told} == set()


def test_documents_link_to_what_exists() -> None:
    """Files and headings of this repository."""
    for file in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", file.read_text()):
            assert (file.parent / target).exists(), f"{file.name}: {target}"


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
