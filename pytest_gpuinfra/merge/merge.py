"""
Many runs made one: the recordings that nodes wrote into a shared folder, and those that should be there and are not.

A node that was to report and did not is ERROR, and so is one whose files are unfinished, contradict each other, or come
from two boots: what is wrong with one node never keeps the others from being merged.

Layout: FOLDER/NODE/... for each node (any file names), or FOLDER/NODE.json. A recording is found by its content, JUnit
by its root element, Allure's results by their names. The alias "local" becomes NODE. Folders named "merged" are
passed over.

Whoever may write FOLDER/NODE speaks for NODE and for nobody else, but for places that are named as controllers, whose
runs judged others. What two speak for is ERROR. Links are not followed, so that no other file is drawn in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.capture.spool import Spool
from pytest_gpuinfra.errors import RecordingError
from pytest_gpuinfra.merge.checks import (
    AGAIN,
    Trouble,
    Troubles,
    check_boots,
    check_expected,
    check_whole,
    own_reports,
    settle,
)
from pytest_gpuinfra.merge.files import FoundFiles, find_files
from pytest_gpuinfra.merge.node import NodeReport, read_reports
from pytest_gpuinfra.record.recording import RecordedHost, Recording, read_recording


@dataclass(frozen=True, slots=True)
class Merged:
    """
    The runs as one.

    Attributes:
        recording: All hosts, in the order of the expected ones, then as found; with an item for each trouble.
        troubles: What keeps reports from being whole.
        notes: What a reader should know beside it, one line each.
        files: Where JUnit and Allure results are.
        speakers: Name of the place that speaks for a host, by alias; a host for which several do is not in it.
    """

    recording: Recording
    troubles: tuple[Trouble, ...]
    notes: tuple[str, ...]
    files: FoundFiles
    speakers: Mapping[str, str]


def merge_folder(
    folder: Path,
    expected: Sequence[str] = (),
    *,
    leave_out: Iterable[Path] = (),
    spool: Spool | None = None,
    controllers: Sequence[str] = (),
) -> Merged:
    """
    Merge the runs of a folder.

    Args:
        folder: Where the nodes wrote their files.
        expected: Aliases of all nodes that should have reported; () if nobody knows.
        leave_out: Files and folders that an earlier merge wrote.
        spool: Keeps what hosts answered out of memory; None to keep it there.
        controllers: Globs over names of places whose runs judged several hosts from outside.

    Raises:
        RecordingError: There is no such folder, or it holds no run and nothing was expected.
    """
    if not folder.is_dir():
        raise RecordingError(f"{folder}: no such folder", remedy="name the folder that the nodes' runs were written to")
    folder = folder.resolve()
    files = find_files(folder, leave_out)
    troubles = Troubles()
    reports = _read(folder, files, troubles, spool, controllers)
    if not reports and not troubles.all and not expected:
        raise RecordingError(
            f"{folder}: no recording is in there, and no node was expected",
            remedy="let every node write --gpu-recording=FOLDER/NODE/recording.json; name the nodes by --expect-hosts",
        )
    told = {report.place for found in reports.values() for report in found}
    kept = [settle(node, found, troubles) for node, found in reports.items()]
    check_boots(kept, troubles)
    beside = {failure.place for failure in files.failures}
    for report in kept:
        check_whole(report, troubles, beside)
    check_expected(
        expected, kept, {place: names for place, names in files.places.items() if place not in told}, troubles
    )
    speakers = {report.node: report.place for report in kept if not report.contested}
    recording = _recording(kept, expected, files, troubles)
    return Merged(recording, troubles.all, (*files.notes, *troubles.notes), files, speakers)


def _read(
    folder: Path, files: FoundFiles, troubles: Troubles, spool: Spool | None, controllers: Sequence[str]
) -> dict[str, list[NodeReport]]:
    """Read the recordings, by node; what one place says of another's host is left out, and named."""
    reports: dict[str, list[NodeReport]] = {}
    for path, node in files.recordings:
        try:
            for report in read_reports(read_recording(path), path, node, spool):
                if own_reports(report, troubles, controllers):
                    reports.setdefault(report.node, []).append(report)
        except RecordingError as error:
            reason = error.reason.removeprefix(f"{path}: ")
            if reason.startswith("not a recording"):
                troubles.notes.append(f"{path.relative_to(folder)}: not a recording, left out")
                continue
            troubles.add(node, "file whole", f"{path.relative_to(folder)}: {reason}", AGAIN)
    for path, node, reason in files.broken:
        troubles.add(node, "file whole", f"{path.relative_to(folder)}: {reason}", AGAIN)
    return reports


def _recording(kept: Sequence[NodeReport], expected: Sequence[str], files: FoundFiles, troubles: Troubles) -> Recording:
    """Join them; what failed in a run and is about no host counts as that node's, as all of a lost recording does."""
    by_node = {report.node: report for report in kept}
    by_place = {report.place: report.node for report in reversed(kept)}
    hosts: dict[str, RecordedHost] = {}
    results: list[Mapping[str, Any]] = []
    for node in dict.fromkeys([*expected, *by_node, *(trouble.node for trouble in troubles.all)]):
        report = by_node.get(node)
        own = troubles.of(node)
        if report is None:
            reason, remedy = (own[0].reason, own[0].remedy) if own else ("never reported", AGAIN)
            error = ("UnreachableError", f"{node}: {reason}", remedy)
            hosts[node] = RecordedHost({}, Capture(node, "nobody", (), {}, error))
        else:
            hosts[node] = report.host
            results += report.results
        results += [_result(trouble.id, node, "error", trouble.message) for trouble in own]
        results += [
            _result(one.id, node, one.outcome, one.message)
            for one in files.failures
            if by_place.get(one.place, one.place) == node and (one.place not in by_place or not one.about_host)
        ]
    started = min((report.began for report in kept if report.began), default="")
    trimmed = [row for report in kept for row in report.trimmed]
    plugin = ", ".join(sorted({report.plugin for report in kept}))
    narrowed = {report.node: report.narrowed for report in kept if report.narrowed}
    return Recording(hosts, results, started, plugin, trimmed, narrowed=narrowed)


def _result(identity: str, node: str, outcome: str, message: str) -> dict[str, Any]:
    return {"id": identity, "host": node, "outcome": outcome, "message": message, "took_s": 0.0}
