"""What became of each host: the summary at the end, the exit status, and the recording."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_gpuinfra import __version__
from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError, RecordingError
from pytest_gpuinfra.fixtures.endings import OBSERVING
from pytest_gpuinfra.record.recording import Recording, write_recording
from pytest_gpuinfra.report.escaped import VisibleConsole
from pytest_gpuinfra.report.findings import EACH_DIAGNOSED, show_findings
from pytest_gpuinfra.report.host_verdict import EACH, verdict_of
from pytest_gpuinfra.report.masked import MaskedStream, masker_of
from pytest_gpuinfra.report.message import parse_message
from pytest_gpuinfra.report.pair_matrix import matrix_of
from pytest_gpuinfra.report.pair_table import pair_table
from pytest_gpuinfra.session.session import Outcome, Session
from pytest_gpuinfra.subjects.outliers import SMALLEST

if TYPE_CHECKING:
    from pytest_gpuinfra.report.change_rows import Since
    from pytest_gpuinfra.report.fleet.fleet import Fleet

NOT_JUDGED = 6
"""Exit status where nothing was seen wrong, and something could not be judged."""

_CRASHED = "???"
"""The phase that xdist names when a worker died in the middle of an item: nothing was observed by it."""

_WORKERS_END_S = 1.5
"""How long an interrupted run waits for what xdist's workers have gathered."""

_UNTIL_THE_END = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
"""Statuses of a session that was not cut short."""

_RUN_AGAIN = "see above why workers crashed or collected different items; without -n, this process runs all items"

_LISTED = 12
_PAIRS_SHOWN = 8


