"""What runs on targets, run by the oldest Pythons that this machine has, and checked against 3.6."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpuinfra.capture import capture
from pytest_gpuinfra.on_target.bundle import packed

TARGET = Path(__file__).resolve().parents[2] / "pytest_gpuinfra" / "on_target"
CONTROLLER_SIDE = ("plan.py", "bundle.py", "regenerate.py", "__init__.py")


def interpreters() -> list[str]:
    """Give one interpreter of each minor version that is at hand, the oldest first."""
    found: dict[tuple[int, int], str] = {sys.version_info[:2]: sys.executable}
    candidates = [*Path.home().glob(".pyenv/versions/3.*/bin/python3"), Path("/usr/bin/python3")]
    candidates += [Path(path) for minor in range(6, 15) if (path := shutil.which(f"python3.{minor}"))]
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and "shims" not in candidate.parts:
            code = "import sys; print(*sys.version_info[:2])"
            said = subprocess.run([str(candidate), "-c", code], capture_output=True, text=True, check=False).stdout
            if said.strip():
                major, minor = said.split()
                found.setdefault((int(major), int(minor)), str(candidate))
    return [found[version] for version in sorted(found) if version >= (3, 6)]


@pytest.mark.parametrize("python", interpreters())
def test_probe_runs_under_each_python_at_hand(python: str) -> None:
    """The probe, under the runner, as a connection sends it."""
    plan = {"requests": [{"id": "x", "kind": "node", "items": [{"name": "f", "kind": "file", "path": "/proc/uptime"}]}]}
    program, stdin = capture._probe_source().encode(), json.dumps(plan).encode() + b"\n"
    header = {"token": "T", "argv": None, "program": True, "stdin_length": len(stdin), "stdin_open": True}
    header |= {"timeout_s": 20, "env": None}
    sent = json.dumps(header).encode() + b"\n%d\n" % len(program) + program + stdin
    with subprocess.Popen([python, "-c", packed("runner")], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(sent)
        process.stdin.flush()
        answer = process.stdout.read()
    assert answer.startswith(b"T\n")
    assert b'"answers"' in answer
    assert b'"f": {"t": "' in answer


def test_everything_that_runs_on_targets_is_python_3_6() -> None:
    """By vermin; torch_program runs in the service's Python, and is held to the same."""
    files = [str(file) for file in TARGET.rglob("*.py") if file.name not in CONTROLLER_SIDE]
    checked = subprocess.run(
        [str(Path(sys.executable).with_name("vermin")), "-t=3.6-", "--no-tips", "--violations", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
