"""Slurm for real: nodes judge themselves, one of them bad, one absent; a prolog keeps jobs off a bad one."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_gpuinfra.record.recording import Recording, read_recording

from .image import HERE
from .keep import wait_for_exit
from .slurm import SlurmCluster

ROOT = HERE.parents[1]
RECIPES = ROOT / "docs" / "slurm"
SUITES = ROOT / "suites" / "host"
LEFT_OUT = ("-p", "no:anyio", "-p", "no:hypothesispytest")
"""Plugins that a developer's environment has and a node has not."""

XID = "<3>NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus."
ADD_XID = f"echo '{XID}' | /usr/bin/python3 -Es {HERE}/files/host/usr/local/sbin/lab-kmsg"

pytestmark = pytest.mark.lab


@dataclass(frozen=True, slots=True)
class Judged:
    """
    What became of a job by the recipe.

    Attributes:
        folder: What its nodes wrote.
        state: Slurm's word for it. status: Its exit status.
        output: What it printed.
        took_s: Seconds from its submission to its end.
    """

    folder: Path
    state: str
    status: int
    output: str
    took_s: float

    @property
    def merged(self) -> Recording:
        """The merged recording."""
        return read_recording(self.folder / "merged" / "recording.json")


def write_inventory(path: Path) -> Path:
    """Write what a healthy node shows, for every node alike; there is no systemd, so no unit is expected."""
    text = (HERE / "expected" / "nspawn.toml").read_text()
    text = re.sub(r"\[groups\.lab\.expect\.units\]\n(?:\".*\n)+", "", text)
    path.write_text('[defaults]\ngroup = "lab"\n\n' + text)
    return path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder that all nodes can write to."""
    folder = tmp_path_factory.mktemp("shared")
    write_inventory(folder / "gpuinfra.toml")
    return folder


@pytest.fixture(scope="module")
def cluster(shared: Path) -> Iterator[SlurmCluster]:
    """Give four nodes whose prolog and epilog judge them."""
    more = "Prolog=/run/cluster/gpuinfra/prolog.sh\nEpilog=/run/cluster/gpuinfra/prolog.sh\nPrologFlags=Alloc"
    cluster = SlurmCluster(shared, more=more, files={"gpuinfra/prolog.sh": (RECIPES / "prolog.sh").read_text()})
    with cluster:
        yield cluster


def configure_prolog(cluster: SlurmCluster, shared: Path, *, python: Path | None = None) -> None:
    """Write gpuinfra.conf beside the prolog."""
    lines = [
        f"GPUINFRA_BIN={python or Path(sys.executable).parent}",
        f"GPUINFRA_INVENTORY={shared}/gpuinfra.toml",
        f"GPUINFRA_STATE={shared}/state",
        f'GPUINFRA_ARGUMENTS="{" ".join(LEFT_OUT)} {SUITES}"',
        "GPUINFRA_DEADLINE=55",
    ]
    (cluster.folder / "gpuinfra" / "gpuinfra.conf").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def judge(cluster: SlurmCluster, shared: Path) -> Callable[[], Judged]:
    """Give a function that submits the recipe as it is, over as many nodes as are free, and waits for its end."""

    def submit() -> Judged:
        began = time.monotonic()
        job = cluster.submit(
            RECIPES / "judge.sbatch",
            f"{shared}/runs",
            "--gpu-level=passive",
            f"--gpu-inventory={shared}/gpuinfra.toml",
            *LEFT_OUT,
            str(SUITES),
            options=[
                *("--partition=gpu", "--nodes=1-4", f"--output={shared}/%j.out"),
                f"--export=ALL,GPUINFRA_BIN={Path(sys.executable).parent}",
            ],
        )
        facts = cluster.wait_for_job(job)
        status = int(facts["ExitCode"].partition(":")[0])
        output = (shared / f"{job}.out").read_text()
        return Judged(shared / "runs" / str(job), facts["JobState"], status, output, time.monotonic() - began)

    return submit


@pytest.fixture(scope="module")
def all_good(cluster: SlurmCluster, shared: Path, judge: Callable[[], Judged]) -> Judged:
    """Judge the cluster while nothing is wrong with it; the prolog finds no pytest, and keeps no job off."""
    configure_prolog(cluster, shared, python=Path("/nowhere"))
    return judge()


@pytest.fixture(scope="module")
def one_bad_one_absent(
    all_good: Judged, cluster: SlurmCluster, shared: Path, judge: Callable[[], Judged]
) -> Iterator[Judged]:
    """Judge it again with a GPU of node2 fallen off its bus, and the slurmd of node3 dead."""
    cluster.run_on("node2", ADD_XID)
    cluster.run_on("node3", "kill $(cat /run/slurmd.pid)")
    cluster.run("scontrol update nodename=node3 state=down reason=power")
    yield judge()
    cluster.run_on("node3", "slurmd -N node3 -f $SLURM_CONF -L /run/slurmd.log")
    cluster.run("scontrol update nodename=node3 state=resume")
    cluster.wait_for("node3", "idle")


def test_good_cluster_may_take_traffic(all_good: Judged) -> None:
    """Four nodes, each judged by itself: status 0, nothing failed or unknown, and on every node something passed."""
    assert (all_good.state, all_good.status) == ("COMPLETED", 0), all_good.output
    results = all_good.merged.results
    assert {result["outcome"] for result in results} == {"passed", "skipped"}
    assert {result["host"] for result in results if result["outcome"] == "passed"} == {
        "node1",
        "node2",
        "node3",
        "node4",
    }


def test_every_node_reports_three_ways(all_good: Judged) -> None:
    """Recording, JUnit and Allure results of each, under the node's own name and with its own boot."""
    boots = set()
    for node in ("node1", "node2", "node3", "node4"):
        recording = read_recording(all_good.folder / node / "recording.json")
        assert list(recording.hosts) == [node]
        boots.add(recording.hosts[node].capture.answers["boot"][""]["boot_id"]["t"])
        cases = list(ElementTree.parse(all_good.folder / node / "junit.xml").iter("testcase"))
        results = list((all_good.folder / node / "allure-results").glob("*-result.json"))
        assert len(cases) == len(results) == len(recording.results)
    assert len(boots) == 4


