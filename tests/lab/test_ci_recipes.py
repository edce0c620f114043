"""The recipes of docs/ci.md, as they stand there: each shell step is run, and the unit judges a host that boots."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from .image import HERE
from .judge import SUITES, write_inventory
from .nspawn import NspawnHost

pytestmark = pytest.mark.lab
ROOT = HERE.parents[1]
TEXT = (ROOT / "docs/ci.md").read_text()
GITHUB, GITLAB, CHANGE = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL))
JENKINS = re.findall(r"```groovy\n(.*?)```", TEXT, re.DOTALL)[0]
STEPS = GITHUB["jobs"]["judge"]["steps"]
CHANGE_STEPS = CHANGE["jobs"]["change"]["steps"]


@pytest.fixture
def ci(lab_host: NspawnHost, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """
    Give a checkout with an inventory, and the environment of a CI's job.

    Stand-ins: `pip` and `apt-get`, since what they install is installed; `ssh` reads keys from the job's HOME, which
    OpenSSH itself looks for in the user's directory only.
    """
    checkout, home, tools = tmp_path / "checkout", tmp_path / "home", tmp_path / "bin"
    for folder in (checkout, home, tools):
        folder.mkdir()
    write_inventory(lab_host, "nspawn", checkout / "gpuinfra.toml")
    # The lab's host has no real GPUs for the other suites.
    (checkout / "pytest.ini").write_text(f"[pytest]\ntestpaths = {SUITES / 'host'}\n")
    write_scripts(
        tools,
        {
            "pip": "exit 0",
            "apt-get": "exit 0",
            "ssh": '[ ! -f "$HOME/.ssh/id_ed25519" ] || set -- -i "$HOME/.ssh/id_ed25519" "$@"\n'
            'exec /usr/bin/ssh -F none -o UserKnownHostsFile="$HOME/.ssh/known_hosts" "$@"',
            "pytest": f'exec {sys.executable} -m pytest -p no:cacheprovider "$@"',
        },
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SSH_"))}
    return checkout, {**kept, "HOME": str(home), "PATH": f"{tools}:{os.environ['PATH']}"}


def write_scripts(folder: Path, scripts: Mapping[str, str]) -> None:
    """Write commands."""
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


def run(script: str, checkout: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a step as a CI does: bash, the first failing command ends it."""
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=checkout, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=180,
    )  # fmt: skip


def scripts() -> dict[str, str]:
    """Give every shell text of the recipes."""
    found = {
        f"github {step['run'].split()[0]} {number}": step["run"] for number, step in enumerate(STEPS) if "run" in step
    }
    found |= {
        f"github change {step.get('name', number)}": step["run"]
        for number, step in enumerate(CHANGE_STEPS)
        if "run" in step
    }
    found |= {f"gitlab {number}": line for number, line in enumerate(GITLAB["gpu-hosts"]["script"])}
    for number, (long, short) in enumerate(re.findall(r"'''(.*?)'''|sh '([^'\n]*)'", JENKINS, re.DOTALL)):
        found[f"jenkins {number}"] = long or short
    return found


@pytest.mark.parametrize("name", scripts())
def test_shell_text_is_shell(name: str) -> None:
    """bash reads it; the CI's own placeholders stand for words."""
    text = re.sub(r"\$\{\{.*?\}\}", "word", scripts()[name])
    ended = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def check_artefacts(checkout: Path, summary: str) -> None:
    """What the recipe keeps is there, and tells that nothing is wrong in the suite that it ran."""
    reports = checkout / "reports"
    (alias,) = json.loads((reports / "recording.json").read_text())["order"]
    assert alias == "lab-a"
    assert "checks (suites/host), nothing wrong" in (reports / summary).read_text()
    assert (reports / "junit.xml").stat().st_size > 1000
    assert len(list((reports / "allure-results").glob("*-result.json"))) > 50


def secrets_of(host: NspawnHost) -> dict[str, str]:
    """Give what the repository's settings hold, by the names that the recipes use."""
    return {
        "secrets.GPU_SSH_KEY": (host.folder / "client_key").read_text().rstrip("\n"),
        "vars.GPU_KNOWN_HOSTS": (host.folder / "known_hosts").read_text().rstrip("\n"),
    }


def filled(step: Mapping[str, Any], host: NspawnHost) -> str:
    """Give a step's shell text with the CI's placeholders filled."""
    secrets = secrets_of(host)
    return re.sub(r"\$\{\{ *(\S+) *\}\}", lambda match: secrets[match[1]], step.get("run", ""))


