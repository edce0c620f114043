"""Many hosts at a glance: who ended how in which area, and what differs from the majority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Literal, TypeAlias

from ClusterShell.NodeSet import (  # type: ignore[import-untyped]
    RESOLVER_NOGROUP,
    NodeSet,
    NodeSetException,
)

from pytest_gpuinfra.inventory.inventory import parse_inventory
from pytest_gpuinfra.record.numbers import compare_recorded
from pytest_gpuinfra.record.recording import Recording
from pytest_gpuinfra.report.fleet.difference import Difference, find_differences
from pytest_gpuinfra.report.host_verdict import EACH, verdict_of
from pytest_gpuinfra.report.message import parse_message
from pytest_gpuinfra.subjects.outliers import Comparison

Ending: TypeAlias = Literal["failed", "error", "passed", "skipped"]
WORST_FIRST: tuple[Ending, ...] = ("failed", "error", "passed", "skipped")
"""Endings; a cell shows the first of these that any of its items has."""

SIGNS: Mapping[str, str] = {"failed": "✗", "error": "?", "passed": "✓", "skipped": "\N{EN DASH}", "": " "}
WORDS: Mapping[str, str] = {"failed": "FAILED", "error": "ERROR", "passed": "passed", "skipped": "skipped", "": "none"}
SIGN_LINE = "✓ passed · ✗ FAILED · ? could not be observed (ERROR) · \N{EN DASH} skipped · blank: no such check"

_FIRST_AREAS = ("merge", "host", "gpu", "serving")


@dataclass(frozen=True, slots=True)
class FleetRow:
    """
    Hosts that ended alike.

    Attributes:
        hosts: Aliases, in the run's order. At least one.
        verdict: In words. mood: "good", "bad" or "unknown".
        cells: By area, items by ending; {} where there is no such check. Of several hosts, those of the first.
    """

    hosts: tuple[str, ...]
    verdict: str
    mood: str
    cells: Mapping[str, Mapping[Ending, int]]

    def ending(self, area: str) -> Ending | Literal[""]:
        """Give the worst ending in an area; "" if there is no item."""
        return _worst(self.cells.get(area, {}))


@dataclass(frozen=True, slots=True)
class FleetTrouble:
    """
    Something that one or more hosts say.

    Attributes:
        ending: "failed" or "error".
        text: What they say, without their names, in one line.
        hosts: Who says it.
    """

    ending: Ending
    text: str
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Fleet:
    """
    The hosts of a run.

    Attributes:
        areas: Columns, "host/boot", in order.
        rows: The worst first.
        verdicts: Hosts by verdict, the worst first: words, mood, number.
        troubles: What was wrong, then what was unknown; what most hosts say first.
        numbers: Numbers compared with those of the others.
        find_differences: Finds the facts that differ from the majority, which takes its time for each host.
    """

    areas: tuple[str, ...]
    rows: tuple[FleetRow, ...]
    verdicts: tuple[tuple[str, str, int], ...]
    troubles: tuple[FleetTrouble, ...]
    numbers: Comparison
    find_differences: Callable[[], tuple[Difference, ...]]

    @property
    def judged(self) -> tuple[str, ...]:
        """Areas in which some host was judged."""
        return tuple(area for area in self.areas if any(row.ending(area) not in ("", "skipped") for row in self.rows))

    @property
    def not_judged(self) -> str:
        """The other areas, in words to be put behind a line; "" if there is none."""
        left: dict[str, list[str]] = {}
        for area in self.areas:
            if area not in self.judged:
                folder, _, file = area.partition("/")
                left.setdefault(folder, []).append(file)
        seen = {area.partition("/")[0] for area in self.judged}
        words = [f"{folder} ({', '.join(files)})" if folder in seen else folder for folder, files in left.items()]
        return f". Skipped on every host: {', '.join(words)}" if words else ""

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """Facts that differ from the majority, by hosts; found when they are first asked for."""
        return self.find_differences()

    @property
    def size(self) -> int:
        """Number of hosts."""
        return sum(len(row.hosts) for row in self.rows)


def make_fleet(recording: Recording, *, unknown_allowed: bool = False) -> Fleet:
    """Put the hosts of a recording side by side."""
    cells: dict[str, dict[str, Counter[Ending]]] = {alias: {} for alias in recording.hosts}
    for result in recording.results:
        if result["host"] in cells:
            cells[result["host"]].setdefault(area_of(str(result["id"])), Counter())[result["outcome"]] += 1
    areas = _ordered(dict.fromkeys(area for found in cells.values() for area in found))
    rows = []
    for alias, host in recording.hosts.items():
        counts: Counter[str] = Counter()
        for found in cells[alias].values():
            counts.update(found)
        spec = parse_inventory({"hosts": {alias: dict(host.spec)}}, alias).hosts[alias]
        words, style = verdict_of(
            counts,
            nothing_expected=spec.expect.empty,
            unknown_allowed=unknown_allowed,
            cut_short=recording.cut_short,
            narrowed=recording.narrowed.get(alias, ""),
        )
        mood = "bad" if "red" in style else "good" if "green" in style else "unknown"
        rows.append(FleetRow((alias,), words, mood, cells[alias]))
    order = ("bad", "unknown", "good")
    rows.sort(key=lambda row: (order.index(row.mood), *_weight(row)))
    verdicts = Counter((row.verdict, row.mood) for row in rows)
    return Fleet(
        areas,
        tuple(rows if len(rows) <= EACH else _alike(rows, areas)),
        tuple((*verdict, count) for verdict, count in verdicts.items()),
        _troubles(recording),
        compare_recorded(recording.hosts),
        lambda: find_differences(recording.hosts),
    )


def area_of(node_id: str) -> str:
    """Name the area of an item by its folder and file: "suites/host/test_boot.py::test_x[a]" is "host/boot"."""
    path = PurePosixPath(node_id.partition("::")[0].replace("\\", "/"))
    return f"{path.parent.name or 'own'}/{path.stem.removeprefix('test_').replace('_', ' ')}"


def folded(hosts: Sequence[str]) -> str:
    """Write hosts short: "node[001-287]"; in their order, each, where their names do not fold."""
    try:
        return str(NodeSet.fromlist(list(hosts), resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return ", ".join(hosts)


def _worst(counts: Mapping[Ending, int]) -> Ending | Literal[""]:
    return next((ending for ending in WORST_FIRST if counts.get(ending)), "")


def _ordered(areas: Iterable[str]) -> tuple[str, ...]:
    def rank(area: str) -> int:
        folder = area.partition("/")[0]
        return _FIRST_AREAS.index(folder) if folder in _FIRST_AREAS else len(_FIRST_AREAS)

    return tuple(sorted(areas, key=rank))


def _weight(row: FleetRow) -> tuple[int, int]:
    """Give what sorts hosts with more wrong, then with more unknown, first."""
    failed, error = (sum(found.get(ending, 0) for found in row.cells.values()) for ending in WORST_FIRST[:2])
    return -failed, -error


def _alike(rows: Iterable[FleetRow], areas: Sequence[str]) -> list[FleetRow]:
    """Join the rows of hosts that ended alike in every area."""
    joined: dict[tuple[str, ...], list[FleetRow]] = {}
    for row in rows:
        joined.setdefault((row.verdict, *(row.ending(area) for area in areas)), []).append(row)
    return [
        FleetRow(tuple(host for row in same for host in row.hosts), same[0].verdict, same[0].mood, same[0].cells)
        for same in joined.values()
    ]


def _troubles(recording: Recording) -> tuple[FleetTrouble, ...]:
    found: dict[tuple[Ending, str], dict[str, str]] = {}
    for result in recording.results:
        if result["outcome"] in ("failed", "error"):
            alias = str(result["host"])
            brief = parse_message(str(result["message"]), str(result["id"])).brief
            text = brief.removeprefix(f"{alias}: ")
            found.setdefault((result["outcome"], text.replace(alias, "HOST")), {})[alias] = text
    troubles = [
        FleetTrouble(ending, next(iter(hosts.values())) if len(hosts) == 1 else text, tuple(hosts))
        for (ending, text), hosts in found.items()
    ]
    return tuple(sorted(troubles, key=lambda one: (one.ending != "failed", -len(one.hosts))))
