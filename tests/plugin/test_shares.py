"""Every item on xdist's workers, whatever its id looks like: it runs exactly once, and its host's failure counts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from pytest_gpuinfra.record.recording import Recording, read_recording, write_recording
from tests.plugin.conftest import run_pytest
from tests.plugin.test_fleet import recording_of

NOTES = """
import os, pathlib, signal, pytest
HERE = pathlib.Path(__file__).parent
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "alone")
def host_of(item):
    target = getattr(getattr(item, "callspec", None), "params", {}).get("_gpu_target")
    return target.host if target else "-"
def pytest_runtest_call(item):
    with open(HERE / f"ran-{WORKER}.txt", "a") as stream:
        stream.write(f"{host_of(item)} {item.nodeid}\\n")
"""
"""Notes host and node id of each item whose test runs, beside the plugin's own account."""

USERS_TESTS = {
    "test_before.py": """
import pytest
@pytest.fixture(params=["one", "n01", "n02-x", "a[b]c", "]", "::", "x::y[z", "\\u00e9", "~", "a-b@gw0", "", " "])
def kind(request):
    return request.param
def test_parameter_before_host(kind, gpu_kernel_release):
    assert gpu_kernel_release
""",
    "test_after.py": """
import pytest
@pytest.mark.parametrize("after", ["n01", "n59-x", "[", "x]", "a::b"])
def test_parameter_after_host(gpu_host, after, gpu_kernel_release):
    assert gpu_host.alias != "n33" or after != "x]"
@pytest.mark.parametrize("first", ["z-n07", 1.5])
@pytest.mark.parametrize("second", [None, "n08"])
def test_parameters_on_both_sides(first, gpu_kernel_release, second):
    assert gpu_kernel_release
""",
    "deeper/further/test_class.py": """
import pytest
@pytest.mark.parametrize("of_class", ["n02", "[n03]"])
class TestHost:
    class TestInside:
        @pytest.mark.xdist_group("some group")
        def test_method(self, of_class, gpu_kernel_release):
            assert gpu_kernel_release
""",
    "deeper/test_none.py": """
import pytest
@pytest.mark.parametrize("name", ["n01", "n40", "n40-x", "[n02]", "x"])
def test_of_no_host(name):
    assert name
class TestNone:
    def test_in_a_class(self):
        pass
""",
}
A_HOST = 12 + 5 + 4 + 2
NO_HOST = 6


def users_folder(tmp_path: Path, hosts: int) -> Path:
    """Give a directory with a recording of so many hosts and with tests as users write them."""
    write_recording(tmp_path / "hosts.json", recording_of(hosts))
    (tmp_path / "notes.py").write_text(NOTES)
    for name, text in USERS_TESTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def judge(directory: Path, *arguments: str) -> tuple[int, dict[tuple[str, str], str], str]:
    """Run the directory's tests; gives exit status, outcome by host and node id, and what the terminal showed."""
    ended = run_pytest(
        directory,
        *("--gpu-host=replay:hosts.json", "--gpu-recording=judged.json", "-p", "no:cacheprovider", "-p", "notes"),
        *(*arguments, "-q", "."),
    )
    document = json.loads((directory / "judged.json").read_text())
    outcomes = {(result["host"], result["id"]): result["outcome"] for result in document["results"]}
    assert len(outcomes) == len(document["results"])
    return ended.returncode, outcomes, ended.stdout + ended.stderr


def ran(directory: Path) -> Counter[str]:
    """Give "HOST NODEID" of each test that ran, with its number of times."""
    return Counter(line for file in directory.glob("ran-*.txt") for line in file.read_text().splitlines())


@pytest.mark.parametrize(
    ("hosts", "workers", "dist"), [(33, "2", "load"), (60, "3", "loadgroup"), (9, "3", "worksteal")]
)
def test_every_item_runs_once(tmp_path: Path, hosts: int, workers: str, dist: str) -> None:
    """Of few hosts and of many, parametrised before and after the host, in classes and subfolders, and of no host."""
    folder = users_folder(tmp_path, hosts)
    status, outcomes, output = judge(folder, "-n", workers, f"--dist={dist}")
    times = ran(folder)
    assert set(times.values()) == {1}, [name for name, count in times.items() if count > 1]
    assert Counter(name.split()[0] for name in times) == {
        "-": NO_HOST,
        **{f"n{number:02d}": A_HOST for number in range(1, hosts + 1)},
    }
    assert Counter(host for host, _ in outcomes) == {f"n{number:02d}": A_HOST for number in range(1, hosts + 1)}
    wrong = {key: outcome for key, outcome in outcomes.items() if outcome != "passed"}
    if hosts < 33:
        assert (status, wrong) == (0, {}), output
    else:
        assert (status, wrong) == (1, {("n33", "test_after.py::test_parameter_after_host[n33-x]]"): "failed"}), output
    workers_of: dict[str, set[str]] = {}
    for file in folder.glob("ran-*.txt"):
        for line in file.read_text().splitlines():
            workers_of.setdefault(line.split()[0], set()).add(file.name)
    assert all(len(of_host) == 1 for host, of_host in workers_of.items() if host != "-")


TWINS = """
import pytest
@pytest.mark.parametrize("rest", ["a-x", "x"])
def test_twin(gpu_host, rest, gpu_kernel_release):
    assert (gpu_host.alias, rest) != ("node-a", "x")
"""


