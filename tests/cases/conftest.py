"""The option --cases-dir, and the line "right N of M" at the end."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take another folder of cases."""
    parser.addoption("--cases-dir", metavar="DIR", help="folder with a cases.json to judge instead of our own")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many cases were judged right."""
    counts = {
        word: sum("test_case_is_judged_right" in report.nodeid for report in terminalreporter.getreports(word))
        for word in ("passed", "failed", "error")
    }
    total = sum(counts.values())
    if total:
        terminalreporter.write_line(f"right {counts['passed']} of {total}")
