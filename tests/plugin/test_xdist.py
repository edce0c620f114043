"""One host on one worker, captures taken once, the same endings with and without xdist."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from pytest_gpuinfra.record.recording import RecordedHost, Recording, read_recording, write_recording
from tests.plugin.conftest import REFERENCE, run_pytest

ALIASES = ("node-a", "node", "node-a-01", "other")
"""Four hosts whose aliases are the beginnings of each other's, and of each other's items."""

WHICH_WORKER = """
import os, pathlib, pytest
@pytest.hookimpl
def pytest_runtest_logfinish(nodeid, location):
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        with open(pathlib.Path(__file__).parent / f"worker-{worker}.txt", "a") as stream:
            stream.write(nodeid + "\\n")
"""


@pytest.fixture
def four_hosts(tmp_path: Path) -> Path:
    """Give a directory with a recording of four hosts and a plugin that notes who ran what."""
    recorded = read_recording(REFERENCE / "recording.json").hosts["node-a"]
    hosts = {alias: RecordedHost(recorded.spec, recorded.capture) for alias in ALIASES}
    write_recording(tmp_path / "hosts.json", Recording(hosts))
    (tmp_path / "which_worker.py").write_text(WHICH_WORKER)
    return tmp_path


def results(directory: Path, name: str, *arguments: str) -> dict[str, tuple[str, str]]:
    """Run the acceptance suite on the recording; gives (host, outcome) by node id."""
    ended = run_pytest(
        directory,
        "--gpu-host=replay:hosts.json",
        f"--gpu-recording={name}",
        *("-q", "-p", "no:cacheprovider", "-p", "which_worker"),
        *arguments,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    document = json.loads((directory / name).read_text())
    return {result["id"]: (result["host"], result["outcome"]) for result in document["results"]}


@pytest.mark.parametrize("dist", ["load", "loadgroup"])
def test_each_host_runs_on_one_worker(four_hosts: Path, dist: str) -> None:
    """With -n 4 and whatever --dist says, all items of a host run on the same worker, and none is lost."""
    ended = results(four_hosts, "four.json", "-n", "4", f"--dist={dist}")
    assert len(ended) > 400
    workers = defaultdict(set)
    for file in four_hosts.glob("worker-*.txt"):
        for nodeid in file.read_text().splitlines():
            workers[ended[nodeid][0]].add(file.name)
    assert set(workers) == set(ALIASES)
    assert all(len(of_host) == 1 for of_host in workers.values()), workers


def test_endings_are_the_same_with_xdist_and_without(four_hosts: Path) -> None:
    """Item by item; and the plugin works with xdist blocked."""
    alone = results(four_hosts, "alone.json", "-p", "no:xdist")
    assert results(four_hosts, "auto.json", "-n", "auto") == alone


def test_auto_takes_one_worker_a_host(four_hosts: Path) -> None:
    """`-n auto` counts hosts, not this machine's cores."""
    results(four_hosts, "auto.json", "-n", "auto")
    assert len(list(four_hosts.glob("worker-*.txt"))) == len(ALIASES)


def test_local_host_is_captured_once_by_the_controller(tmp_path: Path) -> None:
    """Workers take the captures over; the host sees one round trip."""
    ended = run_pytest(tmp_path, "--gpu-host=local", "-n", "2", "-p", "no:cacheprovider", "-k", "boot or units")
    assert ended.returncode in (0, 6), ended.stdout
    assert ended.stdout.count("1 round trip:") == 1
    document = json.loads(next((tmp_path / "reports" / "recordings").iterdir()).read_text())
    assert document["hosts"]["local"]["capture"]["round_trips"] == 1
