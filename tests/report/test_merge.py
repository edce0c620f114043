"""`gpuinfra merge`: many runs made one, and what is missing, unfinished or contradictory said, never left out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from pytest_gpuinfra.cli import main
from pytest_gpuinfra.errors import InventoryError, RecordingError
from pytest_gpuinfra.inventory.inventory import parse_inventory
from pytest_gpuinfra.merge.merge import Merged, merge_folder
from pytest_gpuinfra.record.recording import Recording, read_recording, write_recording
from pytest_gpuinfra.session.select import select_hosts
from tests.report.fleet_made import LOG, UNREAD, node
from tests.report.made import TWO_GPUS

Make = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path) -> Make:
    """Write one node's recording where the recipe has it, and give the file."""

    def write(alias: str, *, place: str = "", **how: Any) -> Path:
        path = tmp_path / "runs" / (place or alias) / "recording.json"
        write_recording(path, node(alias, **how))
        return path

    return write


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Give the shared folder."""
    (tmp_path / "runs").mkdir(exist_ok=True)
    return tmp_path / "runs"


def merged(folder: Path, *arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["merge", str(folder), *arguments])


def said(found: Merged) -> dict[str, str]:
    """Give the troubles: what by node."""
    return {trouble.node: trouble.what for trouble in found.troubles}


def test_good_nodes_are_one_good_fleet(put: Make, runs: Path) -> None:
    """Three nodes, all expected, all good: status 0, every node named."""
    for alias in ("n1", "n2", "n3"):
        put(alias)
    ended = merged(runs, "--expect-hosts=n[1-3]")
    assert ended.exit_code == 0, ended.output
    assert all(alias in ended.output for alias in ("n1", "n2", "n3"))


def test_bad_node_is_status_1_and_unknown_is_6(put: Make, runs: Path) -> None:
    """Wrong beats unknown; unknown alone is neither good nor wrong, and --unknown says what it is worth."""
    put("n1")
    put("n2", unknown={"test_kernel_log.py": UNREAD})
    assert merged(runs).exit_code == 6
    assert merged(runs, "--unknown=fail").exit_code == 1
    assert merged(runs, "--unknown=allow").exit_code == 0
    put("n3", wrong={"test_kernel_log.py": LOG})
    ended = merged(runs, "--unknown=allow")
    assert ended.exit_code == 1
    assert "FAILED n3: kernel log: 1 fault: Xid 79" in ended.output


def test_node_that_never_reported_is_an_error(put: Make, runs: Path) -> None:
    """Not absent: it is in the matrix, in the recording, and in the exit status, whatever unknown is worth."""
    put("n1")
    ended = merged(runs, "--expect-hosts=n[1-2]", "--unknown=allow")
    assert ended.exit_code == 6
    assert "ERROR  n2: never reported" in ended.output
    found = merge_folder(runs, ["n1", "n2"])
    assert found.recording.hosts["n2"].capture.error is not None
    assert [(r["host"], r["outcome"]) for r in found.recording.results if r["host"] == "n2"] == [("n2", "error")]


def test_nobody_reported(runs: Path) -> None:
    """All expected nodes are errors; with nobody expected, an empty folder is a slip."""
    assert merged(runs, "--expect-hosts=n[1-3]").exit_code == 6
    ended = merged(runs)
    assert ended.exit_code == 2
    assert "no recording is in there" in ended.output
    assert "--expect-hosts" in ended.output
    with pytest.raises(RecordingError, match="no such folder"):
        merge_folder(runs / "nowhere")


def test_expected_nodes_come_from_file_and_inventory(put: Make, runs: Path, tmp_path: Path) -> None:
    """A file as `scontrol show hostnames` writes it, and an inventory; a file without a host is refused."""
    put("n1")
    hosts = tmp_path / "hosts"
    hosts.write_text("n1\nn2\n")
    inventory = tmp_path / "gpuinfra.toml"
    inventory.write_text("[hosts.n1]\n[hosts.n3]\n")
    ended = merged(runs, f"--expect-file={hosts}", f"--gpu-inventory={inventory}")
    assert "ERROR  2 hosts, n[2-3]: never reported" in ended.output
    hosts.write_text("\n")
    ended = merged(runs, f"--expect-file={hosts}")
    assert ended.exit_code == 2
    assert "names no host" in ended.output


@pytest.mark.parametrize("size", [0, 1000, 50_000])
def test_half_written_recording_is_an_error_and_the_rest_is_merged(put: Make, runs: Path, size: int) -> None:
    """Cut at any place: damaged, never absent."""
    put("n1")
    file = put("n2")
    file.write_bytes(file.read_bytes()[:size])
    found = merge_folder(runs)
    assert said(found) == {"n2": "file whole"}
    assert "damaged" in found.troubles[0].reason
    assert set(found.recording.hosts) == {"n1", "n2"}
    assert merged(runs).exit_code == 6


def test_run_that_was_killed_while_writing_is_an_error(put: Make, runs: Path) -> None:
    """What is left is the unfinished file under its temporary name."""
    file = put("n1")
    file.rename(file.with_name(".recording.json.a1b2c3d4"))
    assert said(merge_folder(runs)) == {"n1": "file whole"}


def test_run_that_left_no_recording_is_an_error(put: Make, runs: Path) -> None:
    """Its folder is there with its output: it began, and was killed."""
    put("n1")
    (runs / "n2").mkdir()
    (runs / "n2" / "output.txt").write_text("collected 143 items\n")
    found = merge_folder(runs, ["n1", "n2"])
    assert said(found) == {"n2": "run whole"}
    assert "output.txt" in found.troubles[0].reason


def test_interrupted_run_is_an_error_although_nothing_failed(put: Make, runs: Path) -> None:
    """A recording of a run that was interrupted holds only what was judged by then."""
    file = put("n1")
    recording = read_recording(file)
    few = Recording(recording.hosts, list(recording.results)[:3], recording.started_at, "0.1", (), 2)
    write_recording(file, few)
    found = merge_folder(runs)
    assert said(found) == {"n1": "run whole"}
    assert "interrupted (pytest's status 2)" in found.troubles[0].reason
    write_recording(file, Recording(recording.hosts, [], recording.started_at, "0.1"))
    assert "nothing was judged" in merge_folder(runs).troubles[0].reason


def test_two_that_speak_for_one_host_are_an_error(put: Make, runs: Path) -> None:
    """None of them is believed, both files are named, whatever their boots; what one found wrong stays wrong."""
    put("n1", began="2026-11-29T10:00:00+00:00", boot_id="00000000-0000-4000-8000-00000000000a")
    other = put("n1", place="n1/again", began="2026-11-29T11:00:00+00:00")
    put("n2")
    found = merge_folder(runs)
    assert said(found) == {"n1": "one report"}
    assert "n1/recording.json" in found.troubles[0].reason
    assert "again/recording.json" in found.troubles[0].reason
    assert set(found.recording.hosts) == {"n1", "n2"}
    assert not [row for row in found.recording.results if row["host"] == "n1" and row["outcome"] == "passed"]
    assert merged(runs, "--unknown=allow").exit_code == 6
    write_recording(other, node("n1", wrong={"test_kernel_log.py": LOG}))
    assert merged(runs).exit_code == 1


def test_a_place_speaks_for_its_own_host_alone(put: Make, runs: Path) -> None:
    """A node that writes a good report about another one: that is no report, and both are not judged."""
    put("n1", place="evil", boot_id="00000000-0000-4000-8000-00000000000a")
    put("n2")
    found = merge_folder(runs, ["n1", "n2"])
    assert said(found) == {"evil": "own name", "n1": "own report"}
    assert "evil/recording.json" in found.troubles[1].reason
    assert merged(runs, "--unknown=allow").exit_code == 6
    put("n1", wrong={"test_kernel_log.py": LOG})
    assert merged(runs).exit_code == 1
    put("n1")
    assert merged(runs).exit_code == 6
    (runs / "evil" / "recording.json").unlink()
    shutil.rmtree(runs / "evil")
    assert merged(runs).exit_code == 0


@pytest.mark.parametrize("place", ["n1 ", "n1\u200b", "-n1", "n1;"])
def test_a_place_whose_name_is_no_alias_is_nobodys(put: Make, runs: Path, place: str) -> None:
    """Nothing is cut off a name until it is another host's."""
    put("n1", place=place)
    put("n2")
    ended = merged(runs, "--expect-hosts=n[1-2]")
    assert ended.exit_code == 6
    assert "never reported" in ended.output
    assert "its name is no host's" in ended.output


