"""The option --cases-dir, and at the end how many cases are right, by topic, and which are not."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take another folder of cases."""
    parser.addoption("--cases-dir", metavar="DIR", help="folder with a cases.json to judge instead of our own")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many cases were judged right; one that is known to end otherwise is not."""
    right, wrong, lines = Counter[str](), Counter[str](), list[str]()
    for word in ("passed", "failed", "error", "xfailed", "xpassed"):
        for report in terminalreporter.getreports(word):
            if "test_case_is_judged_right[" not in report.nodeid:
                continue
            case, _, topic = report.nodeid.rpartition("[")[2].rstrip("]").partition("-")
            (right if word == "passed" else wrong)[topic] += 1
            if word != "passed":
                lines.append(f"  {case} {topic}: {getattr(report, 'wasxfail', '') or _first_line(report)}")
    total = right.total() + wrong.total()
    if total:
        for topic in sorted({*right, *wrong}):
            terminalreporter.write_line(f"{topic}: {right[topic]} of {right[topic] + wrong[topic]}")
        terminalreporter.write_line("\n".join(["wrong:", *lines] if lines else ["none is wrong"]))
        terminalreporter.write_line(f"right {right.total()} of {total}")


def _first_line(report: pytest.TestReport) -> str:
    message = getattr(getattr(report.longrepr, "reprcrash", None), "message", str(report.longrepr))
    return str(message).splitlines()[0][:300]
