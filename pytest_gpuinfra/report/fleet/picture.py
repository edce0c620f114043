"""The fleet's matrix as a picture, and what Allure shows of the run as a whole."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from pytest_gpuinfra.report.escaped import escape, readable
from pytest_gpuinfra.report.fleet.fleet import SIGN_LINE, SIGNS, WORDS, Fleet, FleetRow, folded
from pytest_gpuinfra.report.fleet.html import plotted
from pytest_gpuinfra.report.fleet.plot import draw_group

_STYLE = """
svg{--page:#ffffff;--ink:#1b1f24;--dim:#57606a;--line:#d0d7de;--good:#1a7f37;--bad:#c9252d;--unknown:#8a5a00}
@media (prefers-color-scheme:dark){svg{--page:#16191d;--ink:#e6edf3;--dim:#9aa4af;--line:#3d444d;--good:#5ad17f;
--bad:#ff7b72;--unknown:#e3b341}}
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}.dim{fill:var(--dim)}
.page{fill:var(--page)}.line{stroke:var(--line)}.passed,.good{fill:var(--good)}.failed,.bad{fill:var(--bad)}
.error,.unknown{fill:var(--unknown)}.skipped{fill:var(--dim)}.box{fill:none;stroke:var(--unknown);stroke-width:2}
.on{fill:var(--page)}
""".replace("\n", "")
_ROWS = 60
_NAME, _CELL, _LINE, _TOP = 300, 30, 34, 190
_LONGEST = 38


def draw_fleet(fleet: Fleet) -> str:
    """
    Draw the matrix; rows are hosts, the worst first, columns the areas in which some host was judged.

    Returns:
        An SVG document with a background of its own, which follows the reader's colour scheme.
    """
    areas, rows = fleet.judged, fleet.rows[:_ROWS]
    width = max(_NAME + _CELL * len(areas) + 70, 560)
    height = _TOP + _LINE * len(rows) + 50
    tally = ", ".join(f"{count} {words}" for words, _, count in fleet.verdicts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(f"{fleet.size} hosts: {tally}", quote=True)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
        f'<text x="20" y="32" font-size="17" font-weight="600">{fleet.size} hosts</text>',
        f'<text class="dim" x="20" y="54" font-size="13">{escape(tally)}</text>',
    ]
    for place, area in enumerate(areas):
        x = _NAME + place * _CELL + _CELL / 2
        name = escape(area.partition("/")[2])
        parts.append(
            f'<text x="{x}" y="{_TOP - 10}" font-size="12" transform="rotate(-45 {x} {_TOP - 10})">{name}</text>'
        )
    for place, row in enumerate(rows):
        parts += _row(row, areas, _TOP + place * _LINE, width)
    y = _TOP + _LINE * len(rows) + 24
    left = sum(len(row.hosts) for row in fleet.rows[_ROWS:])
    more = f"and {left} hosts that are no worse; " if left else ""
    parts.append(f'<text class="dim" x="20" y="{y}" font-size="12">{more}{SIGN_LINE}</text>')
    return "\n".join([*parts, "</svg>"])


def _row(row: FleetRow, areas: tuple[str, ...], y: int, width: int) -> list[str]:
    name = folded(row.hosts)
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 3]}..."
    many = f"{len(row.hosts)} hosts, " if len(row.hosts) > 1 else ""
    parts = [
        f'<path class="line" d="M20 {y}H{width - 20}"/>',
        f'<rect class="{row.mood}" x="20" y="{y + 3}" width="4" height="28"/>',
        f'<text x="32" y="{y + 15}" font-size="13">{escape(name)}</text>',
        f'<text class="dim" x="32" y="{y + 29}" font-size="11">{many}{escape(row.verdict)}</text>',
    ]
    for place, area in enumerate(areas):
        ending = row.ending(area)
        if not ending:
            continue
        x = _NAME + place * _CELL
        kind = "failed" if ending == "failed" else "box"
        box = f'<rect class="{kind}" x="{x + 3}" y="{y + 6}" width="24" height="22" rx="4"/>'
        told = ", ".join(f"{count} {WORDS[end]}" for end, count in row.cells[area].items())
        parts.append(
            f"<g><title>{escape(f'{area}: {told}')}</title>{box if ending in ('failed', 'error') else ''}"
            f'<text class="{"on" if ending == "failed" else ending}" x="{x + 15}" y="{y + 22}" font-size="14" '
            f'font-weight="600" text-anchor="middle">{SIGNS[ending]}</text></g>'
        )
    return parts


def write_fleet(directory: Path, fleet: Fleet) -> None:
    """
    Write the matrix and the plots of stragglers beside Allure's results, as attachments of the whole run.

    Source: Allure 3, global errors and attachments: UUID-globals.json, read since 3.0; Allure 2 passes over it.

    Raises:
        OSError: They cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    pictures = {"hosts by area": draw_fleet(fleet)}
    pictures |= {f"stragglers: {group.name}": draw_group(group) for group in plotted(fleet)}
    attachments = []
    for name, picture in pictures.items():
        source = f"{uuid.uuid4()}-attachment.svg"
        (directory / source).write_text(readable(picture), encoding="utf-8")
        attachments.append({"name": name, "source": source, "type": "image/svg+xml"})
    document = {"attachments": attachments, "errors": []}
    (directory / f"{uuid.uuid4()}-globals.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
