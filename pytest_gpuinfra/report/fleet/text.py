"""The fleet as Markdown, and in the terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_gpuinfra.record.numbers import straggler_lines
from pytest_gpuinfra.report.fleet.fleet import SIGN_LINE, SIGNS, Fleet, folded

LISTED = 20
_MARKDOWN_ROWS = 40
_STYLES = {"failed": "bold red", "error": "bold yellow", "passed": "green", "skipped": "dim"}
_MOODS = {"bad": "bold red", "unknown": "bold yellow", "good": "green"}
_MARKS = {"failed": "❌", "error": "❔", "passed": "✓", "skipped": "\N{EN DASH}", "": " "}


def fleet_markdown(fleet: Fleet, line: Callable[[str], str]) -> list[str]:
    """
    Give the lines of Markdown.

    Args:
        fleet: The hosts.
        line: Keeps a text on its line, and Markdown out of it.
    """
    tally = ", ".join(f"{count} {words}" for words, _, count in fleet.verdicts)
    areas = fleet.judged
    heads = [area.partition("/")[2] for area in areas]
    parts = [f"**{fleet.size} hosts: {tally}**", ""]
    parts += [f"| host | verdict | {' | '.join(map(line, heads))} |", "|---|---|" + ":-:|" * len(heads)]
    for row in fleet.rows[:_MARKDOWN_ROWS]:
        name = folded(row.hosts) + (f" ({len(row.hosts)} hosts)" if len(row.hosts) > 1 else "")
        cells = " | ".join(_MARKS[row.ending(area)] for area in areas)
        parts.append(f"| {line(name)} | {line(row.verdict)} | {cells} |")
    left = [host for row in fleet.rows[_MARKDOWN_ROWS:] for host in row.hosts]
    if left:
        parts += ["", f"and {len(left)} hosts that are no worse: {line(folded(left))}"]
    parts += [
        "",
        f"✓ passed, ❌ FAILED, ❔ could not be observed (ERROR), {SIGNS['skipped']} skipped, blank: no such check"
        f"{line(fleet.not_judged)}",
        "",
    ]
    if fleet.troubles:
        parts += ["### Wrong or unknown, on how many hosts", ""]
        for one in fleet.troubles[:LISTED]:
            parts.append(f"- {_MARKS[one.ending]} {line(one.text)} ({len(one.hosts)}: {line(folded(one.hosts))})")
        if len(fleet.troubles) > LISTED:
            parts.append(f"- and {len(fleet.troubles) - LISTED} more")
        parts.append("")
    if fleet.differences:
        parts += ["### Not like the majority", ""]
        parts += [
            f"- {line(folded(one.hosts))}: {line(one.fact)} is {line(one.value[:160])}; "
            f"{one.of} hosts: {line(one.usual[:160])}"
            for one in fleet.differences[:LISTED]
        ]
        if len(fleet.differences) > LISTED:
            parts.append(f"- and {len(fleet.differences) - LISTED} more")
        parts.append("")
    if fleet.numbers.stragglers:
        parts += ["### Slower or hotter than their group", ""]
        for host in fleet.numbers.stragglers[:LISTED]:
            parts.append(f"- {line(host)}: {line('; '.join(straggler_lines(fleet.numbers, host)))}")
        parts.append("")
    return parts


def show_fleet(fleet: Fleet, console: Console) -> None:
    """Show the matrix, then what is wrong or unknown on how many hosts, then stragglers; within the console's width."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("host", max_width=max(24, console.width // 3), overflow="fold")
    table.add_column("verdict")
    folders = list(dict.fromkeys(area.partition("/")[0] for area in fleet.judged))
    for folder in folders:
        table.add_column(folder, no_wrap=True)
    for row in fleet.rows[:LISTED]:
        cells = []
        for folder in folders:
            text = Text()
            for area in fleet.judged:
                if area.partition("/")[0] == folder:
                    ending = row.ending(area)
                    text.append(SIGNS[ending], _STYLES.get(ending, ""))
            cells.append(text)
        many = f" ({len(row.hosts)})" if len(row.hosts) > 1 else ""
        table.add_row(Text(folded(row.hosts) + many), Text(row.verdict, _MOODS[row.mood]), *cells)
    console.print(table)
    left = sum(len(row.hosts) for row in fleet.rows[LISTED:])
    if left:
        console.print(f"and {left} hosts that are no worse", markup=False)
    console.print(f"each sign is an area; {SIGN_LINE}{fleet.not_judged}", style="dim", markup=False)
    for folder in folders:
        names = [area.partition("/")[2] for area in fleet.judged if area.partition("/")[0] == folder]
        console.print(f"{folder}: {', '.join(names)}", style="dim", markup=False)
    show_stragglers(fleet, console)


def show_troubles(fleet: Fleet, console: Console) -> None:
    """Show what is wrong or unknown, with who says it."""
    for one in fleet.troubles[:LISTED]:
        word, style = ("FAILED", "red") if one.ending == "failed" else ("ERROR ", "yellow")
        who = f"{len(one.hosts)} hosts, {folded(one.hosts)}" if len(one.hosts) > 1 else one.hosts[0]
        console.print(Text(word, style) + Text(f" {who}: {one.text}"), soft_wrap=True)
    if len(fleet.troubles) > LISTED:
        console.print(f"  and {len(fleet.troubles) - LISTED} more", markup=False)


def show_stragglers(fleet: Fleet, console: Console) -> None:
    """Show which hosts are slower or hotter than their group; nothing where none is."""
    for host in fleet.numbers.stragglers[:LISTED]:
        for told in straggler_lines(fleet.numbers, host):
            console.print(Text("STRAGGLER", "magenta") + Text(f" {host}: {told}"), soft_wrap=True)
    if len(fleet.numbers.stragglers) > LISTED:
        console.print(f"  and {len(fleet.numbers.stragglers) - LISTED} more hosts", markup=False)
