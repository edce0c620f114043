"""
Many items: 1,000 hosts with about 150 items each, from the start to the first result, with and without workers.

    .venv/bin/python -m benchmarks.items [--hosts 1000] [--workers 4] [--shards 8] [--whole]

The hosts are one recording's, under a thousand aliases, replayed; what is measured is collection and scheduling.
Beside it stand as many empty items of pytest's own, by two stacked parametrisations and xdist's own scheduler.
A run is stopped some results after the first, unless --whole is given.
Memory is the proportional set size of pytest and all its workers at its highest.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.fleet import measure
from pytest_gpuinfra.record.recording import RecordedHost, Recording, read_recording, write_recording

ROOT = Path(__file__).parents[1]
SUITES = ("host", "serving/test_service_drift.py", "serving/test_service_unit.py", "serving/test_endpoint_answers.py")
NOTES = """
import json, os, pathlib, time, pytest
STARTED = time.monotonic()
NOTE = pathlib.Path(os.environ["BENCH_NOTE"])
STOP_AFTER = int(os.environ["BENCH_STOP_AFTER"])
seen = {"first_s": None, "results": 0, "collected": 0}
def pytest_runtest_logreport(report):
    if os.environ.get("PYTEST_XDIST_WORKER") or report.when != "setup":
        return
    if seen["first_s"] is None:
        seen["first_s"] = time.monotonic() - STARTED
    seen["results"] += 1
    seen["last_s"] = time.monotonic() - STARTED
    if seen["results"] == STOP_AFTER:
        NOTE.write_text(json.dumps(seen))
        pytest.exit("seen enough", returncode=0)
def pytest_sessionfinish(session):
    if not os.environ.get("PYTEST_XDIST_WORKER"):
        seen["collected"] = session.testscollected
        NOTE.write_text(json.dumps(seen))
"""
EMPTY = """
import pytest
@pytest.mark.parametrize("check", range({items}))
@pytest.mark.parametrize("host", [f"node-{{n:04d}}" for n in range({hosts})])
def test_nothing(host, check):
    pass
"""


def make_recording(file: Path, count: int) -> None:
    """Write the reference host's recording under many aliases, without its PCI configuration spaces (130 KB each)."""
    recorded = read_recording(ROOT / "tests/recorded/reference/recording.json").hosts["node-a"]
    answers = {
        request: {
            entry: {name: reading for name, reading in node.items() if name != "config"} for entry, node in tree.items()
        }
        for request, tree in recorded.capture.answers.items()
    }
    capture = dataclasses.replace(recorded.capture, answers=answers)
    write_recording(
        file, Recording({f"node-{number:04d}": RecordedHost(recorded.spec, capture) for number in range(1, count + 1)})
    )


@click.command()
@click.option("--hosts", "count", type=int, default=1000, show_default=True)
@click.option("--workers", type=int, default=4, show_default=True)
@click.option("--shards", type=int, default=8, show_default=True)
@click.option("--results", type=int, default=2000, show_default=True, help="results after which a run is stopped")
@click.option("--whole", is_flag=True, help="run to the end, and show items a second")
def main(count: int, workers: int, shards: int, results: int, whole: bool) -> None:
    """Measure, and print the table."""
    table = Table(title=f"{count} hosts; seconds from pytest's start")
    for column in ("what", "items", "first result s", "wall s", "items a second", "CPU s", "PSS of the tree, MB"):
        table.add_column(column, justify="left" if column == "what" else "right")
    with tempfile.TemporaryDirectory(prefix="gi-", dir="/tmp") as name:
        work = Path(name)
        make_recording(work / "hosts.json", count)
        (work / "bench_notes.py").write_text(NOTES)
        (work / "test_empty.py").write_text(EMPTY.format(items=150, hosts=count))
        stop_after = 0 if whole else results
        ours = [
            *("--gpu-host=replay:hosts.json", "--gpu-recording=none", "--gpu-level=passive"),
            *(str(ROOT / "suites" / suite) for suite in SUITES),
        ]
        ways = {
            "empty items of pytest's own": ["test_empty.py"],
            "ours": ours,
            f"empty items, -n {workers}": ["test_empty.py", "-n", str(workers)],
            f"ours, -n {workers}": [*ours, "-n", str(workers)],
            f"ours, share 1 of {shards}": [*ours, f"--gpu-shard=1/{shards}"],
        }
        for what, arguments in ways.items():
            table.add_row(what, *run_one(work, arguments, stop_after))
    Console(width=120).print(table)


def run_one(work: Path, arguments: Sequence[str], stop_after: int) -> tuple[str, ...]:
    """Run one way; gives the cells of its row."""
    note = work / "note.json"
    seen = measure(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "bench_notes", *arguments],
        work,
        {"BENCH_NOTE": str(note), "BENCH_STOP_AFTER": str(stop_after), "PYTHONPATH": str(work)},
        statuses=(0, 1, 2, 6),
    )
    noted = json.loads(note.read_text())
    rate = noted["results"] / (noted["last_s"] - noted["first_s"]) if noted["results"] > 1 else 0.0
    return (
        str(noted["collected"] or "-"),
        f"{noted['first_s']:.1f}",
        f"{seen.wall_s:.1f}",
        f"{rate:.0f}",
        f"{seen.cpu_s:.1f}",
        f"{seen.peak_mb:.0f}",
    )


if __name__ == "__main__":
    main()