def test_github_actions_judges_the_host(ci: tuple[Path, dict[str, str]], lab_host: NspawnHost, tmp_path: Path) -> None:
    """Its steps one after the other, with the host's key as the secret."""
    checkout, environment = ci
    environment |= {"GITHUB_STEP_SUMMARY": str(tmp_path / "shown.md"), "GITHUB_ACTIONS": "true"}
    for step in STEPS:
        ended = run(filled(step, lab_host), checkout, environment)
        assert ended.returncode == 0, f"{step}: {ended.stdout}{ended.stderr}"
    check_artefacts(checkout, "summary.md")
    assert "checks (suites/host), nothing wrong" in (tmp_path / "shown.md").read_text()
    executor = json.loads((checkout / "reports/allure-results/executor.json").read_text())
    assert executor["type"] == "github"


@pytest.mark.parametrize(
    ("change", "statuses", "words"),
    [
        ("true", {"before": 0, "change": 0, "after": 0}, "1 expected"),
        ("systemctl disable -q gpu-persistence", {"before": 0, "change": 0, "after": 1}, "active -&gt; inactive"),
        (None, {"before": 1}, ""),
    ],
    ids=["harmless", "loses a unit at the reboot", "host that is not fit"],
)
def test_change_is_played_before_and_after_a_reboot(
    change: str | None,
    statuses: dict[str, int],
    words: str,
    ci: tuple[Path, dict[str, str]],
    lab_host: NspawnHost,
    tmp_path: Path,
) -> None:
    """Baseline, change, reboot, verdict; a host that is not fit is neither changed nor rebooted."""
    checkout, environment = ci
    before = lab_host.boot_id
    if change is None:
        lab_host.shell("systemctl stop gpu-persistence")
    environment |= {"GITHUB_STEP_SUMMARY": str(tmp_path / "shown.md"), "HOST": "lab-a"}
    environment["ALLOW"] = CHANGE[True]["workflow_dispatch"]["inputs"]["allow"][
        "default"
    ]  # YAML 1.1 reads "on" as true
    (checkout / "deploy").mkdir()
    write_scripts(checkout / "deploy", {"change.sh": f"ssh root@{lab_host.address} {change or 'true'}"})
    ended: dict[str, int] = {}
    for step in CHANGE_STEPS:
        name = step.get("name", "")
        if any(ended.values()) and step.get("if") != "always()":
            continue
        done = run(filled(step, lab_host), checkout, environment)
        if name in ("before", "change", "after"):
            ended[name] = done.returncode
        elif "after" in ended:
            assert done.returncode == 0, done.stdout + done.stderr
    lab_host._bound.clear()
    assert ended == statuses
    assert (lab_host.boot_id == before) is (change is None)
    if change is not None:
        assert words in (tmp_path / "shown.md").read_text()


def test_gitlab_ci_judges_the_host(ci: tuple[Path, dict[str, str]], lab_host: NspawnHost) -> None:
    """Its script as one, with an agent that holds the key."""
    checkout, environment = ci
    (checkout / "known").write_bytes((lab_host.folder / "known_hosts").read_bytes())
    environment |= {"GPU_SSH_KEY_FILE": str(lab_host.folder / "client_key"), "GPU_KNOWN_HOSTS": "known"}
    script = "trap 'ssh-agent -k >/dev/null' EXIT\n" + "\n".join(GITLAB["gpu-hosts"]["script"])
    ended = run(script, checkout, {**environment, "GITLAB_CI": "true"})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    check_artefacts(checkout, "summary.html")
    kept = GITLAB["gpu-hosts"]["artifacts"]
    assert all((checkout / path).exists() for path in [*kept["paths"], kept["reports"]["junit"]])


def test_jenkins_judges_the_host(ci: tuple[Path, dict[str, str]], lab_host: NspawnHost) -> None:
    """Its shell texts; the environment that the first one makes is this project's own."""
    checkout, environment = ci
    (checkout / ".venv").symlink_to(Path(sys.executable).parents[1])
    ssh = Path(environment["HOME"]) / ".ssh"
    ssh.mkdir()
    for name, file in (("id_ed25519", "client_key"), ("known_hosts", "known_hosts")):
        shutil.copy(lab_host.folder / file, ssh / name)
    install, judge = (text for name, text in scripts().items() if name.startswith("jenkins"))
    assert install.startswith("python -m venv .venv && ")
    ended = run(judge, checkout, {**environment, "JENKINS_URL": "https://ci.example/"})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    check_artefacts(checkout, "summary.html")


# The unit on the host itself.


