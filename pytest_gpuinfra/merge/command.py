"""`gpuinfra merge`: reads a folder of runs, shows them as one, writes the reports that were asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from pytest_gpuinfra.capture.spool import Spool
from pytest_gpuinfra.errors import InventoryError
from pytest_gpuinfra.input_file import read_text
from pytest_gpuinfra.inventory.inventory import read_inventory
from pytest_gpuinfra.inventory.names.hostlist import expand
from pytest_gpuinfra.merge.merge import Merged, merge_folder
from pytest_gpuinfra.merge.reports import write_allure, write_junit
from pytest_gpuinfra.record.recording import Recording, write_recording
from pytest_gpuinfra.report.escaped import VisibleConsole, readable
from pytest_gpuinfra.report.fleet.fleet import Fleet, make_fleet
from pytest_gpuinfra.report.fleet.text import show_fleet, show_troubles
from pytest_gpuinfra.report.page import make_page
from pytest_gpuinfra.report.page_text import write_page

NOT_JUDGED = 6
"""Exit status where nothing was seen wrong, and something could not be judged; as pytest's here."""


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """
    What the command line says.

    Attributes:
        expect_hosts: Hostlists of nodes that must have reported.
        expect_file: Files that hold them, one a line.
        inventory: Inventory all of whose hosts must have reported; None for none.
        output: Pages to write, by their endings.
        alluredir, junitxml, recording: Reports to write; None for none.
        outliers: "report" or "fail".
        unknown: "error", "fail" or "allow".
        controller: Globs over names of places whose runs judged several hosts from outside.
    """

    expect_hosts: tuple[str, ...] = ()
    expect_file: tuple[str, ...] = ()
    inventory: str | None = None
    output: tuple[str, ...] = ()
    alluredir: str | None = None
    junitxml: str | None = None
    recording: str | None = None
    outliers: str = "report"
    unknown: str = "error"
    controller: tuple[str, ...] = ()

    @property
    def written(self) -> list[Path]:
        """Everything that this command writes, so that it never takes it for a node's."""
        names = (*self.output, self.alluredir, self.junitxml, self.recording)
        return [Path(name) for name in names if name]


def run_merge(folder: str, options: MergeOptions, console: Console | None = None) -> int:
    """
    Merge, show and write.

    Returns:
        Exit status: 0, 1 or 6.

    Raises:
        RecordingError, InventoryError: The folder, a hostlist or an inventory cannot be used.
        OSError: A report cannot be written.
    """
    console = console or VisibleConsole(highlight=False)
    spool = Spool()
    try:
        return _run(folder, options, console, spool)
    finally:
        spool.close()


def _run(folder: str, options: MergeOptions, console: Console, spool: Spool) -> int:
    expected = list(dict.fromkeys(_expected(options)))
    merged = merge_folder(
        Path(folder), expected, leave_out=options.written, spool=spool, controllers=options.controller
    )
    fleet = make_fleet(merged.recording, unknown_allowed=options.unknown == "allow")
    lines = _write(merged, fleet, options)
    show_troubles(fleet, console)
    show_fleet(fleet, console)
    for line in (*merged.notes, *lines):
        console.print(readable(line), markup=False, soft_wrap=True)
    return exit_status(merged.recording, fleet.numbers.stragglers, options.outliers, options.unknown)


def exit_status(recording: Recording, stragglers: Sequence[str], outliers: str, unknown: str) -> int:
    """Tell wrong from unknown, as a run of pytest does."""
    counts: dict[str, Counter[str]] = {alias: Counter() for alias in recording.hosts}
    for result in recording.results:
        counts[result["host"]][result["outcome"]] += 1
    if any(count["failed"] for count in counts.values()) or (outliers == "fail" and stragglers):
        return 1
    nothing = any(not count["passed"] for count in counts.values())
    if not nothing and not any(count["error"] for count in counts.values()):
        return 0
    if unknown == "fail":
        return 1
    return NOT_JUDGED if nothing or unknown == "error" else 0


def _expected(options: MergeOptions) -> Iterator[str]:
    for hostlist in options.expect_hosts:
        yield from expand(hostlist, f"--expect-hosts={hostlist}")
    for file in options.expect_file:
        lines = read_text(Path(file), InventoryError, remedy="see --expect-file").split()
        if not lines:
            raise InventoryError(
                f"--expect-file={file}: names no host", remedy="write it with `scontrol show hostnames` in the job"
            )
        for line in lines:
            yield from expand(line, f"--expect-file={file}")
    if options.inventory:
        yield from read_inventory(Path(options.inventory)).hosts


def _write(merged: Merged, fleet: Fleet, options: MergeOptions) -> list[str]:
    lines = []
    digest, name = "", ""
    if options.recording:
        path = Path(options.recording)
        digest, name = write_recording(path, merged.recording), path.name
        lines.append(f"recording: {path} (sha256 {digest[:16]})")
    if options.junitxml:
        write_junit(Path(options.junitxml), merged)
        lines.append(f"JUnit: {options.junitxml}")
    if options.alluredir:
        count = write_allure(Path(options.alluredir), merged, fleet if fleet.size > 1 else None)
        lines.append(f"Allure: {options.alluredir}, {count} results")
    if options.output:
        allowed = options.unknown == "allow"
        page = make_page(merged.recording, name, digest, fleet=fleet, unknown_allowed=allowed)
        for file in options.output:
            write_page(Path(file), page)
            lines.append(f"summary: {file}")
    return lines
