"""What Allure is given: where items are filed, in which words, and ids that outlive what they must."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_gpuinfra.inventory.inventory import Expectation
from pytest_gpuinfra.record.recording import RecordedHost, Recording, read_recording, write_recording
from pytest_gpuinfra.report.allure_files import FLAKY, category_of, executor_of, is_flaky
from pytest_gpuinfra.report.identity import severity
from tests.plugin.conftest import run_pytest
from tests.recorded.reference.compose import reference_host
from tests.report.made import REFERENCE, gathered, lines, machine

TWO = ["00:06.0", "00:07.0"]
MORE = '''
import pytest
from pytest_gpuinfra import FactUnavailable

def test_unknown_in_the_body(gpu_kernel_release):
    """What a body cannot observe is broken, not passed."""
    raise FactUnavailable("journal", "no permission")

@pytest.mark.parametrize("size", [1, 2])
def test_own_parameter(gpu_device, gpu_pci_function, size):
    """Own parameters count, too."""
    assert gpu_pci_function.link_width
'''


def results(directory: Path) -> list[dict[str, Any]]:
    """Read the results of a run."""
    return [json.loads(file.read_text()) for file in directory.glob("*-result.json")]


def label(result: Mapping[str, Any], name: str) -> str | None:
    """Give a label of a result; there is one at most."""
    found = [row["value"] for row in result["labels"] if row["name"] == name]
    assert len(found) <= 1
    return found[0] if found else None


def run(folder: Path, hosts: Mapping[str, RecordedHost]) -> list[dict[str, Any]]:
    """Judge hosts from a folder of their own, with a test of a user's own beside."""
    folder.mkdir(parents=True)
    write_recording(folder / "hosts.json", Recording(hosts))
    (folder / "test_more.py").write_text(MORE)
    (folder / "pytest.ini").write_text("[pytest]\n")
    ended = run_pytest(
        folder,
        "--gpu-host=replay:hosts.json",
        "--gpu-recording=none",
        "--alluredir=results",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "bound_to or copy_engine_delivers or test_more or release",
        "test_more.py",
        str(Path(__file__).parents[2] / "suites"),
    )
    assert ended.returncode in (1, 6), ended.stdout + ended.stderr
    return results(folder / "results")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Judge the reference host and two GPUs of which one pair is corrupt."""
    folder = tmp_path_factory.mktemp("allure") / "first"
    capture = machine(TWO).capture("x", Expectation())
    pair = RecordedHost({}, capture, gathered(lines("fault-never-written-one-pair")))
    return folder / "results", run(folder, {"node-a": read_recording(REFERENCE).hosts["node-a"], "pair": pair})


def test_ids_outlive_reboot_renumbering_order_and_directory(
    first: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Another boot, a bus that moved, hosts in another order, another directory: the same history."""
    host = reference_host()
    files = {**host.files, "/proc/sys/kernel/random/boot_id": "6c0f0b7e-8a3e-4a2b-9c56-3f1f6f0d7a11\n"}
    moved = [replace(f, address=f.address.replace("0000:61:", "0000:62:")) for f in host.functions]
    spec = json.loads(
        json.dumps(read_recording(REFERENCE).hosts["node-a"].spec).replace("0000:61:00.0", "0000:62:00.0")
    )
    capture = replace(host, files=files, functions=moved).capture("node-a", Expectation.model_validate(spec["expect"]))
    two = machine(TWO, boot_id="00000000-0000-4000-8000-000000000009").capture("x", Expectation())
    again = run(
        tmp_path / "elsewhere" / "second",
        {"pair": RecordedHost({}, two, {}), "node-a": RecordedHost(spec, capture)},
    )
    before = {(r["fullName"], r["historyId"], r["testCaseId"]) for r in first[1]}
    after = {(r["fullName"], r["historyId"], r["testCaseId"]) for r in again}
    assert len(before) == len(first[1]) > 20
    assert before == after
    assert any("[GPU 62:00.0]" in r["name"] for r in again)