class ResultsPlugin:
    """Collects the outcomes on the controller, from its own items or from xdist's workers."""

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._config = config
        self._session = session
        self._begun: set[tuple[str, str]] = set()
        self._written: list[str] = []
        self._lost: set[str] = set()
        self._digest = ""
        self._name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take down how an item ended."""
        alias = next((str(value) for name, value in report.user_properties if name == "gpu_host"), None)
        if alias is None:
            return
        key = alias, report.nodeid
        outcome = self._session.outcomes.setdefault(key, Outcome(report.nodeid, alias, "passed"))
        (self._begun.add if report.when == "setup" and report.passed else self._begun.discard)(key)
        outcome.took_s += report.duration
        if report.skipped:
            outcome.outcome = "skipped"
            longrepr = report.longrepr
            outcome.message = longrepr[2].removeprefix("Skipped: ") if isinstance(longrepr, tuple) else str(longrepr)
        elif report.failed:
            unobserved = report.when in ("setup", "teardown", OBSERVING, _CRASHED)
            if outcome.outcome != "failed":
                outcome.outcome = "error" if unobserved else "failed"
            self._session.wrong.add(outcome.host)
            outcome.message = str(report.longrepr)  # longreprtext begins with the worker of xdist

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the recording, and set the exit status: silence about a host is no success."""
        if self._config.option.collectonly or not self._session.hosts:
            return
        for unfinished in self._begun:  # an item that was interrupted in its body has not ended in any way
            self._session.outcomes.pop(unfinished, None)
        self._note_what_was_not_run(session)
        self._session.exit_status = int(session.exitstatus)
        if self._session.exit_status == pytest.ExitCode.INTERRUPTED:
            self._session.handover.take_left(timeout_s=_WORKERS_END_S)
        option = self._session.settings.recording
        if option != "none":
            name = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            path = Path(option) if option else Path("reports", "recordings", f"{name}.json")
            try:
                recording = self._session.recording(__version__)
                self._digest = write_recording(
                    self._config.invocation_params.dir / path, recording, masker_of(self._session)
                )
                self._name = path.name
                self._written.append(f"recording: {path} (sha256 {self._digest[:16]})")
                self._write_before(path)
            except RecordingError as error:
                self._written.append(f"no recording: {error}")
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
                return
        try:
            self._write_reports()
        except OSError as error:
            self._written.append(f"no report: {error.filename}: {error.strerror}")
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            return
        self._set_exit_status(session)

    def _note_what_was_not_run(self, session: pytest.Session) -> None:
        """Of a run that was not cut short, make errors of the items and hosts that no worker of xdist ran."""
        scheduling = self._session.handover.scheduling
        if scheduling is None or session.exitstatus not in _UNTIL_THE_END:
            return
        lost = [(item.unit.host, item.nodeid) for item in scheduling.not_run()]
        lost += [(alias, f"items of {alias}") for alias in scheduling.not_collected()]
        if not lost:
            return
        message = str(FactUnavailable("pytest-xdist", "no worker has run this", remedy=_RUN_AGAIN))
        for alias, name in lost:
            if alias is None:
                self._written.append(f"not run: {name}")
            else:
                self._session.outcomes[alias, name] = Outcome(name, alias, "error", message)
                self._session.wrong.add(alias)
                self._lost.add(alias)
        session.testsfailed += len(lost)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write_before(self, path: Path) -> None:
        """Keep the hosts as they were before this run rebooted them, beside its recording."""
        if not self._session.baseline.before:
            return
        before = path.with_name(f"{path.stem}-before.json")
        write_recording(
            self._config.invocation_params.dir / before,
            Recording(dict(self._session.baseline.before), (), self._session.started_at, __version__),
            masker_of(self._session),
        )
        self._written.append(f"as it was before the reboot: {before}")

    def _set_exit_status(self, session: pytest.Session) -> None:
        """Tell wrong from unknown; `--gpu-unknown` says what unknown is worth."""
        if session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        by_host = self._counts()
        failed = any(counts["failed"] for counts in by_host.values())
        others = session.testsfailed - sum(c["failed"] + c["error"] for c in by_host.values())
        if failed or others > 0:
            return
        counting = self._session.settings.outliers == "fail" and len(by_host) >= SMALLEST
        if counting and self._fleet.numbers.stragglers:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            return
        nothing = any(not counts["passed"] for counts in by_host.values())
        unknown = nothing or any(counts["error"] for counts in by_host.values())
        unknown = unknown or bool(self._suspected - set(self._session.narrowed))  # a part is asked for itself
        worth = self._session.settings.unknown
        if unknown and worth == "fail":
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif nothing or self._lost or (unknown and worth == "error"):
            session.exitstatus = NOT_JUDGED
        else:
            session.exitstatus = pytest.ExitCode.OK

    def _write_reports(self) -> None:
        """Write the page, and Allure's files about the run, where they were asked for."""
        here = self._config.invocation_params.dir
        allure = self._config.getoption("allure_report_dir", None)
        if allure:
            from pytest_gpuinfra.report.allure_files import write_allure_files

            write_allure_files(here / allure, self._session, os.environ)
            if len(self._session.hosts) > 1:
                from pytest_gpuinfra.report.fleet.picture import write_fleet

                write_fleet(here / allure, self._fleet)
        files = self._session.settings.summary
        if not files:
            return
        from pytest_gpuinfra.report.page import make_page
        from pytest_gpuinfra.report.page_text import write_page

        fleet = self._fleet if len(self._session.hosts) > 1 else None
        allowed = self._session.settings.unknown == "allow"
        page = make_page(
            self._session.recording(__version__),
            self._name,
            self._digest,
            fleet=fleet,
            unknown_allowed=allowed,
            since=self._since,
        )
        for file in files:
            write_page(here / file, page, masker_of(self._session))
            self._written.append(f"summary: {file}")

    @cached_property
    def _since(self) -> dict[str, Since]:
        """What changed since the baseline, by alias; {} without one. A host that cannot be compared has none."""
        found: dict[str, Since] = {}
        if self._session.baseline.recording is None:
            return found
        from pytest_gpuinfra.report.change_rows import since_of

        for alias, host in self._session.hosts.items():
            with contextlib.suppress(GpuInfraError):
                found[alias] = since_of(self._session.baseline.compare(host, self._session.gathered.get(alias)))
        return found

    def _show_since(self, console: Console) -> None:
        """Show what changed as it was meant to; what was not meant stands among the failures."""
        for since in list(self._since.values())[:_LISTED]:
            console.print(Text(f"since the baseline: {since.headline}", "red" if since.bad else ""), soft_wrap=True)
            meant = [(name, what) for title, name, what in since.rows if title == "Expected"]
            for name, what in meant[:_LISTED]:
                console.print(Text(f"  as meant: {name}: {what}"), soft_wrap=True)
            if len(meant) > _LISTED:
                console.print(f"  and {len(meant) - _LISTED} more as meant", markup=False)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show what is wrong first, then the hosts in a table."""
        if self._config.option.collectonly or not self._session.hosts:
            return
        terminalreporter.section("GPU hosts", sep="=", bold=True)
        writer = self._config.get_terminal_writer()
        console = VisibleConsole(
            file=cast("IO[str]", MaskedStream(writer._file, masker_of(self._session))),
            width=max(80, writer.fullwidth),
            force_terminal=writer.hasmarkup,
            highlight=False,
        )
        counts = self._counts()
        many = len(self._session.hosts) > EACH
        if many:
            from pytest_gpuinfra.report.fleet.text import show_fleet, show_troubles

            show_troubles(self._fleet, console)
        for alias in () if many else self._session.hosts:
            self._list_wrong(console, alias)
        show_findings(console, self._session)
        if many:
            show_fleet(self._fleet, console)
        else:
            self._show_table(console, counts)
        if SMALLEST <= len(self._session.hosts) <= EACH:
            from pytest_gpuinfra.report.fleet.text import show_stragglers

            show_stragglers(self._fleet, console)
        self._show_pairs(console)
        self._show_since(console)
        for line in self._written:
            console.print(line, markup=False, soft_wrap=True)

    @cached_property
    def _suspected(self) -> frozenset[str]:
        """Hosts of which the diagnosis names a fault; of many hosts, among those with an item that ended badly."""
        few = len(self._session.hosts) <= EACH_DIAGNOSED
        return frozenset(
            alias
            for alias in self._session.hosts
            if (few or alias in self._session.wrong) and self._session.parsed.findings(alias)
        )

    def _show_table(self, console: Console, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Show verdict and number of items of each host."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column in ("host", "verdict"):
            table.add_column(column)
        for column in ("passed", "failed", "error", "skipped"):
            table.add_column(column, justify="right")
        allowed = self._session.settings.unknown == "allow"
        cut_short = self._session.exit_status == pytest.ExitCode.INTERRUPTED
        for alias, host in self._session.hosts.items():
            words, style = verdict_of(
                counts[alias],
                nothing_expected=host.expect.empty,
                unknown_allowed=allowed,
                cut_short=cut_short,
                narrowed=self._session.narrowed.get(alias, ""),
                suspected=alias in self._suspected,
            )
            table.add_row(
                Text(alias),
                Text(words, style),
                *(str(counts[alias][name]) for name in ("passed", "failed", "error", "skipped")),
            )
        console.print(table)

    @cached_property
    def _fleet(self) -> Fleet:
        """The hosts side by side."""
        from pytest_gpuinfra.report.fleet.fleet import make_fleet

        allowed = self._session.settings.unknown == "allow"
        return make_fleet(self._session.recording(__version__), unknown_allowed=allowed)

    def _show_pairs(self, console: Console) -> None:
        """Show the GPU pairs of each host where programs ran; of many hosts, of those that are not all right."""
        matrices = {
            alias: matrix
            for alias, host in self._session.hosts.items()
            if (matrix := matrix_of(self._session.gathered.get(alias) or host.gathered())) is not None
        }
        if len(matrices) > _PAIRS_SHOWN:
            matrices = {alias: matrix for alias, matrix in matrices.items() if matrix.seen_right < matrix.pairs}
        for alias, matrix in list(matrices.items())[:_PAIRS_SHOWN]:
            console.print(pair_table(matrix, alias, console))
        if len(matrices) > _PAIRS_SHOWN:
            console.print(f"and the GPU pairs of {len(matrices) - _PAIRS_SHOWN} more hosts, in the reports")

    def _counts(self) -> dict[str, Counter[str]]:
        counts: dict[str, Counter[str]] = {alias: Counter() for alias in self._session.hosts}
        for outcome in self._session.outcomes.values():
            counts[outcome.host][outcome.outcome] += 1
        return counts

    def _list_wrong(self, console: Console, alias: str) -> None:
        outcomes = [outcome for outcome in self._session.outcomes.values() if outcome.host == alias]
        wrong = [o for o in outcomes if o.outcome == "failed"] + [o for o in outcomes if o.outcome == "error"]
        groups: dict[tuple[str, str], list[str]] = {}
        for outcome in wrong:
            groups.setdefault((outcome.outcome, parse_message(outcome.message, outcome.id).brief), []).append(
                outcome.id
            )
        for (kind, brief), ids in list(groups.items())[:_LISTED]:
            word, style = ("FAILED", "red") if kind == "failed" else ("ERROR ", "yellow")
            times = f" ({len(ids)} checks)" if len(ids) > 1 else ""
            console.print(Text(word, style) + Text(f" {brief}{times}"), soft_wrap=True)
        if len(groups) > _LISTED:
            console.print(f"  and {len(groups) - _LISTED} more of {alias}, above", markup=False)
