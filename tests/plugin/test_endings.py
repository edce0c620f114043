"""The four endings, enforced by the core: the nine ways in which peers turn unknown into pass do not work here."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_gpuinfra.inventory.inventory import Expectation
from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.plugin.conftest import run_pytest
from tests.recorded.made_host import MadeHost
from tests.recorded.reference.compose import reference_host


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Give a recording of the reference host, with nothing expected of it."""
    capture = reference_host().capture("node-a", Expectation())
    write_recording(tmp_path / "host.json", Recording({"node-a": RecordedHost({}, capture)}))
    return tmp_path / "host.json"


def outcomes(directory: Path, test: str, *arguments: str) -> tuple[dict[str, str], int, str]:
    """Run a user's own test file on the recording; gives outcomes by test name, exit status, output."""
    (directory / "test_own.py").write_text("import pytest\nimport pytest_gpuinfra\n" + test)
    ended = run_pytest(
        directory,
        "--gpu-host=replay:host.json",
        "--gpu-recording=out.json",
        "-p",
        "no:cacheprovider",
        "--junitxml=junit.xml",
        "test_own.py",
        *arguments,
    )
    results = json.loads((directory / "out.json").read_text())["results"]
    by_name = {result["id"].rpartition("::")[2].partition("[")[0]: result["outcome"] for result in results}
    return by_name, ended.returncode, ended.stdout + ended.stderr


def test_assertion_in_a_test_body_is_failed(recording: Path) -> None:
    """Observed and wrong."""
    test = "def test_it(gpu_kernel_release):\n    assert gpu_kernel_release == 'other'\n"
    ended, status, _ = outcomes(recording.parent, test)
    assert (ended, status) == ({"test_it": "failed"}, 1)