@pytest.mark.parametrize("workers", [["-n", "2"], ["-p", "no:xdist"]])
def test_two_hosts_may_have_one_node_id(tmp_path: Path, workers: list[str]) -> None:
    """ "node" with "a-x" and "node-a" with "x" are two items, and a failure is that of its own host."""
    recorded = recording_of(1).hosts["n01"]
    write_recording(tmp_path / "hosts.json", Recording(dict.fromkeys(("node", "node-a"), recorded)))
    (tmp_path / "notes.py").write_text(NOTES)
    (tmp_path / "test_twins.py").write_text(TWINS)
    status, outcomes, output = judge(tmp_path, *workers)
    twin = "test_twins.py::test_twin[node-a-x]"
    assert status == 1, output
    assert (outcomes["node", twin], outcomes["node-a", twin]) == ("passed", "failed")
    assert len(outcomes) == 4
    assert ran(tmp_path)[f"node {twin}"] == ran(tmp_path)[f"node-a {twin}"] == 1


CRASHING = """
import os, signal, pathlib
def pytest_runtest_call(item):
    mark = pathlib.Path(__file__).parent / "crashed"
    if "test_parameter_before_host" in item.name and host_of(item) == "n05" and not mark.exists():
        mark.write_text(item.nodeid)
        os.kill(os.getpid(), signal.SIGKILL)
    with open(HERE / f"ran-{WORKER}.txt", "a") as stream:
        stream.write(f"{host_of(item)} {item.nodeid}\\n")
"""


@pytest.mark.parametrize("hosts", [8, 40])
def test_item_that_a_worker_died_in_is_an_error_of_its_host(tmp_path: Path, hosts: int) -> None:
    """Though its id begins with a user's parameter; all else runs once."""
    folder = users_folder(tmp_path, hosts)
    (folder / "test_after.py").unlink()
    (folder / "notes.py").write_text(NOTES + CRASHING)
    status, outcomes, output = judge(folder, "-n", "2")
    crashed = (folder / "crashed").read_text()
    assert {key: outcome for key, outcome in outcomes.items() if outcome != "passed"} == {("n05", crashed): "error"}
    assert len(outcomes) == hosts * (A_HOST - 9)
    times = ran(folder)
    assert set(times.values()) == {1}
    assert times.total() == hosts * (A_HOST - 9) + NO_HOST - 1
    assert status == 6, output


DIFFERENT = """
import os
def pytest_generate_tests(metafunc):
    if "only" in metafunc.fixturenames:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        metafunc.parametrize("only", ["all", worker])
"""


def test_what_one_worker_alone_collects_is_run_there(tmp_path: Path) -> None:
    """Collections that differ lose nothing, about hosts or about none."""
    folder = users_folder(tmp_path, 3)
    (folder / "conftest.py").write_text(DIFFERENT)
    (folder / "test_only.py").write_text(
        "def test_host(only, gpu_kernel_release):\n    assert gpu_kernel_release\ndef test_none(only):\n    pass\n"
    )
    status, outcomes, output = judge(folder, "-n", "2", "-k", "test_only")
    assert status == 0, output
    hosts = [f"test_only.py::test_host[{only}-n0{number}]" for only in ("all", "gw0", "gw1") for number in (1, 2, 3)]
    assert sorted(nodeid for _, nodeid in outcomes) == sorted(hosts)
    none = {f"- test_only.py::test_none[{only}]": 1 for only in ("all", "gw0", "gw1")}
    assert ran(folder) == {**{f"n{name[-3:-1]} {name}": 1 for name in hosts}, **none}


DIES_WHILE_COLLECTING = """
import os, signal
def pytest_collection_modifyitems(items):
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
        os.kill(os.getpid(), signal.SIGKILL)
"""
LOSES = """
import os, signal
def pytest_collection_modifyitems(items):
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw2":
        items[:] = [item for item in items if "before_host" not in item.name]
def pytest_runtest_call(item):
    if WORKER == "gw1" and host_of(item) != "-":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("unknown", ["error", "allow"])
def test_hosts_that_no_worker_collected_are_not_judged(tmp_path: Path, unknown: str) -> None:
    """A share whose workers all die while they collect is silence about its hosts: the status is not 0."""
    folder = users_folder(tmp_path, 40)
    (folder / "test_after.py").unlink()
    (folder / "notes.py").write_text(NOTES + DIES_WHILE_COLLECTING)
    status, outcomes, output = judge(folder, "-n", "2", "--max-worker-restart=1", f"--gpu-unknown={unknown}")
    lost = {host for (host, name), outcome in outcomes.items() if outcome == "error"}
    assert status == 6, output
    assert len(lost) == 20
    assert {f"n{number:02d}" for number in range(2, 41, 2)} == lost
    assert "no worker has run this" in output


def test_items_that_a_crashed_worker_alone_knew_are_errors(tmp_path: Path) -> None:
    """Where the one that takes its place does not collect them again, they stand as errors of their hosts."""
    folder = users_folder(tmp_path, 34)
    (folder / "test_after.py").unlink()
    (folder / "notes.py").write_text(NOTES + LOSES)
    status, outcomes, output = judge(folder, "-n", "2")
    errors = {(host, name) for (host, name), outcome in outcomes.items() if outcome == "error"}
    assert status == 6, output
    assert len({host for host, name in errors if "before_host" in name}) == 17
    assert len([name for _, name in errors if "before_host" in name]) == 17 * 12
    assert len(outcomes) == 34 * (A_HOST - 9)


def test_nothing_chosen_is_no_error(tmp_path: Path) -> None:
    """Items that a user deselects, or a run that is ended by -x, are not missed."""
    folder = users_folder(tmp_path, 34)
    status, outcomes, output = judge(folder, "-n", "2", "-k", "test_of_no_host")
    assert (status, outcomes) == (6, {}), output  # nothing was observed of any host
    status, outcomes, output = judge(folder, "-n", "2", "-x", "-k", "after_host and n33")
    assert status == 2, output
    assert "error" not in outcomes.values()
    assert read_recording(folder / "judged.json").hosts