def test_items_are_filed_by_host_area_and_file(first: tuple[Path, list[dict[str, Any]]]) -> None:
    """Parent suite, suite, sub-suite; the title is the requirement; parameters are short strings."""
    found = [r for r in first[1] if "bound_to_the_expected_driver" in r["fullName"] and label(r, "host") == "node-a"]
    assert len(found) == 8
    one = next(r for r in found if "GPU 61:00.0" in r["name"])
    assert [label(one, name) for name in ("parentSuite", "suite", "subSuite", "severity")] == [
        *("node-a", "host", "driver binding", "critical")
    ]
    assert one["name"].endswith("[GPU 61:00.0]")
    assert "test_" not in one["name"]
    assert one["description"]
    assert one["parameters"] == [{"name": "host", "value": "node-a"}, {"name": "about", "value": "GPU 61:00.0"}]


def test_corrupt_pair_carries_message_category_and_picture(first: tuple[Path, list[dict[str, Any]]]) -> None:
    """The four parts stand in the message, the picture of all pairs among the attachments."""
    directory, found = first
    one = next(r for r in found if r["status"] == "failed" and "copy_engine_delivers" in r["fullName"])
    assert "what to do:" in one["statusDetails"]["message"]
    assert (label(one, "trouble"), label(one, "severity")) == ("Transfer corrupt", "blocker")
    picture = next(piece for piece in one["attachments"] if piece["type"] == "image/svg+xml")
    assert "1 wrong (never written)" in (directory / picture["source"]).read_text()


def test_unknown_in_a_body_is_broken(first: tuple[Path, list[dict[str, Any]]]) -> None:
    """Allure's own view of it would be: passed."""
    found = [r for r in first[1] if "unknown_in_the_body" in r["fullName"]]
    assert {(r["status"], label(r, "trouble")) for r in found} == {("broken", "Unknown: could not be observed")}
    own = [r for r in first[1] if "own_parameter" in r["fullName"] and label(r, "host") == "pair"]
    assert sorted(r["name"] for r in own) == [
        f"Own parameters count, too [GPU {gpu}] [{size}]" for gpu in TWO for size in (1, 2)
    ]


def test_files_about_the_run_are_written(first: tuple[Path, list[dict[str, Any]]]) -> None:
    """Environment by host, categories by the label."""
    directory, _ = first
    environment = dict(line.split("=", 1) for line in (directory / "environment.properties").read_text().splitlines())
    assert environment["node-a.kernel"] == "6.14.11-4-pve"
    assert environment["node-a.boot_id"].startswith("5b0f0b7e")
    assert environment["node-a.driver"] == "580.95.05"
    assert environment["pair.CUDA"]
    assert not [name for name in environment if " " in name]
    categories = json.loads((directory / "categories.json").read_text())
    assert [row["name"] for row in categories][:3] == ["Transfer corrupt", "Hang", FLAKY]
    assert set(environment) >= {f"node-a.{name}" for name in ("host", "kernel", "driver", "CUDA", "engine", "boot_id")}


def test_files_are_few_and_none_is_missing(first: tuple[Path, list[dict[str, Any]]]) -> None:
    """Each piece of evidence is a file of its own; none for a fixture that says nothing; what is named is there."""
    directory, found = first
    named = [piece["source"] for result in found for piece in result.get("attachments", ())]
    files = {file.name for file in directory.iterdir()}
    assert set(named) <= files
    assert len(named) == len(set(named)) > 20
    assert [name for name in files if name.endswith("-container.json")] == []
    assert len(files) < len(found) + len(set(named)) + 8, sorted(files)


def test_evidence_beyond_the_limit_is_named(tmp_path: Path) -> None:
    """A test that attaches more than is shown keeps the names of all, and says where the texts are."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_own.py").write_text(
        "def test_much(gpu_evidence, gpu_kernel_release):\n"
        "    for n in range(40):\n        gpu_evidence.attach(f'piece {n}', f'text {n}')\n"
    )
    ended = run_pytest(
        tmp_path, f"--gpu-host=replay:{REFERENCE}", "--gpu-recording=none", "--alluredir=r", "-q", "test_own.py"
    )
    assert ended.returncode == 0, ended.stdout
    (result,) = results(tmp_path / "r")
    assert len(result["attachments"]) == 25
    last = result["attachments"][-1]
    assert last["name"] == "17 more pieces, left out here"
    assert "piece 39" in (tmp_path / "r" / last["source"]).read_text()


def test_fixture_that_attaches_something_keeps_its_file(tmp_path: Path) -> None:
    """Allure files it under the fixture."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_own.py").write_text(
        "import allure, pytest\n@pytest.fixture\ndef own():\n    allure.attach('x', 'mine')\n"
        "def test_it(own, gpu_kernel_release):\n    assert gpu_kernel_release\n"
    )
    run_pytest(tmp_path, f"--gpu-host=replay:{REFERENCE}", "--gpu-recording=none", "--alluredir=r", "-q", "test_own.py")
    (container,) = [json.loads(file.read_text()) for file in (tmp_path / "r").glob("*-container.json")]
    assert [(part["name"], part["attachments"][0]["name"]) for part in container["befores"]] == [("own", "mine")]


