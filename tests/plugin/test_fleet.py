"""Many hosts in one run: whole hosts on workers that know no more than their share, whatever happens to a worker."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from pytest_gpuinfra.record.recording import RecordedHost, Recording, read_recording, write_recording
from pytest_gpuinfra.session.scheduler import KNOWN_TO_ALL
from tests.plugin.conftest import REFERENCE, run_pytest

MANY = KNOWN_TO_ALL + 8

NOTES = """
import os, pathlib, pytest
HERE = pathlib.Path(__file__).parent
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "controller")
def pytest_collection_finish(session):
    if session.items:
        (HERE / f"collected-{WORKER}.txt").write_text("".join(item.nodeid + "\\n" for item in session.items))
def pytest_runtest_logfinish(nodeid, location):
    if WORKER != "alone" or not os.environ.get("PYTEST_XDIST_TESTRUNUID"):
        with open(HERE / f"ran-{WORKER}.txt", "a") as stream:
            stream.write(nodeid + "\\n")
"""
TESTS = """
import os, pathlib, signal
HERE = pathlib.Path(__file__).parent
def test_release(gpu_kernel_release):
    assert gpu_kernel_release
def test_device(gpu_device, gpu_kernel_release):
    if gpu_device.host == os.environ.get("CRASH_AT") and gpu_device.pci_address.startswith("0000:11"):
        mark = HERE / "crashed"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    assert gpu_device.pci_address
"""
WITHOUT_HOST = "import pytest\n@pytest.mark.parametrize('n', range(5))\ndef test_of_no_host(n):\n    assert n >= 0\n"


def recording_of(count: int) -> Recording:
    """Give a recording of hosts with eight devices each, of which no more is kept than the tests here read."""
    recorded = read_recording(REFERENCE / "recording.json").hosts["node-a"]
    capture = dataclasses.replace(recorded.capture, answers={"boot": recorded.capture.answers["boot"]})
    return Recording({f"n{number:02d}": RecordedHost(recorded.spec, capture) for number in range(1, count + 1)})


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Give a directory with a recording of many hosts, tests on them and on none, and a plugin that takes notes."""
    write_recording(tmp_path / "hosts.json", recording_of(MANY))
    (tmp_path / "notes.py").write_text(NOTES)
    (tmp_path / "test_hosts.py").write_text(TESTS)
    (tmp_path / "test_others.py").write_text(WITHOUT_HOST)
    return tmp_path


def judge(directory: Path, *arguments: str, status: int = 0) -> dict[str, str]:
    """Run the directory's tests on the recorded hosts; gives outcomes by node id."""
    ended = run_pytest(
        directory,
        *("--gpu-host=replay:hosts.json", "--gpu-recording=judged.json", "-q", "-p", "no:cacheprovider", "-p", "notes"),
        *(arguments if any(argument.endswith(".py") for argument in arguments) else (*arguments, ".")),
    )
    assert ended.returncode == status, ended.stdout + ended.stderr
    document = json.loads((directory / "judged.json").read_text())
    return {result["id"]: result["outcome"] for result in document["results"]}


def lines_of(directory: Path, kind: str) -> dict[str, list[str]]:
    """Give what each worker noted, by its name."""
    files = directory.glob(f"{kind}-gw*.txt")
    return {file.stem.removeprefix(f"{kind}-"): file.read_text().splitlines() for file in files}


def host_of(nodeid: str) -> str:
    """Give the host in a node id; "" if there is none."""
    word = nodeid.partition("[")[2]
    return word[:3] if word.startswith("n") else ""