def closure(names: Iterable[str], found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Give the distributions of these requirements and all that they need, by name."""
    for line in names:
        requirement = Requirement(line)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in found:
            found[requirement.name] = distribution(requirement.name)
            closure(found[requirement.name].requires or (), found)
    return found


def lay_plugin(target: Path) -> None:
    """Lay the plugin and what it needs into a folder, for the target's own Python of the same version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for found in closure(project["dependencies"], {}).values():
        for file in found.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), target / file)
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pytest_gpuinfra", target / "pytest_gpuinfra", ignore=skipped)
    shutil.copytree(ROOT / "suites", target / "pytest_gpuinfra" / "suites", ignore=skipped)
    entry = target / "pytest_gpuinfra-0.dist-info"
    entry.mkdir()
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: pytest-gpuinfra\nVersion: 0\n")
    (entry / "entry_points.txt").write_text("[pytest11]\ngpuinfra = pytest_gpuinfra.plugin\n")


def test_unit_judges_the_host_after_every_boot(lab_host: NspawnHost, tmp_path: Path) -> None:
    """The timer starts it after the boot; it writes recording and page, and its status is the verdict."""
    laid = tmp_path / "laid"
    lay_plugin(laid / "opt/gpuinfra/lib")
    (laid / "opt/gpuinfra/bin").mkdir()
    write_scripts(
        laid / "opt/gpuinfra/bin",
        {"pytest": 'PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/opt/gpuinfra/lib exec /usr/bin/python3 -m pytest "$@"'},
    )
    (laid / "etc/systemd/system").mkdir(parents=True)
    service, timer = re.findall(r"```ini\n(.*?)```", TEXT, re.DOTALL)
    (laid / "etc/systemd/system/gpuinfra.service").write_text(service)
    (laid / "etc/systemd/system/gpuinfra.timer").write_text(timer.replace("OnBootSec=2min", "OnBootSec=2s"))
    (laid / "var/lib/gpuinfra").mkdir(parents=True)
    (laid / "var/lib/gpuinfra/pytest.ini").write_text(
        "[pytest]\ntestpaths = /opt/gpuinfra/lib/pytest_gpuinfra/suites/host\n"
    )
    inventory = write_inventory(lab_host, "nspawn", laid / "etc/gpuinfra.toml")
    own = inventory.read_text().replace(f"root@{lab_host.address}", "local")
    inventory.write_text(own.replace(f"[hosts.{lab_host.alias}]", "[hosts.local]"))
    packed = subprocess.run(["tar", "-c", "-C", str(laid), "."], stdout=subprocess.PIPE, check=True).stdout
    root = f"/proc/{lab_host._find_leader()}/root"
    subprocess.run(
        ["tar", "-x", "--no-same-owner", "--no-overwrite-dir", "-C", root, "-f", "-"], input=packed, check=True
    )
    lab_host.shell("systemctl daemon-reload; systemctl enable -q gpuinfra.timer")

    boots = []
    for _ in range(2):
        lab_host.reboot()
        shown = wait_for_unit(lab_host)
        assert (shown["Result"], shown["ExecMainStatus"]) == ("success", "0"), lab_host.shell(
            "journalctl -u gpuinfra --no-pager", check=False
        ).stdout
        recording = json.loads(lab_host.shell("cat /var/lib/gpuinfra/last.json").stdout)
        boots.append(recording["hosts"]["local"]["capture"]["answers"]["boot"][""]["boot_id"]["t"].strip())
        assert boots[-1] == lab_host.boot_id
        assert {result["outcome"] for result in recording["results"]} == {"passed", "skipped"}
        assert "checks (suites/host), nothing wrong" in lab_host.shell("cat /var/lib/gpuinfra/last.html").stdout
    assert len(set(boots)) == 2

    lab_host.shell("systemctl disable -q gpu-persistence")
    lab_host.reboot()
    assert wait_for_unit(lab_host) == {"ActiveState": "failed", "ExecMainStatus": "1", "Result": "exit-code"}
    assert "gpu-persistence.service" in lab_host.shell("journalctl -b -u gpuinfra --no-pager").stdout


def wait_for_unit(host: NspawnHost) -> dict[str, Any]:
    """Wait until the unit has run in this boot, and give what systemd says of it."""
    names = "ActiveState,Result,ExecMainStatus,ExecMainExitTimestampMonotonic"
    limit = time.monotonic() + 240
    while time.monotonic() < limit:
        lines = host.shell(f"systemctl show gpuinfra.service -p {names}").stdout.splitlines()
        shown = dict(line.partition("=")[::2] for line in lines)
        if shown.pop("ExecMainExitTimestampMonotonic") != "0" and shown["ActiveState"] in ("inactive", "failed"):
            return {key: value for key, value in shown.items() if value != "inactive"}
        time.sleep(0.3)
    raise AssertionError(host.shell("systemctl status gpuinfra.service gpuinfra.timer", check=False).stdout)
