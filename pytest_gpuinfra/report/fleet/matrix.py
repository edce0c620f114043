"""The fleet's matrix in HTML, and the style of the fleet's part of the page."""

from __future__ import annotations

from collections.abc import Container, Sequence
from html import escape

from pytest_gpuinfra.report.fleet.fleet import SIGN_LINE, SIGNS, WORDS, Fleet, FleetRow, folded

ROWS = 80
"""Rows of the matrix, at most; of more, the worst."""

FLEET_STYLE = """
.fleet{overflow-x:auto;border:1px solid var(--line);border-radius:8px;margin:.6rem 0}
.fleet table{width:auto;min-width:100%;border-collapse:separate;border-spacing:0;font-size:.9rem}
.fleet th,.fleet td{padding:.18rem .1rem;border-bottom:1px solid var(--line);text-align:center;color:var(--ink)}
.fleet tbody tr:last-child>*{border-bottom:0}
.fleet thead th{vertical-align:bottom;font-weight:400;color:var(--dim)}
.fleet thead th.f{height:auto;text-align:left;padding-left:.3rem;border-bottom:0;font-weight:600}
.fleet thead span{writing-mode:vertical-rl;transform:rotate(180deg);white-space:nowrap;display:inline-block}
.fleet .h{position:sticky;left:0;background:var(--page);text-align:left;font-weight:400;padding:.18rem .5rem;
min-width:7rem;max-width:17rem;border-right:1px solid var(--line);border-left:5px solid transparent}
.fleet .h small{display:block;color:var(--dim)}.fleet tr.good .h{border-left-color:var(--good)}
.fleet tr.bad .h{border-left-color:var(--bad)}.fleet tr.unknown .h{border-left-color:var(--unknown)}
.fleet td b{display:inline-block;min-width:1.6rem;padding:0 .2rem;border-radius:4px;line-height:1.35;font-weight:600}
.fleet .s{border-left:1px solid var(--line)}
.fleet .failed{background:var(--bad);color:var(--page)}.fleet .passed{color:var(--good)}
.fleet .skipped{color:var(--dim)}
.fleet .error{color:var(--unknown);box-shadow:inset 0 0 0 2px var(--unknown)}
.fleet small.n{font-weight:400;font-size:.72rem}.tally{font-size:1.05rem;margin:.2rem 0}
.told{list-style:none;padding:0;margin:.3rem 0}
.told li{padding:.3rem 0 .3rem 1.3rem;border-bottom:1px solid var(--line)}
.plots{display:flex;flex-wrap:wrap;gap:.6rem;margin:.6rem 0}.plots svg{display:block;max-width:100%;height:auto}
.plots>div{border:1px solid var(--line);border-radius:8px}
.told b{display:inline-block;width:1.3rem;margin-left:-1.3rem}.told .dim{display:block}
.unlike td:first-child{width:30%}
@media (max-width:640px){.fleet .h{min-width:4.6rem;max-width:6.6rem;padding:.12rem .25rem;font-size:.76rem}
.fleet small.n{display:none}.fleet td b{min-width:0;padding:0 .08rem;font-size:.74rem}
.fleet th,.fleet td{padding:.12rem 0}.fleet thead th{font-size:.7rem}
.fleet thead span{line-height:1.15}.fleet .h small{font-size:.68rem}
.fleet .error{box-shadow:inset 0 0 0 1.5px var(--unknown)}}
""".replace("\n", "")


def matrix_html(fleet: Fleet, sections: Container[str]) -> list[str]:
    """Give the lines of the matrix, as `fleet_html` takes its arguments."""
    folders: dict[str, int] = {}
    starts = set()
    for area in fleet.judged:
        folder = area.partition("/")[0]
        if folder not in folders:
            starts.add(area)
        folders[folder] = folders.get(folder, 0) + 1
    heads = "".join(f'<th class="f s" colspan="{count}">{escape(folder)}</th>' for folder, count in folders.items())
    names = "".join(
        f'<th{" class=s" if area in starts else ""} scope="col"><span>{escape(area.partition("/")[2])}</span></th>'
        for area in fleet.judged
    )
    parts = [
        '<div class="fleet" tabindex="0"><table><thead>',
        f'<tr><th class="h f"></th>{heads}</tr><tr><th class="h" scope="col">host</th>{names}</tr></thead><tbody>',
    ]
    parts += [_row(row, fleet.judged, starts, sections) for row in fleet.rows[:ROWS]]
    parts.append("</tbody></table></div>")
    if len(fleet.rows) > ROWS:
        left = [host for row in fleet.rows[ROWS:] for host in row.hosts]
        parts.append(f'<p class="dim">and {len(left)} hosts that are no worse: {escape(folded(left))}</p>')
    parts.append(f'<p class="dim">{SIGN_LINE}{escape(fleet.not_judged)}</p>')
    return parts


def _row(row: FleetRow, areas: Sequence[str], starts: set[str], sections: Container[str]) -> str:
    name = escape(folded(row.hosts))
    if len(row.hosts) == 1 and row.hosts[0] in sections:
        name = f'<a href="#{escape(row.hosts[0])}">{name}</a>'
    many = f"{len(row.hosts)} hosts, " if len(row.hosts) > 1 else ""
    cells = "".join(_cell(row, area, area in starts) for area in areas)
    return (
        f'<tr class="{row.mood}"><th class="h" scope="row">{name}<small>{many}{escape(row.verdict)}</small></th>'
        f"{cells}</tr>"
    )


def _cell(row: FleetRow, area: str, start: bool) -> str:
    ending = row.ending(area)
    counts = row.cells.get(area, {})
    told = ", ".join(f"{count} {WORDS[kind]}" for kind, count in counts.items()) or "no such check"
    number = f'<small class="n">{counts[ending]}</small>' if ending in ("failed", "error") and ending else ""
    inner = f'<b class="{ending}">{SIGNS[ending]}{number}</b>' if ending else ""
    return f'<td{" class=s" if start else ""} title="{escape(f"{area}: {told}", quote=True)}">{inner}</td>'
