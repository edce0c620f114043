"""Fixtures that give real hosts; see nspawn.py and sshd.py for what can be done with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from .fault_run import PROPERTY, Healthy, report_lines
from .nspawn import NspawnHost
from .sshd import SshdHost
from .vm import LabVm


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks of the lab's two tiers."""
    config.addinivalue_line("markers", "lab: needs root; hosts under systemd-nspawn or a bare sshd, seconds each")
    config.addinivalue_line("markers", "lab_vm: needs root; a virtual machine with an IOMMU, about a minute to boot")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs root for anybody else, before a fixture is set up."""
    if os.geteuid() != 0 and any(item.get_closest_marker(name) for name in ("lab", "lab_vm")):
        pytest.skip("the lab needs root: mounts, network namespaces, containers")


@pytest.fixture(scope="session")
def booted_lab_host() -> Iterator[NspawnHost]:
    """Boot one host under systemd-nspawn for the whole run; tests use `lab_host`."""
    with NspawnHost("lab-a") as host:
        yield host


@pytest.fixture
def lab_host(booted_lab_host: NspawnHost) -> NspawnHost:
    """A booted host with a container and a service, in the state that it has after its start."""
    booted_lab_host.reset()
    return booted_lab_host


@pytest.fixture(scope="session")
def booted_lab_vm() -> Iterator[LabVm]:
    """Boot one virtual machine for the whole run; tests use `lab_vm`."""
    with LabVm() as vm:
        yield vm


@pytest.fixture
def lab_vm(booted_lab_vm: LabVm) -> LabVm:
    """A virtual machine with an IOMMU, in the state that it has after its start."""
    booted_lab_vm.reset()
    return booted_lab_vm


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    """What the lab's hosts are judged to be while nothing is wrong with them."""
    return Healthy(tmp_path_factory.mktemp("judged"))


@pytest.fixture
def healthy_runs(request: pytest.FixtureRequest) -> int:
    """How often a healthy host is to be judged; 0 for as often as every run of the tests does it."""
    return int(request.config.getoption("--healthy-runs"))


@pytest.fixture
def sshd_host() -> Iterator[Callable[..., SshdHost]]:
    """A function that starts an `SshdHost` of a variant; all of them end with the test."""
    with ExitStack() as stack:
        yield lambda variant="normal", **options: stack.enter_context(SshdHost(variant, **options))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the fault table, where that is asked for."""
    if not terminalreporter.config.getoption("--faults-report"):
        return
    reports = [
        report
        for kind in ("passed", "failed")
        for report in terminalreporter.stats.get(kind, [])
        if report.when == "call"
    ]
    terminalreporter.section("fault table")
    for line in report_lines(
        str(value) for report in reports for name, value in report.user_properties if name == PROPERTY
    ):
        terminalreporter.write_line(line)
