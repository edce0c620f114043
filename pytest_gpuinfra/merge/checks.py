"""What keeps the nodes' reports from being whole: several of one node, one of several, unfinished ones, none at all."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.merge.node import NodeReport
from pytest_gpuinfra.record.recording import RecordedHost

AREA = "merge/test_reports.py"
"""Where the items stand that a merge itself adds."""

AGAIN = "judge that node again; a run that ends in order leaves a whole file"
_STATUS = {2: "interrupted", 3: "ended by an internal error", 4: "refused", 5: "without any item"}


@dataclass(frozen=True, slots=True)
class Trouble:
    """
    What keeps a node's report from being whole.

    Attributes:
        node: Alias.
        what: Short name, for the item: "reported", "one boot".
        reason: What is the case, one sentence.
        remedy: What to do.
    """

    node: str
    what: str
    reason: str
    remedy: str

    @property
    def id(self) -> str:
        """Node id of the item that says it."""
        return f"{AREA}::test_node_{self.what.replace(' ', '_')}[{self.node}]"

    @property
    def message(self) -> str:
        """The item's message."""
        return f"{self.node}: {self.reason}\n  what to do: {self.remedy}"


class Troubles:
    """What was found, in order; one entry for each node and kind of trouble."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Trouble] = {}
        self.notes: list[str] = []

    def add(self, node: str, what: str, reason: str, remedy: str) -> None:
        """Add one; to one of the same kind, its reason."""
        old = self._found.get((node, what))
        new = Trouble(node, what, reason, remedy) if old is None else replace(old, reason=f"{old.reason}; {reason}")
        self._found[node, what] = new

    @property
    def all(self) -> tuple[Trouble, ...]:
        """All of them."""
        return tuple(self._found.values())

    def of(self, node: str) -> list[Trouble]:
        """Give those of one node."""
        return [trouble for trouble in self._found.values() if trouble.node == node]


def own_reports(report: NodeReport, troubles: Troubles, controllers: Sequence[str]) -> bool:
    """
    Tell whether a report is taken: from the host's own place, or from one whose runs judged others.

    Args:
        report: What one recording says of one host.
        troubles: Where another place's word is named, for both.
        controllers: Globs over names of places that are believed about all hosts.
    """
    place = report.place
    if report.node == place or any(fnmatch.fnmatchcase(place, pattern) for pattern in controllers):
        return True
    remedy = f"if {place} is a run that judged others from outside: --controller={place}; else find out who wrote it"
    troubles.add(place, "own name", f"it speaks for {report.node}: {report.at}", remedy)
    reason = f"{place} speaks for it, which is taken from its own folder alone: {report.at}"
    troubles.add(report.node, "own report", reason, remedy)
    return False


def settle(node: str, reports: list[NodeReport], troubles: Troubles) -> NodeReport:
    """Give a host's report; of several that speak for it none counts, but for what they found wrong."""
    if len(reports) == 1:
        return reports[0]
    reports.sort(key=lambda report: (report.began, str(report.file)))
    files = " and ".join(report.at for report in reports)
    boots = dict.fromkeys(report.boot or "unknown" for report in reports)
    of_boots = f", of boots {', '.join(boots)}" if len(boots) > 1 else ""
    reason = f"{len(reports)} reports speak for it{of_boots}: {files}"
    remedy = "take all but the right one away, or judge the node again into an empty folder"
    troubles.add(node, "one report", reason, remedy)
    wrong = {str(row["id"]): row for report in reports for row in report.results if row["outcome"] == "failed"}
    capture = Capture(node, "nobody", (), {}, ("UnreachableError", f"{node}: {reason}", remedy))
    return replace(reports[-1], host=RecordedHost({}, capture), results=tuple(wrong.values()), contested=True)


def check_boots(kept: Sequence[NodeReport], troubles: Troubles) -> None:
    """One boot id under two aliases is one machine under two names, so one of the two was never judged."""
    by_boot: dict[str, list[str]] = {}
    for report in kept:
        if report.boot and not report.contested:
            by_boot.setdefault(report.boot, []).append(report.node)
    for boot, nodes in by_boot.items():
        for node in nodes if len(nodes) > 1 else ():
            others = ", ".join(other for other in nodes if other != node)
            troubles.add(
                node,
                "one name",
                f"the same boot ({boot}) was recorded as {others}, too: one machine under several names",
                "see that each node judges itself, under its own name",
            )


def check_whole(report: NodeReport, troubles: Troubles, failed_beside: Set[str]) -> None:
    """
    Name a run that did not come to its end, that judged nothing, or that failed for a reason that nobody can see.

    Args:
        report: The node's report.
        troubles: Where to add it.
        failed_beside: Places whose JUnit tells of failures.
    """
    if report.ended not in (None, 0, 1):
        how = _STATUS.get(report.ended, "not ended in order")
        reason = f"its run was {how} (pytest's status {report.ended}): {report.at}"
        troubles.add(report.node, "run whole", reason, "see that run's output, and judge the node again")
    elif not report.results and not report.contested:
        troubles.add(report.node, "run whole", f"nothing was judged: {report.at} holds no result", AGAIN)
    elif report.ended == 1 and not report.explained and report.place not in failed_beside:
        reason = f"its run ended with status 1, and nothing in its recording is wrong: {report.at}"
        troubles.add(
            report.node, "run whole", reason, "a test about no host failed: see its output, write --junitxml, too"
        )


def check_expected(
    expected: Sequence[str], kept: Sequence[NodeReport], left: Mapping[str, frozenset[str]], troubles: Troubles
) -> None:
    """Name the nodes that left files and no recording, and those that left nothing."""
    seen = {report.node for report in kept}
    told = {trouble.node for trouble in troubles.all}
    for node, files in left.items():
        if node not in seen and node not in told:
            names = ", ".join(sorted(files)[:4])
            reason = f"its run left no recording, but {names}: it ended before it was done"
            troubles.add(node, "run whole", reason, "see that run's output, and judge the node again")
            told.add(node)
    for node in expected:
        if node not in seen and node not in told:
            reason = "never reported: no file of it is in the folder"
            troubles.add(node, "reported", reason, "see whether it is up and took the job, and judge it")
    unexpected = [node for node in [*seen, *told] if expected and node not in expected]
    if unexpected:
        names = ", ".join(sorted(set(unexpected)))
        troubles.notes.append(f"reported, and expected by nobody: {names}")
