"""The pair matrix as a picture: SVG, no library, readable for 2 and for 16 GPUs, in light and in dark."""

from __future__ import annotations

from pytest_gpuinfra.report.escaped import escape
from pytest_gpuinfra.report.pair_matrix import PairCell, PairMatrix

_GLYPHS = {
    "right": "✓",
    "wrong": "✗",
    "crash": "✗",
    "hang": "✗",
    "failed": "✗",
    "error": "?",
    "not_tested": "\N{EN DASH}",
    "not seen": "?",
}
_CLASSES = {"right": "ok", "error": "un", "not seen": "un", "not_tested": "no"}
STYLE = """
svg{--page:#ffffff;--ink:#1b1f24;--dim:#57606a;--line:#d0d7de;--ok:#d8f3df;--okl:#1a7f37;--bad:#c9252d;--badl:#ffffff;
--un:#fff1c2;--unl:#7a5200;--no:#eaeef2;--nol:#57606a}
@media (prefers-color-scheme:dark){svg{--page:#16191d;--ink:#e6edf3;--dim:#9aa4af;--line:#3d444d;
--ok:#153d25;--okl:#7ee2a0;
--bad:#d93a3f;--badl:#ffffff;--un:#4a3800;--unl:#ffd866;--no:#262c33;--nol:#9aa4af}}
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}
.dim{fill:var(--dim)}.ok{fill:var(--ok)}.okl{fill:var(--okl)}.bad{fill:var(--bad)}.badl{fill:var(--badl)}
.un{fill:var(--un)}.unl{fill:var(--unl)}.no{fill:var(--no)}.nol{fill:var(--nol)}.page{fill:var(--page)}
.line{stroke:var(--line);fill:none}.mono{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,monospace}
""".replace("\n", "")
_FEW = 6
"""Up to so many GPUs, cells hold words; beyond, a sign and a number."""


def draw(matrix: PairMatrix, title: str = "") -> str:
    """
    Draw the matrix; rows are sources, columns destinations.

    Returns:
        An SVG document with a background of its own, which follows the reader's colour scheme.
    """
    few = len(matrix.devices) <= _FEW
    cell_w, cell_h = (150, 64) if few else (54, 36)
    left, top = 84, 104 if few else 124
    grid_w, grid_h = cell_w * len(matrix.devices), cell_h * len(matrix.devices)
    width = max(left + grid_w + 20, 720)
    ways = list(matrix.mechanisms.items())
    height = top + grid_h + 66 + 20 * len(ways)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(summary(matrix), quote=True)}">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
        f'<text x="20" y="32" font-size="17" font-weight="600">{escape(title or "GPU pairs")}</text>',
        f'<text class="dim" x="20" y="54" font-size="13">{escape(summary(matrix))}</text>',
        f'<text class="dim" x="20" y="{top - 12}" font-size="12">from ↓ to →</text>',
    ]
    for place, device in enumerate(matrix.devices):
        x, y = left + place * cell_w + cell_w / 2, top + place * cell_h + cell_h / 2
        turn = "" if few else f' transform="rotate(-45 {x} {top - 12})"'
        anchor = "middle" if few else "start"
        parts.append(
            f'<text class="mono" x="{x}" y="{top - 12}" font-size="13" text-anchor="{anchor}"{turn}>{device}</text>'
        )
        parts.append(f'<text class="mono" x="{left - 10}" y="{y + 4}" font-size="13" text-anchor="end">{device}</text>')
    for row, src in enumerate(matrix.devices):
        for column, dst in enumerate(matrix.devices):
            x, y = left + column * cell_w, top + row * cell_h
            if src == dst:
                parts.append(f'<path class="line" d="M{x + 8} {y + 8}L{x + cell_w - 8} {y + cell_h - 8}"/>')
            else:
                parts += _cell(matrix.cells[src, dst], x, y, cell_w, cell_h, f"{src} to {dst}", few)
    y = top + grid_h + 28
    parts.append(
        f'<text class="dim" x="20" y="{y}" font-size="12">✓ every byte right · ✗ wrong, hang or crash · '
        "? not observed · \N{EN DASH} no peer access · numbers: GB/s by copy engine</text>"
    )
    for number, (name, (outcome, count)) in enumerate(ways):
        line = y + 24 + number * 20
        kind = _CLASSES.get(outcome, "bad")
        parts.append(f'<rect class="{kind}" x="20" y="{line - 12}" width="16" height="16" rx="3"/>')
        parts.append(
            f'<text class="{kind}l" x="28" y="{line}" font-size="11" text-anchor="middle">'
            f"{_GLYPHS.get(outcome, '?')}</text>"
        )
        parts.append(
            f'<text x="46" y="{line}" font-size="13">{escape(name)}: {escape(outcome.replace("_", " "))}'
            f'<tspan class="dim"> · {count} of {matrix.pairs} pairs</tspan></text>'
        )
    return "\n".join([*parts, "</svg>"])


def summary(matrix: PairMatrix) -> str:
    """Put the matrix into one line."""
    wrong = [cell for cell in matrix.cells.values() if cell.outcome in ("wrong", "crash", "hang", "failed")]
    words = [f"{matrix.seen_right} of {matrix.pairs} directed pairs right by every mechanism"]
    if wrong:
        words.append(f"{len(wrong)} wrong ({', '.join(dict.fromkeys(cell.word for cell in wrong))})")
    left = matrix.pairs - matrix.seen_right - len(wrong)
    if left:
        words.append(f"{left} not proven")
    return "; ".join(words)


def _ways(cell: PairCell) -> str:
    return cell.mechanisms[0] if len(cell.mechanisms) == 1 else f"{len(cell.mechanisms)} ways"


def _cell(cell: PairCell, x: float, y: float, width: float, height: float, pair: str, few: bool) -> list[str]:
    kind = _CLASSES.get(cell.outcome, "bad")
    speed = "" if cell.gb_s is None else f"{cell.gb_s:.0f}"
    middle = x + width / 2
    box = f'<rect class="{kind}" x="{x + 2}" y="{y + 2}" width="{width - 4}" height="{height - 4}" rx="5"/>'
    told = f"<title>{escape(f'{pair}: {cell.word}, {speed} GB/s' if speed else f'{pair}: {cell.word}')}</title>"
    glyph = _GLYPHS.get(cell.outcome, "?")
    if not few:
        shown = speed if cell.outcome == "right" and speed else _ways(cell) if kind == "bad" else ""
        return [
            f"<g>{told}{box}",
            f'<text class="{kind}l" x="{middle}" y="{y + 16}" font-size="12" text-anchor="middle">{glyph}</text>',
            f'<text class="{kind}l" x="{middle}" y="{y + 29}" font-size="11" text-anchor="middle">{shown}</text></g>',
        ]
    first = f"{glyph} {cell.word}"
    ways = ", ".join(cell.mechanisms) if len(cell.mechanisms) <= 4 else f"{len(cell.mechanisms)} mechanisms"
    second = (
        f"{speed} GB/s"
        if cell.outcome == "right" and speed
        else "by all mechanisms"
        if cell.outcome == "right"
        else ways
    )
    return [
        f"<g>{told}{box}",
        f'<text class="{kind}l" x="{middle}" y="{y + 28}" font-size="14" font-weight="600" text-anchor="middle">'
        f"{escape(first)}</text>",
        f'<text class="{kind}l" x="{middle}" y="{y + 47}" font-size="12" text-anchor="middle">'
        f"{escape(second)}</text></g>",
    ]
