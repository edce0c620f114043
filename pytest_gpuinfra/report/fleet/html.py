"""The fleet as the first part of the page in HTML: matrix, troubles, what differs, stragglers with their plots."""

from __future__ import annotations

from collections.abc import Container, Sequence

from pytest_gpuinfra.record.numbers import hosts_ahead, straggler_lines
from pytest_gpuinfra.report.escaped import escape
from pytest_gpuinfra.report.fleet.difference import Difference
from pytest_gpuinfra.report.fleet.fleet import SIGNS, Fleet, FleetTrouble, folded
from pytest_gpuinfra.report.fleet.matrix import matrix_html
from pytest_gpuinfra.report.fleet.plot import draw_group
from pytest_gpuinfra.subjects.outliers import BEYOND, SMALLEST, NumberGroup

LISTED = 30
PLOTS = 6


def fleet_html(fleet: Fleet, sections: Container[str] = ()) -> list[str]:
    """
    Give the lines of HTML, for a page whose style holds FLEET_STYLE.

    Args:
        fleet: The hosts.
        sections: Aliases of those that have a section of their own on the page, under this name.
    """
    tally = " · ".join(
        f'<span class="{mood}"><b>{count}</b> {escape(words)}</span>' for words, mood, count in fleet.verdicts
    )
    parts = [f'<p class="tally">{fleet.size} hosts: {tally}</p>', *matrix_html(fleet, sections)]
    parts += _troubles(fleet.troubles, fleet.size)
    parts += _differences(fleet.differences)
    return parts + _stragglers(fleet)


def _troubles(troubles: Sequence[FleetTrouble], size: int) -> list[str]:
    if not troubles:
        return []
    parts = ["<h3>What is wrong or unknown, on how many hosts</h3>", '<ul class="told">']
    for one in troubles[:LISTED]:
        mood = "bad" if one.ending == "failed" else "unknown"
        who = f"{len(one.hosts)} of {size} hosts: {folded(one.hosts)}" if len(one.hosts) > 1 else one.hosts[0]
        sign = f'<b class="{mood}">{SIGNS[one.ending]}</b>'
        parts.append(f'<li>{sign}{escape(one.text)}<span class="dim">{escape(who)}</span></li>')
    parts.append("</ul>")
    if len(troubles) > LISTED:
        parts.append(f'<p class="dim">and {len(troubles) - LISTED} more, below</p>')
    return parts


def _differences(differences: Sequence[Difference]) -> list[str]:
    if not differences:
        return []
    parts = ["<h3>Not like the majority</h3>", '<table class="unlike">']
    for one in differences[:LISTED]:
        parts.append(
            f"<tr><td>{escape(folded(one.hosts))}</td><td>{escape(one.fact)}: <b>{escape(_short(one.value))}</b> "
            f'<span class="dim">{one.of} hosts: {escape(_short(one.usual))}</span></td></tr>'
        )
    parts.append("</table>")
    if len(differences) > LISTED:
        parts.append(f'<p class="dim">and {len(differences) - LISTED} more: `gpuinfra compare` two recordings</p>')
    return parts


def _stragglers(fleet: Fleet) -> list[str]:
    found, ahead = fleet.numbers, hosts_ahead(fleet.numbers)
    parts = []
    if found.stragglers or ahead:
        parts.append("<h3>Slower or hotter than their group</h3>")
    if found.stragglers:
        parts.append('<ul class="told">')
        for host in found.stragglers[:LISTED]:
            lines = "".join(f'<span class="dim">{escape(line)}</span>' for line in straggler_lines(found, host))
            parts.append(f'<li><b class="unknown">▼</b>{escape(host)}{lines}</li>')
        parts.append("</ul>")
    if ahead:
        told = "; ".join(f"{host}: {_first(names)}" for host, names in list(ahead.items())[:LISTED])
        parts.append(f'<p class="dim">Better than their group, which may be a wrong measurement: {escape(told)}</p>')
    if drawn := plotted(fleet):
        parts += ['<div class="plots">', *(f"<div>{draw_group(group)}</div>" for group in drawn), "</div>"]
    if parts:
        parts.append(f'<p class="dim">Median and MAD, beyond {BEYOND:g} and beyond what is noise of the measure.</p>')
    parts += [f'<p class="dim">{line}</p>' for line in not_compared(fleet)]
    return parts


def _first(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}, and {len(names) - 1} more"


def plotted(fleet: Fleet) -> list[NumberGroup]:
    """Give the groups to be drawn, at most PLOTS: of those that name the same hosts, the one with the farthest."""
    worst: dict[tuple[str, frozenset[str]], tuple[float, NumberGroup]] = {}
    for group in fleet.numbers.groups:
        if group.outliers:
            host = (group.stragglers or group.outliers)[0]
            far = abs(group.values[host] - group.median) / group.limit + (1e6 if group.stragglers else 0)
            key = group.kind, frozenset(group.stragglers or group.ahead)
            if key not in worst or far > worst[key][0]:
                worst[key] = far, group
    ordered = sorted(worst.values(), key=lambda entry: -entry[0])
    return [group for _, group in ordered[:PLOTS]]


def not_compared(fleet: Fleet) -> list[str]:
    """Say whose numbers nobody could be compared with."""
    return [
        f"Numbers of {count} host{'s' if count > 1 else ''} with {escape(kind)} were not compared: "
        f"a group needs {SMALLEST}."
        for kind, count in fleet.numbers.too_small.items()
    ]


def _short(value: str) -> str:
    return value if len(value) <= 160 else f"{value[:157]}..."
