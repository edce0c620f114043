"""This repository's own set-up: markers of its tests, and a switch for CI."""

from __future__ import annotations

import pytest

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
    config.addinivalue_line("markers", "lab: needs root and the lab's Debian packages (a booted container as the host)")
    config.addinivalue_line("markers", "lab_vm: needs root and the lab's virtual machine")


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