def test_bad_node_is_named_with_what_is_wrong(one_bad_one_absent: Judged) -> None:
    """The job ends with 1; only node2 failed, and its message names GPU and Xid."""
    assert (one_bad_one_absent.state, one_bad_one_absent.status) == ("FAILED", 1)
    wrong = [result for result in one_bad_one_absent.merged.results if result["outcome"] == "failed"]
    assert {result["host"] for result in wrong} == {"node2"}
    assert "GPU 01:00.0" in str(wrong[0]["message"])
    assert "Xid (PCI:0000:01:00): 79" in str(wrong[0]["message"])
    assert "FAILED node2: GPU 01:00.0" in one_bad_one_absent.output


def test_absent_node_is_an_error_not_absent(one_bad_one_absent: Judged) -> None:
    """node3 got no job: it is in the output, the recording, JUnit, Allure and the page, as never reported."""
    assert "ERROR  node3: never reported" in one_bad_one_absent.output
    merged = one_bad_one_absent.merged
    assert set(merged.hosts) == {"node1", "node2", "node3", "node4"}
    assert [result["outcome"] for result in merged.results if result["host"] == "node3"] == ["error"]
    folder = one_bad_one_absent.folder / "merged"
    lost = ElementTree.parse(folder / "junit.xml").findall(".//testsuite[@name='merge']/testcase")
    assert [case.get("name") for case in lost] == ["test_node_reported[node3]"]
    broken = [
        result
        for path in (folder / "allure-results").glob("*-result.json")
        if (result := json.loads(path.read_text()))["status"] == "broken"
    ]
    assert [result["titlePath"][0] for result in broken] == ["node3"]
    assert "node3" in (folder / "summary.html").read_text()


def test_other_nodes_are_as_good_as_before(all_good: Judged, one_bad_one_absent: Judged) -> None:
    """Neither the bad node nor the absent one changes anything of the others."""

    def of(judged: Judged, node: str) -> list[tuple[str, str]]:
        return sorted((str(r["id"]), str(r["outcome"])) for r in judged.merged.results if r["host"] == node)

    for node in ("node1", "node4"):
        assert of(all_good, node) == of(one_bad_one_absent, node) != []


def test_prolog_that_could_not_judge_lets_the_job_run(all_good: Judged, shared: Path) -> None:
    """pytest was not to be had (status 127): written down, before and after the job, and no node was lost for it."""
    history = (shared / "state" / "history-node4.txt").read_text().splitlines()
    assert [line.split()[3:6] for line in history[:2]] == [
        ["prolog_slurmd", "status", "127"],
        ["epilog_slurmd", "status", "127"],
    ]


def test_failing_prolog_drains_the_node_and_the_job_runs_elsewhere(
    one_bad_one_absent: Judged, cluster: SlurmCluster, shared: Path, record_property: Callable[[str, object], None]
) -> None:
    """
    A job that first gets node2, whose GPU is gone, never begins there: the node is drained with the reason, and the job
    ends well on node4, judged before it and after it.
    """
    configure_prolog(cluster, shared)
    script = shared / "work.sh"
    script.write_text("#!/bin/bash\nhostname\n")
    job = cluster.submit(script, options=["--exclude=node1,node3", f"--output={shared}/work.out"])
    cluster.wait_for("node2", "drain", "drained")
    assert "Prolog error" in cluster.run("sinfo -R -h -o '%E %n'").stdout
    assert "Xid" in (shared / "state" / "last-node2.txt").read_text()
    cluster.run(f"scontrol update jobid={job} starttime=now", check=False)  # a requeued job waits a while by default
    facts = cluster.wait_for_job(job)
    assert (facts["JobState"], facts["NodeList"]) == ("COMPLETED", "node4")
    assert (shared / "work.out").read_text() == "node4\n"
    lines = (shared / "state" / "history-node4.txt").read_text().splitlines()
    history = [line for line in lines if f"job {job} " in line]
    record_property("prolog and epilog", "; ".join(history))
    assert [line.split()[3:6] for line in history] == [
        ["prolog_slurmd", "status", "0"],
        ["epilog_slurmd", "status", "0"],
    ]


def test_nothing_is_left_when_a_cluster_stops(tmp_path: Path) -> None:
    """No process with its configuration, no network interface, no file; another cluster goes on."""
    before = _processes()
    with SlurmCluster(tmp_path / "shared", nodes=1) as cluster:
        assert _processes() - before
        folder = cluster.folder.parent
    assert _processes() <= before
    assert not folder.exists()
    assert not Path("/sys/class/net/cluster").exists()


def test_nothing_is_left_when_the_lab_is_killed(tmp_path: Path) -> None:
    """Whoever started the cluster dies by SIGKILL: so do all of its processes."""
    before = _processes()
    program = (
        "import sys, time; from pathlib import Path; from tests.lab.slurm import SlurmCluster\n"
        "SlurmCluster(Path(sys.argv[1]), nodes=1).start(); print('up', flush=True); time.sleep(600)"
    )
    argv = [sys.executable, "-c", program, str(tmp_path / "shared")]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        started = _processes() - before
        holder.kill()
    assert len(started) > 3
    wait_for_exit(sorted(started))
    assert _processes() <= before


def _processes() -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"SLURM_CONF=/run/cluster/slurm.conf" in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found