def test_links_and_special_files_are_not_followed(put: Make, runs: Path, tmp_path: Path) -> None:
    """What a node's folder points to is not its word, and a FIFO does not hold up the others."""
    put("n1")
    real = put("n2")
    real.rename(tmp_path / "elsewhere.json")
    real.symlink_to(tmp_path / "elsewhere.json")
    (runs / "n3").mkdir()
    os.mkfifo(runs / "n3" / "recording.json")
    (runs / "n4" / "allure-results").mkdir(parents=True)
    os.mkfifo(runs / "n4" / "allure-results" / "a-result.json")
    os.mkfifo(runs / "n4" / "junit.xml")
    found = merge_folder(runs, ["n1", "n2", "n3", "n4"])
    assert said(found) == {"n2": "file whole", "n3": "file whole", "n4": "file whole"}
    assert "link" in found.troubles[0].reason + found.troubles[1].reason + found.troubles[2].reason
    assert merged(runs, "--expect-hosts=n[1-4]", f"--alluredir={tmp_path / 'allure'}").exit_code == 6


def test_one_machine_under_two_aliases_is_an_error(put: Make, runs: Path) -> None:
    """The same boot id twice: one of the two nodes was never judged."""
    for alias in ("n1", "n2"):
        put(alias, boot_id="00000000-0000-4000-8000-00000000000a")
    put("n3")
    assert said(merge_folder(runs)) == {"n1": "one name", "n2": "one name"}


