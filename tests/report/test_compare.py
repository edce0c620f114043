"""What changed between two recordings, and what that is worth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.cli import main
from pytest_gpuinfra.inventory.inventory import Expectation
from pytest_gpuinfra.record.compare import Comparison, compare, item_key, join
from pytest_gpuinfra.record.recording import RecordedHost, Recording, read_recording, write_recording
from pytest_gpuinfra.report.change_rows import group
from tests.recorded.made_host import MadeHost
from tests.recorded.reference.compose import reference_host
from tests.report.made import REFERENCE, gathered, lines, machine

TWO = ["00:06.0", "00:07.0"]


def captured(host: MadeHost) -> Capture:
    """Read a made host."""
    return host.capture("node-a", Expectation())


@pytest.fixture(scope="module")
def reference() -> Capture:
    """Give the reference host, in translation mode."""
    return captured(reference_host())


@pytest.fixture(scope="module")
def passthrough() -> Capture:
    """Give the same host after a boot into pass-through, with another driver and one GPU on vfio-pci."""
    host = reference_host()
    files = dict(host.files)
    files["/proc/sys/kernel/random/boot_id"] = "6c0f0b7e-8a3e-4a2b-9c56-3f1f6f0d7a11\n"
    files["/proc/cmdline"] = files["/proc/cmdline"].strip() + " iommu=pt\n"
    files["/proc/driver/nvidia/version"] = files["/proc/driver/nvidia/version"].replace("580.95.05", "580.105.08")
    functions = [
        replace(function, driver="vfio-pci") if function.address == "0000:71:00.0" else function
        for function in host.functions
    ]
    types = {40 + number: "identity" for number in range(8)}
    return captured(replace(host, files=files, functions=functions, group_types=types))


def recording(capture: Capture, cuda: list[str] | None = None, results: Sequence[dict[str, Any]] = ()) -> Recording:
    """Make a recording of one host."""
    return Recording({"node-a": RecordedHost({}, capture, gathered(cuda) if cuda else {})}, results, "2026", "0")


def result(name: str, outcome: str, message: str = "", folder: str = "suites/host") -> dict[str, Any]:
    """Give one result."""
    return {"id": f"{folder}/test_x.py::{name}", "host": "node-a", "outcome": outcome, "message": message, "took_s": 0}


def names(comparison: Comparison, weight: str) -> list[str]:
    """Give the names of the changes of one weight."""
    return [change.name for host in comparison.hosts for change in host.changes if change.weight == weight]


def test_same_recording_has_no_change(reference: Capture) -> None:
    """Nothing that comes and goes is taken for a change."""
    found = compare(recording(reference, lines("cuda")), recording(reference, lines("cuda")))
    assert (found.hosts[0].changes, found.hosts[0].boot_changed) == ((), False)
    assert found.hosts[0].same > 130


def test_change_of_the_mode_shows_exactly_what_changed(reference: Capture, passthrough: Capture) -> None:
    """Command line, group types, driver and binding; the boot id alone is expected."""
    found = compare(recording(reference), recording(passthrough))
    assert names(found, "expected") == ["boot/boot id"]
    regressions = names(found, "regression")
    assert "command line/iommu" in regressions
    assert "driver/version" in regressions
    assert "pci/71:00.0/bound to" in regressions
    assert len([name for name in regressions if name.endswith("/group type")]) == 8
    assert len(regressions) == 11
    assert found.hosts[0].boot_changed is True


def test_allowed_changes_are_expected(reference: Capture, passthrough: Capture) -> None:
    """Globs over names, with the new value where only that was meant; a pattern that allowed nothing is told."""
    allow = ["iommu/*/group type=identity", "node-a:command line/iommu=pt", "driver/version=580.105.*", "unit/*"]
    found = compare(recording(reference), recording(passthrough), allow=allow)
    assert names(found, "regression") == ["pci/71:00.0/bound to"]
    assert found.unused == ("unit/*",)
    other = compare(recording(reference), recording(passthrough), allow=["command line/iommu=off"])
    assert "command line/iommu" in names(other, "regression")


def test_corrupt_pair_and_slower_numbers_are_regressions() -> None:
    """A pair that was right and is wrong, and a bandwidth that fell by more than noise; the way back is better."""
    capture = captured(machine(TWO))
    right, wrong = recording(capture, lines("cuda")), recording(capture, lines("fault-never-written-one-pair"))
    assert "pair/00:06.0 to 00:07.0/copy engine" in names(compare(right, wrong), "regression")
    back = compare(wrong, right)
    assert "pair/00:06.0 to 00:07.0/copy engine" in names(back, "better")
    slow = []
    for line in lines("cuda"):
        event = json.loads(line)
        if event.get("gb_s"):
            event["gb_s"] *= 0.8
        slow.append(json.dumps(event))
    slower = names(compare(right, recording(capture, slow)), "regression")
    assert slower
    assert all(name.endswith("GB/s") for name in slower)
    assert names(compare(right, recording(capture, slow), noise=0.25), "regression") == []


def test_fact_that_cannot_be_observed_any_more_is_a_regression(reference: Capture) -> None:
    """Unknown is no "unchanged"; it is said once, not once for each fact."""
    answers = {name: value for name, value in reference.answers.items() if name != "iommu_groups"}
    found = compare(recording(reference), recording(replace(reference, answers=answers)))
    assert names(found, "regression") == ["iommu"]
    lost = replace(reference, answers={}, error=("UnreachableError", "node-a: no route", "ping it"))
    found = compare(recording(reference), recording(lost))
    assert names(found, "regression") == ["host"]
    assert compare(recording(lost), recording(reference)).regressions == ()


def test_endings_are_compared_whatever_the_working_directory(reference: Capture) -> None:
    """Worse is a regression, better is better, and a check that is not judged any more is a regression."""
    before = [result("a[node-a-1]", "passed"), result("b[node-a]", "failed"), result("c[node-a]", "passed")]
    after = [
        result("a[node-a-1]", "failed", "it broke", "../elsewhere/suites/host"),
        result("b[node-a]", "passed", "", "../elsewhere/suites/host"),
    ]
    found = compare(recording(reference, None, before), recording(reference, None, after))
    assert names(found, "regression") == ["host/test_x.py::a[1]", "host/test_x.py::c"]
    assert names(found, "better") == ["host/test_x.py::b"]
    assert item_key("/usr/lib/suites/host/test_x.py::a[node-a~x]", "node-a") == "host/test_x.py::a[x]"


def test_host_that_is_missing_is_a_regression(reference: Capture) -> None:
    """A host that was recorded before and is not now; a new one is none."""
    both = Recording({"node-a": RecordedHost({}, reference), "node-b": RecordedHost({}, reference)})
    one = Recording({"node-a": RecordedHost({}, reference)})
    assert [change.host for change in compare(both, one).regressions] == ["node-b"]
    assert compare(one, both).regressions == ()


def test_folder_counts_the_newest_of_each_host(reference: Capture, passthrough: Capture) -> None:
    """Recordings of a folder are joined."""
    old = Recording({"node-a": RecordedHost({}, reference), "b": RecordedHost({}, reference)}, (), "2026-01")
    new = Recording({"node-a": RecordedHost({}, passthrough)}, (), "2026-02")
    joined = join([new, old])
    assert (joined.hosts["node-a"].capture, joined.started_at) == (passthrough, "2026-02")
    assert list(joined.hosts) == ["node-a", "b"]


def test_command_line_tells_by_its_exit_status(tmp_path: Path, reference: Capture, passthrough: Capture) -> None:
    """0 without a regression, 1 with one, 2 for what cannot be read; four formats."""
    for folder, capture in (("before", reference), ("after", passthrough)):
        write_recording(tmp_path / folder / "one.json", recording(capture))
    before, after = str(tmp_path / "before"), str(tmp_path / "after" / "one.json")
    ended = CliRunner().invoke(main, ["compare", before, after])
    assert ended.exit_code == 1
    assert "unexpected: command line/iommu: absent -> pt" in ended.output
    assert "iommu/.../group type of 01:00.0, 11:00.0" in ended.output
    allow = ["--allow=iommu/*", "--allow=command line/iommu=pt", "--allow=driver/*", "--allow=pci/*"]
    assert CliRunner().invoke(main, ["compare", before, after, *allow]).exit_code == 0
    assert CliRunner().invoke(main, ["compare", before, str(tmp_path / "nothing.json")]).exit_code == 2
    data = json.loads(CliRunner().invoke(main, ["compare", before, after, "--format=json"]).output)
    assert (data["regressions"], data["hosts"][0]["boot_changed"]) == (11, True)
    for name, beginning in (("c.md", "# Before and after"), ("c.html", "<!doctype html>")):
        CliRunner().invoke(main, ["compare", before, after, "-o", str(tmp_path / name)])
        assert (tmp_path / name).read_text().startswith(beginning)


def test_same_change_of_many_things_is_one_row(reference: Capture, passthrough: Capture) -> None:
    """Eight group types are one line, with the addresses."""
    changes = compare(recording(reference), recording(passthrough)).hosts[0].of("regression")
    rows = group(changes)
    assert len(rows) == 4
    assert (
        "iommu/.../group type of 01:00.0, 11:00.0, 61:00.0, 71:00.0, 81:00.0, 91:00.0 and 2 more",
        "DMA-FQ -> identity",
    ) in rows


def test_text_of_a_unit_is_compared_line_by_line() -> None:
    """The reference host's service with another unit file: the lines that differ are told, and nothing else."""
    host = read_recording(REFERENCE).hosts["node-a"]
    text = json.dumps(host.capture.to_json())
    assert "Restart=" in text
    changed = replace(host.capture, answers=json.loads(text.replace("Restart=", "Restart2="))["answers"])
    before, after = (Recording({"node-a": replace(host, capture=capture)}) for capture in (host.capture, changed))
    (change,) = [c for c in compare(before, after).regressions if "/text of " in c.name]
    assert (change.before or "").endswith(" lines")
    assert change.note.startswith("-Restart=")
    assert "; +Restart2=" in change.note
