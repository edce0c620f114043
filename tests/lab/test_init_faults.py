"""An inventory that `gpuinfra init` wrote from the healthy host: true there, and what it sees of the fault table."""

from __future__ import annotations

import dataclasses
import re

import pytest
from click.testing import CliRunner

from pytest_gpuinfra.cli import main
from pytest_gpuinfra.connection.ssh import SshConnection
from pytest_gpuinfra.host.capture import capture_host
from pytest_gpuinfra.inventory.inventory import read_inventory
from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.plugin.conftest import Judged, judge_recording

from .faults import HOST_UNITS, KERNEL_LOG, MADE_DEVICES, Fault, do, matches
from .judge import SUITES
from .nspawn import NspawnHost
from .proofs import HOST, wait_until_held

pytestmark = pytest.mark.lab
FAULTS = (*HOST_UNITS, *MADE_DEVICES, *KERNEL_LOG[:2])
NOT_COVERED = {
    "file of an experiment is back": "init cannot know which files must not be there",
}
"""Rows that pass by the written inventory, and why it cannot be otherwise."""

# Left out are rows for which the inventory is of no account: a host that cannot be reached (`REACHING`) is ERROR by
# any, and the kernel's log (`KERNEL_LOG`, of which two rows stand for all) is judged without one.


def name_of(fault: Fault) -> str:
    """Make a host's alias of a row."""
    return re.sub(r"[^a-z0-9]+", "-", fault.name.lower()).strip("-")


@pytest.fixture(scope="module")
def judged(booted_lab_host: NspawnHost, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Write the inventory, bring about each fault, take one capture of it, and judge all of them in one run."""
    host, folder = booted_lab_host, tmp_path_factory.mktemp("init")
    host.reset()
    written = CliRunner().invoke(
        main,
        [
            *("init", f"--gpu-host={host.destination}", "--alias=lab", f"--gpu-ssh-config={host.ssh_config}"),
            *("-o", str(folder / "first.toml")),
        ],
    )
    assert written.exit_code == 0, written.output
    spec = read_inventory(folder / "first.toml").hosts["lab"]
    declared = spec.model_dump(mode="json", exclude_defaults=True)
    recorded = {}
    for fault in (None, *FAULTS):
        user, arguments = (fault.user, fault.arguments) if fault else ("root", ())
        connection = SshConnection(
            "lab", f"{user}@{host.address}", config=str(host.ssh_config), sudo="--gpu-sudo" in arguments
        )
        if fault:
            host.reset()
            do(fault.prepare, host)
        try:
            do(fault.inject if fault else None, host)
            if fault:
                wait_until_held(fault.name, HOST[fault.name], host)
            capture = capture_host(connection, spec, [], reached_by="lab", timeout_s=30.0)
        finally:
            connection.close()
            do(fault.undo if fault else None, host)
        alias = name_of(fault) if fault else "healthy"
        recorded[alias] = RecordedHost(declared, dataclasses.replace(capture, alias=alias))
    write_recording(folder / "faults.json", Recording(recorded))
    return judge_recording(folder, "faults.json", str(SUITES / "host"))


def test_inventory_is_true_on_the_host_that_it_was_written_from(judged: Judged) -> None:
    """Nothing fails, nothing is unknown; devices, driver, command line and units are expected."""
    healthy = judged.of_host("healthy")
    assert healthy.ended("failed", "error") == []
    passed = {name.partition("[")[0] for name in healthy.ended("passed")}
    assert {
        "test_device_is_bound_to_the_expected_driver",
        "test_iommu_group_type_is_the_expected_one",
        "test_link_is_capable_of_the_expected_speed",
        "test_kernel_command_line_has_the_parameter",
        "test_driver_version_is_the_expected_one",
        "test_unit_is_in_the_expected_state",
    } <= passed


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_seen_by_the_written_inventory(fault: Fault, judged: Judged) -> None:
    """What the row says fails, or cannot be observed; nothing else does; harmless rows and those not covered pass."""
    seen = judged.of_host(name_of(fault))
    wrong, unknown = seen.ended("failed"), seen.ended("error")
    if fault.name in NOT_COVERED:
        assert (wrong, unknown) == ([], []), NOT_COVERED[fault.name]
        return
    for pattern in fault.fails:
        assert [item for item in wrong if matches(pattern, item)], (pattern, wrong, unknown)
    for pattern in fault.errors:
        assert [item for item in unknown if matches(pattern, item)], (pattern, wrong, unknown)
    assert [item for item in wrong if not any(matches(pattern, item) for pattern in fault.fails)] == []
    assert [item for item in unknown if not any(matches(pattern, item) for pattern in fault.errors)] == []


def test_rows_that_are_not_covered_exist() -> None:
    """A row that is renamed, or covered since, is taken off the list."""
    assert set(NOT_COVERED) <= {fault.name for fault in FAULTS}
