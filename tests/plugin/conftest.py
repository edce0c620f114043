"""Set-up of the tests that run the plugin: inner pytest sessions on made recordings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.recorded.reference.compose import HERE as REFERENCE

__all__ = ["REFERENCE", "STRICT", "HostOutcomes", "Judged", "judge_recording", "run_pytest", "strict_environment"]


@dataclass(frozen=True)
class HostOutcomes:
    """
    How the items of one host ended.

    Attributes:
        outcomes: "passed", "failed", "error" or "skipped" by "test_name[target]", the alias left out.
        messages: What pytest showed of each.
    """

    outcomes: Mapping[str, str]
    messages: Mapping[str, str]

    def ended(self, *kinds: str) -> Sequence[str]:
        """Give the items that ended in one of these ways, sorted."""
        return sorted(name for name, outcome in self.outcomes.items() if outcome in kinds)


@dataclass(frozen=True)
class Judged:
    """
    A finished inner run.

    Attributes:
        recording: What it wrote down.
        exit_status: Its exit status.
        output: Its terminal output.
    """

    recording: Mapping[str, object]
    exit_status: int
    output: str

    def of_host(self, alias: str) -> HostOutcomes:
        """Give what became of one host."""
        results = [result for result in self.recording["results"] if result["host"] == alias]  # type: ignore[attr-defined]
        names = [result["id"].rpartition("::")[2] for result in results]
        names = [name.replace(f"[{alias}-", "[").replace(f"[{alias}]", "[]") for name in names]
        return HostOutcomes(
            {name: result["outcome"] for name, result in zip(names, results, strict=True)},
            {name: result["message"] for name, result in zip(names, results, strict=True)},
        )


STRICT = (
    "-Werror::ResourceWarning",
    "-Werror::pytest.PytestUnraisableExceptionWarning",
    "-Werror::pytest.PytestUnhandledThreadExceptionWarning",
)
"""Options for an inner pytest: whatever is not closed, and whatever a thread raises, fails an item or the run."""


def strict_environment() -> dict[str, str]:
    """Give the environment for an inner pytest, in which nothing may be left for the interpreter to close."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**kept, "PYTHONWARNINGS": "error::ResourceWarning"}


def run_pytest(directory: Path, *arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run pytest with our plugin in a directory, as a user does; nothing of ours may be left open, here or there."""
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *STRICT, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=strict_environment(),
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert "ResourceWarning" not in ended.stdout + ended.stderr, ended.stdout + ended.stderr
    return ended


def judge_recording(directory: Path, recording: str, *arguments: str, timeout_s: float = 300) -> Judged:
    """Replay a recording in a directory by our own suites."""
    ended = run_pytest(
        directory,
        f"--gpu-host=replay:{recording}",
        *("--gpu-recording=judged.json", "-q", "-p", "no:cacheprovider"),
        *arguments,
        timeout_s=timeout_s,
    )
    file = directory / "judged.json"
    assert file.exists(), ended.stdout + ended.stderr
    return Judged(json.loads(file.read_text()), ended.returncode, ended.stdout + ended.stderr)