def test_alias_local_becomes_the_folders_name(put: Make, runs: Path) -> None:
    """Every node that judges itself as `local` is told apart by where it wrote."""
    put("local", place="n1", wrong={"test_kernel_log.py": LOG}, boot_id="00000000-0000-4000-8000-00000000000a")
    put("local", place="n2", boot_id="00000000-0000-4000-8000-00000000000b")
    found = merge_folder(runs, ["n1", "n2"])
    assert found.troubles == ()
    assert list(found.recording.hosts) == ["n1", "n2"]
    assert not any("local" in str(result["id"]) for result in found.recording.results)
    failed = next(result for result in found.recording.results if result["outcome"] == "failed")
    assert str(failed["message"]).startswith("n1: kernel log")


def test_node_that_nobody_expected_is_told(put: Make, runs: Path) -> None:
    """It counts, and the reader is told."""
    put("n1")
    put("n9")
    ended = merged(runs, "--expect-hosts=n1")
    assert ended.exit_code == 0
    assert "expected by nobody: n9" in ended.output


def test_file_that_is_no_recording_is_told_and_left_out(put: Make, runs: Path) -> None:
    """Another tool's JSON in the folder is no node."""
    put("n1")
    (runs / "n1" / "nvbandwidth.json").write_text("{}")
    ended = merged(runs)
    assert ended.exit_code == 0
    assert "n1/nvbandwidth.json: not a recording, left out" in ended.output


def test_straggler_is_reported_and_fails_only_if_asked(put: Make, runs: Path) -> None:
    """Six nodes, one of them slow: status 0, or 1 with --outliers=fail."""
    for number in range(6):
        put(f"n{number}", gb_s=0.4 if number == 3 else 1.0)
    ended = merged(runs)
    assert ended.exit_code == 0
    assert "STRAGGLER n3: copy engine, both ways at once: GPU 0 to GPU 1" in ended.output
    assert merged(runs, "--outliers=fail").exit_code == 1


