"""One number of all hosts of a kind as a picture: SVG, no library, in light and in dark."""

from __future__ import annotations

from collections.abc import Callable

from pytest_gpuinfra.report.escaped import escape
from pytest_gpuinfra.report.fleet.fleet import folded
from pytest_gpuinfra.subjects.outliers import NumberGroup

_STYLE = """
svg{--page:#ffffff;--ink:#1b1f24;--dim:#57606a;--line:#d0d7de;--band:#d8f3df;--dot:#1a7f37;--bad:#c9252d;--odd:#8a5a00}
@media (prefers-color-scheme:dark){svg{--page:#16191d;--ink:#e6edf3;--dim:#9aa4af;--line:#3d444d;--band:#153d25;
--dot:#7ee2a0;--bad:#ff7b72;--odd:#e3b341}}
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}.dim{fill:var(--dim)}
.page{fill:var(--page)}.line{stroke:var(--line)}.band{fill:var(--band)}.mid{stroke:var(--dot);stroke-dasharray:4 3}
.dot{fill:var(--dot)}.bad{fill:var(--bad)}.odd{fill:var(--odd)}
""".replace("\n", "")
WIDTH = 456
_LEFT, _RIGHT = 24.0, 432.0
_STACK = 7.0
_NAMED = 8


def draw_group(group: NumberGroup) -> str:
    """
    Draw the values of a group as a strip: a dot each, the median, the band of what counts as alike, outliers named.

    Stragglers are triangles, hosts that are better than their group squares, so that no colour is needed.

    Returns:
        An SVG document with a background of its own, which follows the reader's colour scheme.
    """
    low, high = min(group.values.values()), max(group.values.values())
    low, high = min(low, group.median - group.limit), max(high, group.median + group.limit)
    margin = (high - low or abs(high) or 1.0) * 0.04
    low, high = low - margin, high + margin

    def place(value: float) -> float:
        return _LEFT + (value - low) / (high - low) * (_RIGHT - _LEFT)

    named = group.outliers[:_NAMED]
    height = 190 + 18 * len(named) + (18 if len(group.outliers) > _NAMED else 0)
    unit = group.measure.unit
    title = f"{group.measure.name}, {unit}"
    about = f"{group.about}: " if group.about else ""
    told = f"{about}median {group.median:.4g}, spread {group.spread:.2g}"
    who = f"{len(group.values)} hosts with {group.kind}; {group.measure.better} is better, in the band is alike"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(f"{title}: {told}", quote=True)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<text x="20" y="28" font-size="14" font-weight="600">{escape(title)}</text>',
        f'<text class="dim" x="20" y="48" font-size="12">{escape(told)}</text>',
        f'<text class="dim" x="20" y="64" font-size="12">{escape(who)}</text>',
    ]
    left, right = place(group.median - group.limit), place(group.median + group.limit)
    middle = place(group.median)
    parts += [
        f'<rect class="band" x="{left:.1f}" y="76" width="{right - left:.1f}" height="66" rx="3"/>',
        f'<path class="mid" d="M{middle:.1f} 74V144"/>',
        f'<path class="line" d="M{_LEFT} 144H{_RIGHT}"/>',
    ]
    parts += _ticks(low + margin, high - margin, group.median, place)
    taken: dict[int, int] = {}
    marked = set(group.outliers)
    for host, value in group.values.items():
        x = place(value)
        count = taken[round(x / 5)] = taken.get(round(x / 5), 0) + 1
        y = 136.0 - (count - 1) % 8 * _STACK
        tip = f"<title>{escape(host)}: {value:.4g} {escape(unit)}</title>"
        if host not in marked:
            parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3" opacity=".75">{tip}</circle>')
        elif group.is_better(host):
            parts.append(f'<rect class="odd" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8">{tip}</rect>')
        else:
            parts.append(
                f'<text class="bad" x="{x:.1f}" y="{y + 5:.1f}" font-size="13" text-anchor="middle">▼{tip}</text>'
            )
    y = 172
    for host in named:
        sign, kind = ("■ better", "odd") if group.is_better(host) else ("▼ straggler", "bad")
        y += 18
        parts.append(
            f'<text x="20" y="{y - 12}" font-size="13"><tspan class="{kind}">{sign}</tspan> {escape(host)}: '
            f"{group.values[host]:.4g} {escape(unit)}</text>"
        )
    if len(group.outliers) > _NAMED:
        rest = folded(group.outliers[_NAMED:])
        parts.append(f'<text class="dim" x="20" y="{y + 6}" font-size="12">and {escape(rest[:60])}</text>')
    return "\n".join([*parts, "</svg>"])


def _ticks(low: float, high: float, middle: float, place: Callable[[float], float]) -> list[str]:
    """Label the ends and the median; an end that would stand in the median's label has none."""
    parts = []
    for value, anchor in ((low, "start"), (middle, "middle"), (high, "end")):
        x = place(value)
        if value != middle and abs(x - place(middle)) < 60:
            continue
        parts.append(f'<text class="dim" x="{x:.1f}" y="160" font-size="11" text-anchor="{anchor}">{value:.4g}</text>')
    return parts