def test_served_host_carries_the_picture_of_its_endpoint(tmp_path: Path) -> None:
    """The ladder and the times, at the checks of readiness and speed, for hosts that serve."""
    recording = read_recording(REFERENCE.parents[1] / "sglang" / "recording.json")
    write_recording(tmp_path / "served.json", Recording({"nextn": recording.hosts["nextn"]}))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ended = run_pytest(
        tmp_path,
        *("--gpu-host=replay:served.json", "--gpu-recording=none", "--alluredir=r", "-q", "-k", "endpoint_is_ready"),
        str(Path(__file__).parents[2] / "suites" / "serving"),
    )
    assert ended.returncode == 0, ended.stdout
    (result,) = results(tmp_path / "r")
    picture = next(piece for piece in result["attachments"] if piece["type"] == "image/svg+xml")
    drawn = ElementTree.fromstring((tmp_path / "r" / picture["source"]).read_text())
    shown = " ".join(part.text or "" for part in drawn.iter("{http://www.w3.org/2000/svg}text"))
    assert [word in shown for word in ("token", "8 streams", "POST /v1/chat/completions")] == [True] * 3


@pytest.mark.parametrize(
    ("environ", "name", "url"),
    [
        (
            {
                "GITHUB_ACTIONS": "true",
                "GITHUB_SERVER_URL": "https://git.example",
                "GITHUB_REPOSITORY": "a/b",
                "GITHUB_RUN_ID": "7",
            },
            "GitHub Actions",
            "https://git.example/a/b/actions/runs/7",
        ),
        ({"GITLAB_CI": "true", "CI_JOB_URL": "https://lab.example/1"}, "GitLab CI", "https://lab.example/1"),
        ({"JENKINS_URL": "https://j.example", "BUILD_URL": "https://j.example/1"}, "Jenkins", "https://j.example/1"),
    ],
)
def test_executor_is_told_by_the_ci_variables(environ: dict[str, str], name: str, url: str) -> None:
    """Three services; a person's own run has none."""
    executor = executor_of(environ)
    assert (executor["name"], executor["buildUrl"]) == (name, url)
    assert executor_of({}) == {}


@pytest.mark.parametrize(
    ("status", "full_name", "details", "category"),
    [
        ("broken", "gpu/test_peer_copies.py::x", "", "Unknown: could not be observed"),
        ("failed", "gpu/test_peer_copies.py::x", "s\n  observed: a by b: hang: no end\n  expected: c", "Hang"),
        (
            "failed",
            "gpu/test_peer_copies.py::x",
            "s\n  observed: zeroed\n  expected: c\n  why: hangs",
            "Transfer corrupt",
        ),
        ("failed", "gpu/test_peer_copies.py::test_bandwidth_is_what_it_was", "", "Wrong fact"),
        ("failed", "serving/test_service_drift.py::x", "", "Drift"),
        ("failed", "serving/test_endpoint_answers.py::x", "", "Endpoint"),
        ("failed", "host/test_iommu.py::x", "", "Wrong fact"),
    ],
)
def test_trouble_has_a_category(status: str, full_name: str, details: str, category: str) -> None:
    """By the ending, the file, and what was observed."""
    assert category_of(status, full_name, details) == category


def test_check_that_disagrees_with_itself_is_flaky() -> None:
    """What repeats show in one run; what differs from run to run Allure knows by its history."""
    assert is_flaky("serving/test_endpoint_answers.py::test_repeats_are_identical")
    assert not is_flaky("gpu/test_peer_copies.py::test_copy_engine_delivers_every_byte")


def test_severity_is_the_level_of_harm() -> None:
    """Wrong results are worst, speed is least."""
    assert severity("gpu/test_peer_copies.py::test_copy_engine_delivers_every_byte") == "blocker"
    assert severity("gpu/test_peer_copies.py::test_bandwidth_is_what_it_was") == "minor"
    assert severity("host/test_iommu.py::x") == "critical"
    assert severity("host/test_units.py::x") == "normal"
