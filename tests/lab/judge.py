"""Judge a lab host as a user does: pytest in a directory of its own, over ssh, by an inventory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.plugin.conftest import HostOutcomes, Judged

from .image import HERE
from .keep import Command

SUITES = HERE.parents[1] / "suites"
AREAS = ("host",)
"""Parts of the suites that the lab's hosts can answer."""


class LabHost(Protocol):
    """What `NspawnHost` and `LabVm` have in common."""

    alias: str

    @property
    def address(self) -> str: ...
    @property
    def ssh_config(self) -> Path: ...
    def shell(self, command: Command, *, stdin: str = "", check: bool = True) -> object: ...


@dataclass(frozen=True, slots=True)
class LabOutcomes:
    """
    What became of the items of one run.

    Attributes:
        outcomes: "passed", "failed", "error" or "skipped" by "test_name[target]", the alias left out.
        messages: What pytest showed of each.
        exit_status: Of pytest.
        output: Its terminal output.
    """

    outcomes: dict[str, str]
    messages: dict[str, str]
    exit_status: int
    output: str

    def ended(self, *kinds: str) -> list[str]:
        """Give the items that ended in one of these ways, sorted."""
        return sorted(name for name, outcome in self.outcomes.items() if outcome in kinds)


def write_inventory(host: LabHost, tier: str, path: Path, *, expect: str = "", user: str = "root") -> Path:
    """
    Write what is expected of a healthy host of a tier.

    Args:
        host: The host.
        tier: "nspawn" or "vm".
        path: The file to write.
        expect: More of it, lines of TOML with keys of `expect`.
        user: Who logs in.

    Returns:
        `path`.
    """
    text = (HERE / "expected" / f"{tier}.toml").read_text()
    text += f'\n[hosts.{host.alias}]\naddress = "{user}@{host.address}"\ngroup = "lab"\n'
    if expect:
        text += f"\n[hosts.{host.alias}.expect]\n{expect}\n"
    path.write_text(text)
    return path


def judge(
    host: LabHost,
    tier: str,
    directory: Path,
    *,
    expect: str = "",
    user: str = "root",
    arguments: Sequence[str] = (),
    plugins: bool = False,
) -> LabOutcomes:
    """
    Run the suites on a host.

    Args:
        host, tier, expect, user: As `write_inventory` takes them.
        directory: Where pytest runs.
        arguments: For pytest.
        plugins: Whether the plugins that happen to be installed are loaded, too; they cost more than all else.
    """
    inventory = write_inventory(host, tier, directory / "gpuinfra.toml", expect=expect, user=user)
    recording = directory / "recording.json"
    recording.unlink(missing_ok=True)
    argv = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *([] if plugins else ["-p", "pytest_gpuinfra.plugin"]),
        *(str(SUITES / area) for area in AREAS),
        f"--gpu-host={host.alias}",
        f"--gpu-inventory={inventory}",
        f"--gpu-ssh-config={host.ssh_config}",
        f"--gpu-recording={recording}",
        *arguments,
    ]
    # Compiled files of the plugin are kept, or each run would compile it anew.
    left_out = ("PYTEST_", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    if not plugins:
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    ended = subprocess.run(
        argv, cwd=directory, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert recording.exists(), ended.stdout + ended.stderr
    shown: HostOutcomes = Judged(json.loads(recording.read_text()), ended.returncode, "").of_host(host.alias)
    return LabOutcomes(dict(shown.outcomes), dict(shown.messages), ended.returncode, ended.stdout + ended.stderr)
