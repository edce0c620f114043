"""The endpoint as a picture: how it came up, and how fast it answered our own requests; SVG, in light and in dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pytest_gpuinfra.report.escaped import escape, readable
from pytest_gpuinfra.report.pair_picture import STYLE

_WIDTH, _LEFT, _RIGHT = 800, 236, 250
_PLOT = _WIDTH - _LEFT - _RIGHT
_ROW = 30
_KINDS = 8


@dataclass(frozen=True, slots=True)
class Strip:
    """
    Some measurements of one kind, each a dot.

    Attributes:
        label: What was measured.
        values: Each of them, ascending. Shape (n >= 1,).
        unit: Of the values: "s" or "tokens/s".
        failed: How many of the kind gave no value.
    """

    label: str
    values: tuple[float, ...]
    unit: str
    failed: int = 0


@dataclass(frozen=True, slots=True)
class EndpointFigures:
    """
    What the picture shows.

    Attributes:
        address: The endpoint's URL.
        rungs: Of the readiness ladder: name, seconds until reached (None if it was not), last answer. Shape (4,).
        waited_s: How long the climb took, in seconds.
        groups: Strips by title; those of a group share their axis.
    """

    address: str
    rungs: tuple[tuple[str, float | None, str], ...]
    waited_s: float
    groups: Mapping[str, Sequence[Strip]]


def figures_of(gathered: Mapping[str, Any]) -> EndpointFigures | None:
    """Read the figures from what was gathered of a host; None if no endpoint was asked, or the data are damaged."""
    endpoint = gathered.get("endpoint")
    if not endpoint:
        return None
    try:
        readiness = endpoint["readiness"]
        rungs = tuple(
            (str(rung["name"]), rung["reached_s"], "not tried" if not rung["attempts"] else str(rung["last"]))
            for rung in readiness.get("rungs", ())
        )
        measured = sorted(endpoint.get("throughput", ()), key=lambda one: int(one["streams"]))
        groups: dict[str, list[Strip]] = {"time to first token": [], "speed of one stream": [], "whole answers": []}
        for one in measured:
            label = f"{one['streams']} stream{'s' * (one['streams'] > 1)}"
            failed = len(one["failures"])
            for title, key, unit in (
                ("time to first token", "first_token_s", "s"),
                ("speed of one stream", "stream_tokens_per_s", "tokens/s"),
            ):
                if one[key]:
                    groups[title].append(Strip(label, tuple(map(float, one[key])), unit, failed))
        groups["whole answers"] = _exchanges(endpoint.get("exchanges", ()))
        return EndpointFigures(
            readable(str(endpoint.get("address"))),
            rungs,
            float(readiness.get("waited_s") or 0.0),
            {title: strips for title, strips in groups.items() if strips},
        )
    except (KeyError, TypeError, ValueError):
        return None


def _exchanges(exchanges: Sequence[Mapping[str, Any]]) -> list[Strip]:
    """Sort our requests by method, path and how they ended."""
    times: dict[str, list[float]] = {}
    failed: dict[str, int] = {}
    for one in exchanges:
        path = readable(str(one["path"]).partition("?")[0])
        label = f"{one['method']} {path}"
        if one.get("status") not in (None, 200):
            label += f", {one['status']}"
        if "failed" in one or one.get("took_s") is None:
            failed[label] = failed.get(label, 0) + 1
        else:
            times.setdefault(label, []).append(float(one["took_s"]))
    strips = [Strip(label, tuple(sorted(values)), "s", failed.get(label, 0)) for label, values in times.items()]
    return sorted(strips, key=lambda strip: -len(strip.values))


def draw_endpoint(figures: EndpointFigures, title: str = "") -> str:
    """
    Draw the ladder and the measurements.

    Returns:
        An SVG document with a background of its own, which follows the reader's colour scheme.
    """
    y = 70
    parts: list[str] = []
    if figures.rungs:
        parts.append(_heading("readiness", y))
        longest = max([figures.waited_s, *(at for _, at, _ in figures.rungs if at is not None)]) or 1.0
        for name, at, last in figures.rungs:
            y += _ROW
            parts += _rung(name, at, last, longest, y)
        y += 46
    for heading, strips in figures.groups.items():
        parts.append(_heading(heading, y))
        largest = max(strip.values[-1] for strip in strips) or 1.0
        for strip in strips[:_KINDS]:
            y += _ROW
            parts += _strip(strip, largest, y)
        if len(strips) > _KINDS:
            y += _ROW
            left = f"and {len(strips) - _KINDS} more kinds of request, in the recording"
            parts.append(f'<text class="dim" x="{_LEFT}" y="{y + 5}" font-size="13">{left}</text>')
        y += 46
    height = y - 16
    said = f"{title or 'endpoint'}: {figures.address}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'height="{height}" role="img" aria-label="{escape(said, quote=True)}">',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{_WIDTH}" height="{height}" rx="8"/>',
            f'<text x="20" y="32" font-size="17" font-weight="600">{escape(title or "endpoint")}</text>',
            f'<text class="dim" x="20" y="52" font-size="13">{escape(_short(figures.address, 90))}</text>',
            *parts,
            "</svg>",
        ]
    )


def _heading(text: str, y: float) -> str:
    return f'<text x="20" y="{y + 8}" font-size="14" font-weight="600">{escape(text)}</text>'


def _rung(name: str, at: float | None, last: str, longest: float, y: float) -> list[str]:
    kind, sign = ("un", "?") if last == "not tried" else ("bad", "✗") if at is None else ("ok", "✓")
    width = max(4.0, _PLOT * (longest if at is None else at) / longest)
    told = f"{sign} {_seconds(at)}" if at is not None else f"{sign} {'not tried' if kind == 'un' else 'not reached'}"
    parts = [
        f"<g><title>{escape(f'{name}: {told}: {last}')}</title>",
        f'<text x="{_LEFT - 12}" y="{y + 5}" font-size="13" text-anchor="end">{escape(name)}</text>',
    ]
    if kind != "un":
        parts.append(f'<rect class="{kind}" x="{_LEFT}" y="{y - 8}" width="{width:.1f}" height="17" rx="3"/>')
    parts.append(
        f'<text x="{_LEFT + _PLOT + 14}" y="{y + 5}" font-size="13">{escape(told)}'
        f'<tspan class="dim"> {escape(_short("" if kind == "un" else last, 24))}</tspan></text></g>'
    )
    return parts


def _strip(strip: Strip, largest: float, y: float) -> list[str]:
    middle = median(strip.values)
    places = [_LEFT + _PLOT * value / largest for value in strip.values]
    count = len(strip.values)
    told = f"median {_value(middle, strip.unit)}, {count} requests" if count > 1 else _value(middle, strip.unit)
    if strip.failed:
        told += f", {strip.failed} failed"
    worst = strip.values[0] if strip.unit == "tokens/s" else strip.values[-1]
    full = f"{strip.label}: {told}; worst {_value(worst, strip.unit)}"
    place = _LEFT + _PLOT * middle / largest
    return [
        f"<g><title>{escape(full)}</title>",
        f'<text x="{_LEFT - 12}" y="{y + 5}" font-size="13" text-anchor="end">{escape(_short(strip.label, 30))}</text>',
        f'<path class="line" d="M{_LEFT} {y}H{_LEFT + _PLOT}"/>',
        *(f'<circle class="okl" cx="{x:.1f}" cy="{y}" r="4" fill-opacity=".35"/>' for x in places),
        f'<path d="M{place:.1f} {y - 9}V{y + 9}" stroke="var(--ink)" stroke-width="2"/>',
        f'<text x="{_LEFT + _PLOT + 14}" y="{y + 5}" font-size="13">{escape(told)}</text></g>',
    ]


def _value(value: float, unit: str) -> str:
    return _seconds(value) if unit == "s" else f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 10 else f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
