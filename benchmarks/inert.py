"""
What the plugin adds to other people's runs: `pytest --version`, and collecting 1,000 empty tests.

    .venv/bin/python -m benchmarks.inert [--repeat 7]

Each is run with the plugin and with `-p no:gpuinfra`, in turn. User and system time of the process are compared,
since wall time says more about what else the machine does.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table


def cpu_s(argv: list[str], directory: str) -> float:
    """Run a command that must succeed; gives its user and system time in seconds."""
    before = os.times()
    subprocess.run(argv, cwd=directory, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


@click.command()
@click.option("--repeat", type=int, default=7, show_default=True)
def main(repeat: int) -> None:
    """Measure, and print the table."""
    table = Table(title=f"CPU seconds, median of {repeat} (least)")
    for column in ("what", "without", "with", "added, of the least"):
        table.add_column(column, justify="left" if column == "what" else "right")
    with tempfile.TemporaryDirectory() as work:
        tests = "\n".join(f"def test_{number}(): pass" for number in range(1000))
        (Path(work) / "test_empty.py").write_text(tests)
        pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        for what, more in {
            "pytest --version": ["--version"],
            "collect 1,000 tests": ["--collect-only", "-q"],
            "run 1,000 tests": ["-q"],
        }.items():
            seconds: dict[str, list[float]] = {"without": [], "with": []}
            for _ in range(repeat):
                seconds["without"].append(cpu_s([*pytest, "-p", "no:gpuinfra", *more], work))
                seconds["with"].append(cpu_s([*pytest, *more], work))
            least = {name: min(values) for name, values in seconds.items()}
            cells = [f"{statistics.median(values):.3f} ({min(values):.3f})" for values in seconds.values()]
            added = least["with"] - least["without"]
            table.add_row(what, *cells, f"{added * 1000:+.0f} ms ({added / least['without']:+.1%})")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