def test_our_error_in_a_test_body_is_error_and_not_failed(recording: Path) -> None:
    """A fact that turns out unreadable in the test's body could not be observed; JUnit says so too."""
    test = "def test_it(gpu_facts):\n    assert gpu_facts.answer('nobody asked') == {}\n"
    ended, status, output = outcomes(recording.parent, test)
    assert (ended, status) == ({"test_it": "error"}, 6)
    assert "1 error" in output
    assert "failed" not in output.splitlines()[-1]
    suite = ElementTree.parse(recording.parent / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")


def test_expected_failure_may_name_our_error(recording: Path) -> None:
    """`xfail(raises=...)` sees what was raised, whatever is shown of it; another error stays one."""
    test = (
        "from pytest_gpuinfra.errors import FactUnavailable, ParseError\n"
        "@pytest.mark.xfail(raises=FactUnavailable)\n"
        "def test_known(gpu_facts):\n    gpu_facts.answer('nobody asked')\n"
        "@pytest.mark.xfail(raises=ParseError)\n"
        "def test_other(gpu_facts):\n    gpu_facts.answer('nobody asked')\n"
    )
    ended, status, output = outcomes(recording.parent, test)
    assert (ended, status) == ({"test_known": "skipped", "test_other": "error"}, 6)
    assert "1 xfailed, 1 error" in output


def test_assertion_in_our_fixture_is_error(recording: Path) -> None:
    """Only a test's body may fail: an assertion in a fixture of ours, or named like ours, is an error."""
    test = (
        "@pytest.fixture\ndef gpu_own(gpu_host):\n    assert False, 'not readable'\ndef test_it(gpu_own):\n    pass\n"
    )
    ended, status, output = outcomes(recording.parent, test)
    assert (ended, status) == ({"test_it": "error"}, 6)
    assert "fixture gpu_own: not readable" in output


def test_pass_without_any_observation_is_error(recording: Path) -> None:
    """A test that asserts nothing about anything observed proves nothing."""
    ended, status, output = outcomes(recording.parent, "def test_it(gpu_host):\n    assert True\n")
    assert (ended, status) == ({"test_it": "error"}, 6)
    assert "without having observed anything" in output


def test_attached_evidence_counts_as_an_observation(recording: Path) -> None:
    """A user's own observation is one."""
    test = "def test_it(gpu_host, gpu_evidence):\n    gpu_evidence.attach('meter', '7 kW')\n"
    ended, status, _ = outcomes(recording.parent, test)
    assert (ended, status) == ({"test_it": "passed"}, 0)
    assert "7 kW" in (recording.parent / "junit.xml").read_text()


def test_zero_devices_never_pass(tmp_path: Path) -> None:
    """On a host without a GPU, a check of each GPU is skipped with its reason, and the run does not succeed by it."""
    capture = MadeHost(files=reference_host().files).capture("empty", Expectation())
    write_recording(tmp_path / "host.json", Recording({"empty": RecordedHost({}, capture)}))
    test = "def test_it(gpu_device, gpu_pci_functions):\n    assert True\n"
    ended, status, output = outcomes(tmp_path, test, "-rs")
    assert (ended, status) == ({"test_it": "skipped"}, 6)
    assert "no device is expected of empty, and no GPU was seen there" in output
    assert "nothing observed" in output


def test_expected_device_that_is_absent_is_error_for_its_checks(tmp_path: Path) -> None:
    """Expectation decides which items there are: a device that was not seen keeps its item."""
    capture = MadeHost(files=reference_host().files).capture("empty", Expectation())
    spec = {"expect": {"devices": [{"pci": ["01:00.0"]}]}}
    write_recording(tmp_path / "host.json", Recording({"empty": RecordedHost(spec, capture)}))
    test = "def test_it(gpu_pci_function):\n    assert gpu_pci_function.link_width == 16\n"
    ended, status, _ = outcomes(tmp_path, test)
    assert (ended, status) == ({"test_it": "error"}, 6)


def test_level_above_the_run_is_skipped_with_the_reason(recording: Path) -> None:
    """A passive run says which checks it left out, and why."""
    test = (
        "@pytest.mark.gpu_level('active')\ndef test_active(gpu_kernel_release):\n    pass\n"
        "def test_passive(gpu_kernel_release):\n    assert gpu_kernel_release\n"
    )
    ended, status, output = outcomes(recording.parent, test, "--gpu-level=passive", "-rs")
    assert (ended, status) == ({"test_active": "skipped", "test_passive": "passed"}, 0)
    assert "needs --gpu-level=active; this run is passive" in output


def test_command_on_a_replayed_host_is_error(recording: Path) -> None:
    """A recording answers only what it holds."""
    test = "def test_it(gpu_host):\n    assert gpu_host.run('true').exit_status == 0\n"
    ended, status, output = outcomes(recording.parent, test)
    assert (ended, status) == ({"test_it": "error"}, 6)
    assert "run against the host itself" in output


def test_test_about_two_kinds_of_thing_is_refused(recording: Path) -> None:
    """A test is about devices or about parameters, not about their product."""
    (recording.parent / "test_own.py").write_text("def test_it(gpu_device, gpu_absent_file):\n    pass\n")
    ended = run_pytest(recording.parent, "--gpu-host=replay:host.json", "--gpu-recording=none", "test_own.py")
    assert ended.returncode == 2
    assert "takes gpu_device and gpu_absent_file: a test is about one of them" in ended.stdout


def test_second_run_judges_the_same(recording: Path) -> None:
    """A fault that an earlier run has seen is seen again: nothing is remembered between runs."""
    test = "def test_it(gpu_kernel_faults):\n    assert gpu_kernel_faults.describe(('iommu',), '0000:01:00.0') == ''\n"
    assert outcomes(recording.parent, test)[:2] == outcomes(recording.parent, test)[:2] == ({"test_it": "failed"}, 1)


def test_evidence_is_in_junit_for_passes_too(recording: Path) -> None:
    """Each item carries the raw text behind it, also where it passed."""
    ended, _, _ = outcomes(recording.parent, "def test_it(gpu_kernel_release):\n    assert gpu_kernel_release\n")
    assert ended == {"test_it": "passed"}
    properties = {
        p.get("name"): p.get("value") or ""
        for p in ElementTree.parse(recording.parent / "junit.xml").getroot().iter("property")
    }
    assert properties["gpu_host"] == "node-a"
    assert "/proc/sys/kernel/osrelease: 6.14.11-4-pve" in properties["evidence: boot"]