def test_worker_collects_its_share_alone(fleet: Path) -> None:
    """Of many hosts a worker makes no items but its own; each item runs once; nothing differs from a run without."""
    alone = judge(fleet, "-p", "no:xdist")
    assert len(alone) == MANY * 9
    assert judge(fleet, "-n", "3") == alone
    collected = lines_of(fleet, "collected")
    shares = [{host_of(nodeid) for nodeid in ids} - {""} for ids in collected.values()]
    assert sorted(map(len, shares)) == [13, 13, 14]
    assert len(set().union(*shares)) == MANY
    ran = lines_of(fleet, "ran")
    assert set(Counter(nodeid for ids in ran.values() for nodeid in ids).values()) == {1}
    assert sum(len(ids) for ids in ran.values()) == MANY * 9 + 5
    workers = defaultdict(set)
    for worker, ids in ran.items():
        for nodeid in ids:
            workers[host_of(nodeid)].add(worker)
    assert all(len(of_host) == 1 for of_host in workers.values())


@pytest.mark.parametrize("hosts", ["n0*", "*"])
def test_what_a_crashed_worker_leaves_is_run_by_another(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, hosts: str
) -> None:
    """The item that it died in could not be judged; all others run exactly once, of few hosts and of many."""
    monkeypatch.setenv("CRASH_AT", "n05")
    if hosts != "*":
        few = {alias: host for alias, host in read_recording(fleet / "hosts.json").hosts.items() if "n0" in alias}
        write_recording(fleet / "hosts.json", Recording(few))
    ended = judge(fleet, "-n", "2", status=6)
    assert (fleet / "crashed").exists()
    ran = Counter(nodeid for ids in lines_of(fleet, "ran").values() for nodeid in ids)
    aliases = {host_of(nodeid) for nodeid in ended}
    assert len(aliases) == (MANY if hosts == "*" else 9)
    assert set(ran.values()) == {1}
    assert len([nodeid for nodeid in ran if host_of(nodeid)]) == len(aliases) * 9 - 1
    assert [nodeid for nodeid, outcome in ended.items() if outcome != "passed"] == [
        "test_hosts.py::test_device[n05-11:00.0]"
    ]
    assert ended["test_hosts.py::test_device[n05-11:00.0]"] == "error"


def test_without_workers_hosts_come_one_after_the_other(fleet: Path) -> None:
    """Every item of every host runs once, a host's together, in order; a module is set up anew for each."""
    (fleet / "test_class.py").write_text(IN_A_CLASS)
    outcomes = judge(fleet)
    assert len(outcomes) == MANY * 10
    assert set(outcomes.values()) == {"passed"}
    ran = (fleet / "ran-controller.txt").read_text().splitlines()
    assert len(ran) == len(set(ran)) == MANY * 10 + 5
    order = [host for host in map(host_of, ran) if host]
    assert [host for host, _ in itertools.groupby(order)] == sorted(set(order))
    assert (fleet / "set-up.txt").read_text() == "x" * MANY


IN_A_CLASS = """
from pathlib import Path
def setup_module():
    with open(Path(__file__).parent / "set-up.txt", "a") as stream:
        stream.write("x")
class TestHost:
    def test_in_a_class(self, gpu_kernel_release):
        assert gpu_kernel_release
"""


def test_more_workers_than_hosts(fleet: Path) -> None:
    """Those for which no host is left end at once."""
    write_recording(fleet / "two.json", Recording(dict(list(read_recording(fleet / "hosts.json").hosts.items())[:2])))
    ended = run_pytest(
        fleet,
        *("--gpu-host=replay:two.json", "--gpu-recording=none", "-q", "-p", "no:cacheprovider", "-p", "notes"),
        *("-n", "4", "test_hosts.py"),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "18 passed in" in ended.stdout
    assert len(lines_of(fleet, "ran")) == 2


def test_first_failure_can_end_the_run(fleet: Path) -> None:
    """-x ends it before most hosts were looked at."""
    (fleet / "test_hosts.py").write_text("def test_release(gpu_kernel_release):\n    assert not gpu_kernel_release\n")
    outcomes = judge(fleet, "-n", "2", "-x", "test_hosts.py", status=2)
    assert 1 <= len(outcomes) < MANY
    assert "failed" in outcomes.values()
