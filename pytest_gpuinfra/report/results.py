"""What became of each host: the summary at the end, the exit status, and the recording."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_gpuinfra import __version__
from pytest_gpuinfra.diagnosis_text import show_findings
from pytest_gpuinfra.endings import OBSERVING
from pytest_gpuinfra.errors import RecordingError
from pytest_gpuinfra.host import GpuHost
from pytest_gpuinfra.run import Outcome, Run

NOT_JUDGED = 6
"""Exit status where nothing was seen wrong, and something could not be judged."""

_LISTED = 12


def verdict(host: GpuHost, counts: Counter[str]) -> tuple[str, str]:
    """
    Put a host's outcomes into words.

    Returns:
        The verdict, and its style.
    """
    if counts["failed"]:
        return "must not take traffic", "bold red"
    if counts["error"]:
        return "could not be judged", "bold yellow"
    if not counts["passed"]:
        return "nothing observed", "bold yellow"
    if host.expect.empty:
        return "nothing wrong seen, nothing expected", "green"
    return "may take traffic", "bold green"


class ResultsPlugin:
    """Collects the outcomes on the controller, from its own items or from xdist's workers."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self._config = config
        self._run = run
        self._written = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take down how an item ended."""
        alias = next((str(value) for name, value in report.user_properties if name == "gpu_host"), None)
        outcome = self._run.outcomes.get(report.nodeid)
        if outcome is None:
            if alias is None:
                return
            outcome = self._run.outcomes[report.nodeid] = Outcome(report.nodeid, alias, "passed")
        outcome.took_s += report.duration
        if report.skipped:
            outcome.outcome = "skipped"
            longrepr = report.longrepr
            outcome.message = longrepr[2].removeprefix("Skipped: ") if isinstance(longrepr, tuple) else str(longrepr)
        elif report.failed:
            unobserved = report.when in ("setup", "teardown", OBSERVING)
            if outcome.outcome != "failed":
                outcome.outcome = "error" if unobserved else "failed"
            outcome.message = report.longreprtext

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the recording, and set the exit status: silence about a host is no success."""
        if self._config.option.collectonly or not self._run.hosts:
            return
        option = self._config.getoption("--gpu-recording")
        if option != "none":
            name = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            path = Path(option) if option else Path("reports", "recordings", f"{name}.json")
            try:
                digest = self._run.write_recording(self._config.invocation_params.dir / path, __version__)
                self._written = f"recording: {path} (sha256 {digest[:16]})"
            except RecordingError as error:
                self._written = f"no recording: {error}"
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
                return
        by_host = self._counts()
        failed = any(counts["failed"] for counts in by_host.values())
        unknown = any(counts["error"] or not counts["passed"] for counts in by_host.values())
        others = session.testsfailed - sum(c["failed"] + c["error"] for c in by_host.values())
        if failed or others > 0:
            return
        if unknown and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            session.exitstatus = NOT_JUDGED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show what is wrong first, then the hosts in a table."""
        if self._config.option.collectonly or not self._run.hosts:
            return
        terminalreporter.section("GPU hosts", sep="=", bold=True)
        writer = self._config.get_terminal_writer()
        console = Console(
            file=writer._file,
            width=max(80, writer.fullwidth),
            force_terminal=writer.hasmarkup,
            highlight=False,
        )
        counts = self._counts()
        for alias in self._run.hosts:
            self._list_wrong(console, alias)
        show_findings(console, self._run)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column in ("host", "verdict"):
            table.add_column(column)
        for column in ("passed", "failed", "error", "skipped"):
            table.add_column(column, justify="right")
        for alias, host in self._run.hosts.items():
            words, style = verdict(host, counts[alias])
            table.add_row(
                Text(alias),
                Text(words, style),
                *(str(counts[alias][name]) for name in ("passed", "failed", "error", "skipped")),
            )
        console.print(table)
        if self._written:
            console.print(self._written, markup=False)

    def _counts(self) -> dict[str, Counter[str]]:
        counts: dict[str, Counter[str]] = {alias: Counter() for alias in self._run.hosts}
        for outcome in self._run.outcomes.values():
            counts[outcome.host][outcome.outcome] += 1
        return counts

    def _list_wrong(self, console: Console, alias: str) -> None:
        outcomes = [outcome for outcome in self._run.outcomes.values() if outcome.host == alias]
        wrong = [o for o in outcomes if o.outcome == "failed"] + [o for o in outcomes if o.outcome == "error"]
        groups: dict[tuple[str, str], list[str]] = {}
        for outcome in wrong:
            groups.setdefault((outcome.outcome, _brief(outcome)), []).append(outcome.id)
        for (kind, brief), ids in list(groups.items())[:_LISTED]:
            word, style = ("FAILED", "red") if kind == "failed" else ("ERROR ", "yellow")
            times = f" ({len(ids)} checks)" if len(ids) > 1 else ""
            console.print(Text(word, style) + Text(f" {brief}{times}"), soft_wrap=True)
        if len(groups) > _LISTED:
            console.print(f"  and {len(groups) - _LISTED} more of {alias}, above", markup=False)


def _brief(outcome: Outcome) -> str:
    """Give an item's message in one line: subject, observed, expected."""
    lines = outcome.message.splitlines() or [outcome.id]
    values: dict[str, str] = {}
    for line in lines[1:]:
        key, sign, value = line.strip().partition(": ")
        if sign and key in ("observed", "expected"):
            values.setdefault(key, value)
    if len(values) == 2:
        return f"{lines[0]}: {values['observed']}, expected {values['expected']}"
    crash = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    return crash[0] if crash else lines[0]