def test_merged_recording_can_be_judged_and_merged_again(put: Make, runs: Path) -> None:
    """It holds all nodes, the missing ones as not reached; written into the folder, it is not taken for a node's."""
    put("n1")
    whole = runs / "whole.json"
    arguments = ("--expect-hosts=n[1-2]", f"--recording={whole}")
    assert merged(runs, *arguments).exit_code == 6
    first = read_recording(whole)
    assert merged(runs, *arguments).exit_code == 6
    assert first.results == read_recording(whole).results
    argv = [*(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"), f"--gpu-host=replay:{whole}"]
    ended = subprocess.run(
        [*argv, "--gpu-recording=none"], cwd=runs.parent, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 6, ended.stdout
    assert "never reported" in ended.stdout


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Judge a recorded host twice, for real, as two nodes, with a test of the user's own that fails on one of them."""
    folder = tmp_path_factory.mktemp("real")
    shared = folder / "runs"
    for name in ("n1", "n2"):
        work = folder / name
        work.mkdir()
        document = json.loads(TWO_GPUS.read_text().replace('"h200"', f'"{name}"'))
        document["hosts"][name]["capture"]["answers"]["boot"][""]["boot_id"]["t"] = (
            f"00000000-0000-4000-8000-00000000000{name[1]}\n"
        )
        (work / "host.json").write_text(json.dumps(document))
        (work / "test_own.py").write_text(f"def test_rack_door():\n    assert {name == 'n2'}, 'the door is open'\n")
        argv = [*(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"), "--gpu-host=replay:host.json"]
        suite = Path(__file__).parents[2] / "suites" / "host" / "test_kernel_log.py"
        files = [
            f"--gpu-recording={shared}/{name}/recording.json",
            f"--junitxml={shared}/{name}/junit.xml",
            f"--alluredir={shared}/{name}/allure-results",
        ]
        subprocess.run([*argv, *files, str(suite), "test_own.py"], cwd=work, capture_output=True, check=False)
    return shared


def test_failure_that_is_about_no_host_counts_as_that_nodes(real_runs: Path) -> None:
    """A user's own test failed in one node's run: the recording does not know it, JUnit does."""
    found = merge_folder(real_runs, ["n1", "n2"])
    (failed,) = [result for result in found.recording.results if result["outcome"] == "failed"]
    assert failed["host"] == "n1"
    assert str(failed["id"]).endswith("::test_rack_door")
    assert "the door is open" in str(failed["message"])
    assert merged(real_runs).exit_code == 1


def test_junit_is_one_file(real_runs: Path, tmp_path: Path) -> None:
    """Every case of every node, and the node that never reported; totals are right."""
    target = tmp_path / "all.xml"
    merged(real_runs, "--expect-hosts=n[1-3]", f"--junitxml={target}")
    root = ElementTree.parse(target).getroot()
    single = [len(list(ElementTree.parse(real_runs / n / "junit.xml").iter("testcase"))) for n in ("n1", "n2")]
    assert [suite.get("name") for suite in root] == ["n1", "n2", "merge"]
    assert len(list(root.iter("testcase"))) == sum(single) + 1 == int(root.get("tests") or 0)
    (lost,) = root.findall("testsuite[@name='merge']/testcase")
    assert lost.get("name") == "test_node_reported[n3]"
    assert root.get("errors") == "1"


def test_allure_is_one_set_of_results(real_runs: Path, tmp_path: Path) -> None:
    """Results of all nodes with histories of their own, the lost node as broken, environment and fleet once."""
    target = tmp_path / "allure"
    merged(real_runs, "--expect-hosts=n[1-3]", f"--alluredir={target}")
    results = [json.loads(path.read_text()) for path in target.glob("*-result.json")]
    single = sum(len(list((real_runs / n / "allure-results").glob("*-result.json"))) for n in ("n1", "n2"))
    assert len(results) == single + 1
    about = [result for result in results if result["name"] != "test_rack_door"]
    assert len({result["historyId"] for result in about}) == len(about)
    (lost,) = [result for result in results if result["status"] == "broken"]
    labels = {label["name"]: label["value"] for label in lost["labels"]}
    assert (labels["parentSuite"], labels["trouble"]) == ("n3", "Unknown: could not be observed")
    assert "never reported" in lost["statusDetails"]["message"]
    environment = (target / "environment.properties").read_text()
    assert "n1.host=n1" in environment
    assert environment.count("driver=") == 1
    assert len(list(target.glob("*-globals.json"))) == 1
    again = merged(real_runs, f"--alluredir={target}")
    assert again.exit_code == 2
    assert "holds files already" in again.output


def test_results_of_local_get_histories_of_their_own(real_runs: Path, tmp_path: Path) -> None:
    """Two nodes that both were `local` are no retries of each other."""
    shared = tmp_path / "runs"
    for name, place in (("n1", "a"), ("n2", "b")):
        for path in (real_runs / name).rglob("*"):
            if path.is_file():
                target = shared / place / path.relative_to(real_runs / name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(path.read_text().replace(f'"{name}"', '"local"').replace(f"[{name}", "[local"))
    merged(shared, f"--alluredir={tmp_path / 'allure'}", f"--junitxml={tmp_path / 'all.xml'}")
    results = [json.loads(path.read_text()) for path in (tmp_path / "allure").glob("*-result.json")]
    hosts = {label["value"] for result in results for label in result["labels"] if label["name"] == "parentSuite"}
    assert {"a", "b"} <= hosts
    assert "local" not in hosts
    about = [result["historyId"] for result in results if result["name"] != "test_rack_door"]
    assert len(set(about)) == len(about)
    assert "[local" not in (tmp_path / "all.xml").read_text()


def test_damaged_junit_and_allure_are_errors(real_runs: Path, tmp_path: Path) -> None:
    """A report that is not whole is said, and the node's recording still counts."""
    shared = tmp_path / "runs"
    shutil.copytree(real_runs, shared)
    (shared / "n2" / "junit.xml").write_text("<testsuites><testsuite")
    damaged = next((shared / "n2" / "allure-results").glob("*-result.json"))
    damaged.write_text(damaged.read_text()[:40])
    found = merge_folder(shared)
    assert said(found) == {"n2": "file whole"}
    assert "the JUnit file is damaged" in found.troubles[0].reason
    assert "a result of Allure's is damaged" in found.troubles[0].reason
    assert any(result["host"] == "n2" and result["outcome"] == "passed" for result in found.recording.results)


def test_pages_are_written(put: Make, runs: Path, tmp_path: Path) -> None:
    """Markdown and HTML, with the lost node on both."""
    put("n1")
    for name in ("page.md", "page.html"):
        merged(runs, "--expect-hosts=n[1-2]", "-o", str(tmp_path / name))
        assert "never reported" in (tmp_path / name).read_text()


def test_slips_are_usage_errors(put: Make, runs: Path) -> None:
    """A hostlist that is none: what, and what is legal."""
    put("n1")
    ended = merged(runs, "--expect-hosts=n[2-1]")
    assert ended.exit_code == 2
    assert "is no range" in ended.output


def test_node_judges_itself_under_its_own_name() -> None:
    """`local:ALIAS` is this machine, by what the inventory expects of that alias, wherever its address points."""
    inventory = parse_inventory(
        {
            "defaults": {"expect": {"driver_version": "580.*"}},
            "hosts": {"n1": {"address": "root@192.0.2.1", "expect": {"kernel_release": "6.*"}}},
        },
        "gpuinfra.toml",
    )
    known, other = select_hosts(["local:n1", "local:n2"], inventory, "gpuinfra.toml")
    assert (known.alias, known.way, known.destination) == ("n1", "local", "")
    assert known.spec.expect.kernel_release == "6.*"
    assert (other.alias, other.way, other.spec.expect.driver_version) == ("n2", "local", "580.*")
    with pytest.raises(InventoryError, match="a name is letters"):
        select_hosts(["local:-x"], inventory, "gpuinfra.toml")


def test_reports_about_anothers_host_are_left_out(real_runs: Path, tmp_path: Path) -> None:
    """JUnit and Allure of a place hold its own host alone: none replaces, or stands as a retry of, another's result."""
    shared = tmp_path / "runs"
    shutil.copytree(real_runs, shared)
    shutil.copytree(real_runs / "n1" / "allure-results", shared / "n2" / "more" / "allure-results")
    for path in (shared / "n2" / "more" / "allure-results").glob("*-result.json"):
        path.write_text(path.read_text().replace('"failed"', '"passed"'))
    shutil.copy(real_runs / "n1" / "junit.xml", shared / "n2" / "more.xml")
    nested = (real_runs / "n1" / "junit.xml").read_text().replace("<testsuite ", "<testsuite><testsuite ", 1)
    (shared / "n2" / "nested.xml").write_text(nested.replace("</testsuite>", "</testsuite></testsuite>"))
    for path in (shared / "n2" / "more" / "allure-results").glob("*-result.json"):
        (path.parent / f"x{path.name}").write_text(path.read_text().replace('"n1"', '"n3"'))
    merged(shared, "--expect-hosts=n[1-3]", f"--junitxml={tmp_path / 'all.xml'}", f"--alluredir={tmp_path / 'allure'}")
    results = [json.loads(path.read_text()) for path in (tmp_path / "allure").glob("*-result.json")]
    about = [one for one in results if {"name": "target", "value": "n1"} in one["labels"]]
    single = [json.loads(path.read_text()) for path in (real_runs / "n1" / "allure-results").glob("*-result.json")]
    assert len(about) == sum({"name": "target", "value": "n1"} in one["labels"] for one in single)
    assert len({one["historyId"] for one in about}) == len(about)
    (lost,) = [one for one in results if {"name": "target", "value": "n3"} in one["labels"]]
    assert lost["status"] == "broken", "nobody speaks for a host that never reported"
    attached = {part["source"] for one in results for part in one.get("attachments", ())}
    assert attached
    assert attached <= {path.name for path in (tmp_path / "allure").iterdir()}
    for suite in ElementTree.parse(tmp_path / "all.xml").getroot():
        hosts = {entry.get("value") for entry in suite.iter("property") if entry.get("name") == "gpu_host"}
        assert hosts <= {suite.get("name")}
        assert suite.get("tests") == str(len(suite.findall("testcase")))


def test_what_was_cut_out_of_a_recording_stays_known(put: Make, runs: Path) -> None:
    """A text that was cut for its size in a node's recording is a row of the merged one, too, under the node's name."""
    file = put("local", place="n1")
    document = json.loads(file.read_text())
    document["trimmed"] = [{"where": "hosts/local/capture/answers/kernel_log", "characters": 9, "kept": 4}]
    file.write_text(json.dumps(document))
    put("n2")
    (row,) = merge_folder(runs).recording.trimmed
    assert row == {"where": "hosts/n1/capture/answers/kernel_log", "characters": 9, "kept": 4}


def test_status_1_with_nothing_wrong_in_the_recording_is_an_error(put: Make, runs: Path) -> None:
    """Something failed that the recording does not know, and no JUnit file tells: the node is not judged."""
    file = put("n1")
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "exit_status": 1}))
    found = merge_folder(runs)
    assert said(found) == {"n1": "run whole"}
    assert "status 1, and nothing in its recording is wrong" in found.troubles[0].reason


def test_one_recording_may_hold_several_hosts(runs: Path) -> None:
    """A shard of a larger run: the status 1 of its bad host says nothing of the good one."""
    bad, good = node("n1", wrong={"test_kernel_log.py": LOG}), node("n2")
    both = Recording({**bad.hosts, **good.hosts}, [*bad.results, *good.results], bad.started_at, "0.1", exit_status=1)
    write_recording(runs / "shard-1.json", both)
    write_recording(runs / "shard-2.json", node("n3"))
    found = merge_folder(runs, ["n1", "n2", "n3"], controllers=["shard-*"])
    assert found.troubles == ()
    assert list(found.recording.hosts) == ["n1", "n2", "n3"]
    assert merged(runs, "--controller=shard-*").exit_code == 1
    assert merged(runs).exit_code == 6


def test_share_without_a_host_is_no_node(put: Make, runs: Path) -> None:
    """`--gpu-shard` of few hosts: a share that got none leaves a JUnit file without a case."""
    put("n1")
    (runs / "share-2.xml").write_text('<testsuites><testsuite name="pytest" tests="0" /></testsuites>')
    assert merge_folder(runs).troubles == ()
    (runs / "share-3.xml").write_text('<testsuites><testsuite><testcase name="a" /></testsuite></testsuites>')
    assert said(merge_folder(runs)) == {"share-3": "run whole"}
