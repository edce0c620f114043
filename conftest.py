"""This repository's own set-up: markers of its tests, and a switch for CI."""

from __future__ import annotations

import signal

import pytest

LAB = ("tests/plugin/test_ssh.py",)
"""Files outside of tests/lab that start the lab's hosts; those in it say so by their own marks."""
SLOW = (
    "tests/plugin/",
    "tests/cases/test_reporting.py",
    "tests/endpoint/test_embedded.py",
    "tests/endpoint/test_tiny_model.py",
    "tests/endpoint/test_transformers_serve.py",
    "tests/endpoint/test_vllm.py",
    "tests/gpu/test_hosts_program.py",
    "tests/gpu/test_interposer.py",
    "tests/gpu/test_program_ends.py",
    "tests/gpu/test_torch_program.py",
    "tests/gpu/test_verdicts_over_sham.py",
    "tests/lab/test_ci_recipes.py",
    "tests/net/",
    "tests/report/test_after_a_change.py",
    "tests/report/test_allure.py",
    "tests/report/test_docs.py",
    "tests/report/test_exit_statuses.py",
    "tests/report/test_fixture_examples.py",
    "tests/report/test_fleet_view.py",
    "tests/report/test_masking.py",
    "tests/report/test_merge.py",
    "tests/unit/test_diagnosis.py::test_reading_that_is_",
    "tests/unit/test_facts_fuzz.py",
    "tests/unit/test_naming.py::test_ansible_",
    "tests/unit/test_naming.py::test_slip_in_an_ansible_inventory_is_named",
)
"""What starts pytest, engines, ranks or other programs, or draws hundreds of examples: not part of the inner loop."""
NEVER_SKIPPED = ("tests/lab/", "tests/endpoint/", "tests/plugin/test_ssh.py", "tests/plugin/test_endpoint.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch for CI, and what the lab's tests take."""
    parser.addoption(
        "--nothing-skipped",
        action="store_true",
        help="tests of this repository: end with an error if a test on the lab's hosts or on an endpoint was skipped",
    )
    parser.addoption(
        "--faults-report",
        action="store_true",
        help="tests/lab: print each fault, the items expected to see it, and the items that did",
    )
    parser.addoption(
        "--healthy-runs",
        type=int,
        default=0,
        metavar="N",
        help="tests/lab: judge each healthy host N times (default: 3 times, the virtual machine once)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare what the tests are marked with."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job: what tests start would ignore it, too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "lab: needs root and the lab's Debian packages (a booted container as the host)")
    config.addinivalue_line("markers", "lab_vm: needs root and the lab's virtual machine")
    config.addinivalue_line("markers", "slow: starts other programs, or draws many examples; no part of the inner loop")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this repository's tests by where they are, and keep those that share the lab's hosts in one worker."""
    for item in items:
        if item.nodeid.startswith(LAB) or item.get_closest_marker("lab_vm"):
            item.add_marker("lab")
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")
        if item.get_closest_marker("lab"):
            item.add_marker(pytest.mark.xdist_group("lab"))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Make a skipped test of the lab or of endpoints an error, where that is asked for."""
    if not session.config.getoption("--nothing-skipped", False):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", ()) if reporter else ()
    skipped = sum(report.nodeid.startswith(NEVER_SKIPPED) for report in reports)
    if reporter and skipped and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(
            f"\n{skipped} tests of the lab or of endpoints were skipped, and --nothing-skipped was asked for", red=True
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
