"""What the net replays: the committed recordings, and those that the tests make while they run."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "recorded"
MAKERS = (
    *("test_diagnosis.py", "test_endings.py", "test_endpoint.py", "test_gpu.py", "test_host_collectives.py"),
    *("test_participation.py", "test_path_safety.py", "test_reference.py", "test_reference_service.py"),
)


@dataclass(frozen=True)
class Replay:
    """
    One run of pytest over a recording.

    Attributes:
        name: What tells it from the others, in the same words before and after.
        files: Contents by name of the file in the run's folder: "hosts.json" is replayed, "baseline.json" a baseline.
        folders: Folders to copy beside them.
        arguments: More arguments for pytest.
    """

    name: str
    files: dict[str, str]
    folders: Sequence[Path] = ()
    arguments: Sequence[str] = ()


def committed() -> Iterator[Replay]:
    """Give the recordings of this repository, the reference host also by its inventory, and two GPUs by each run."""
    for file in sorted(RECORDED.glob("*/*.json")):
        if is_recording(file.read_text()):
            yield Replay(str(file.relative_to(RECORDED)), {"hosts.json": file.read_text()})
    reference = RECORDED / "reference"
    yield Replay(
        "reference, with its inventory",
        {
            "hosts.json": (reference / "recording.json").read_text(),
            "gpuinfra.toml": (reference / "gpuinfra.toml").read_text(),
        },
        [reference / "deploy"],
    )
    two = json.loads((RECORDED / "h200" / "two-gpus.json").read_text())
    for file in sorted((RECORDED / "gpu-programs").glob("*.jsonl")):
        gathered: dict[str, Any] = json.loads(json.dumps(two["hosts"]["h200"]["gathered"]["gpu"]))
        program = "torch" if file.stem.endswith("torch") else "cuda"
        gathered[program] |= {"lines": file.read_text().splitlines(), "stand_in_allowed": True}
        host = {**two["hosts"]["h200"], "gathered": {"gpu": gathered}}
        yield Replay(f"gpu-programs/{file.name}", {"hosts.json": json.dumps({**two, "hosts": {"h200": host}})})


def made(directory: Path) -> Iterator[Replay]:
    """Give what `keep` has kept."""
    for folder in sorted(directory.iterdir()):
        files = {file.name: file.read_text() for file in sorted(folder.iterdir())}
        yield Replay(folder.name, files, arguments=["--gpu-baseline=baseline.json"] if "baseline.json" in files else [])


def is_recording(text: str) -> bool:
    """Tell whether a file is a recording of hosts."""
    try:
        document = json.loads(text)
    except ValueError:
        return False
    return isinstance(document, dict) and {"format", "version", "hosts", "order"} <= document.keys()


def keep(directory: Path, tests: Sequence[str]) -> int:
    """
    Run tests, and keep the recordings that they leave, with the inventories beside them.

    A recording whose hosts are all in another one is left out. Gives the number of kept ones.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    chosen = tests or [str(ROOT / "tests" / "plugin" / name) for name in MAKERS]
    with TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "pytest", *chosen, f"--basetemp={temporary}/t", "-q", "-p", "no:cacheprovider"]
        subprocess.run([*command, "-o", "tmp_path_retention_policy=all"], cwd=ROOT, check=True)
        return keep_from(Path(temporary) / "t", directory)


def keep_from(temporary: Path, directory: Path) -> int:
    """Keep the recordings of pytest's temporary folders: of each folder those that nobody has judged, if any."""
    seen = {host for replay in committed() for host in _hosts(replay.files["hosts.json"])}
    files = {file: json.loads(file.read_text()) for file in temporary.rglob("*.json") if _is_input(file)}
    inputs = {file.parent for file, document in files.items() if not document["results"]}
    kept = 0
    for file in sorted(files, key=lambda file: (-file.stat().st_size, str(file))):
        hosts = _hosts(file.read_text())
        if hosts <= seen or (files[file]["results"] and file.parent in inputs):
            continue
        seen |= hosts
        kept += 1
        folder = directory / f"{kept:02d}-{file.parent.name}-{file.stem}"
        folder.mkdir()
        shutil.copy(file, folder / "hosts.json")
        for inventory in file.parent.glob("gpuinfra.toml"):
            shutil.copy(inventory, folder)
        if file.name == "after.json" and (before := file.with_name("before.json")).exists():
            shutil.copy(before, folder / "baseline.json")
    return kept


def _is_input(file: Path) -> bool:
    return file.is_file() and not any(parent.is_symlink() for parent in file.parents) and is_recording(file.read_text())


def _hosts(text: str) -> set[str]:
    """Give what tells hosts of a recording from others: name, expectation, readings."""
    hosts = json.loads(text)["hosts"].items()
    return {hashlib.sha256(json.dumps([alias, host], sort_keys=True).encode()).hexdigest() for alias, host in hosts}
