"""A comparison for people and programs: terminal, Markdown, HTML, JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from pytest_gpuinfra.masking import mask_data
from pytest_gpuinfra.record.compare import Comparison
from pytest_gpuinfra.report.change_rows import TITLES, group, headline
from pytest_gpuinfra.report.escaped import escape, readable
from pytest_gpuinfra.report.page_text import breakable, document, markdown_line
from pytest_gpuinfra.visible import visible_json

_STYLES = {"regression": "bold red", "expected": "cyan", "better": "green"}
_LISTED = 40
_ROWS = 400


def show(comparison: Comparison, console: Console) -> None:
    """Print a comparison."""
    console.print(Text(f"before: {comparison.before}   after: {comparison.after}", "dim"))
    for host in comparison.hosts:
        console.print(Text(readable(headline(host)), "bold"), soft_wrap=True)
        for weight, title in TITLES:
            rows = group(host.of(weight))
            for name, what in rows[:_LISTED]:
                line = Text(f"  {title.lower()}: ", _STYLES[weight]) + Text(readable(f"{name}: {what}"))
                console.print(line, soft_wrap=True)
            if len(rows) > _LISTED:
                console.print(Text(f"  and {len(rows) - _LISTED} more {title.lower()}", "dim"))
    for pattern in comparison.unused:
        console.print(Text(f"--allow={pattern} allowed nothing: what it was meant for has not changed", "yellow"))


def as_json(comparison: Comparison) -> str:
    """Give a comparison as JSON."""
    data = {
        "before": comparison.before,
        "after": comparison.after,
        "regressions": len(comparison.regressions),
        "unused_allowances": list(comparison.unused),
        "hosts": [
            {
                "host": host.host,
                "boot_changed": host.boot_changed,
                "same": host.same,
                "masked": host.masked,
                "changes": [{key: value for key, value in asdict(c).items() if key != "host"} for c in host.changes],
            }
            for host in comparison.hosts
        ],
    }
    return visible_json(json.dumps(mask_data(data), indent=1, ensure_ascii=False)) + "\n"


def as_markdown(comparison: Comparison) -> str:
    """Give a comparison as Markdown."""
    parts = ["# Before and after", "", f"Before: {comparison.before}. After: {comparison.after}.", ""]
    for host in comparison.hosts:
        sign = "❌" if host.of("regression") else "✅"
        parts += [f"## {sign} {markdown_line(headline(host))}", ""]
        for weight, title in TITLES:
            rows = group(host.of(weight))
            if rows:
                parts += [f"### {title}", "", "| what | change |", "|---|---|"]
                parts += [f"| {markdown_line(name)} | {markdown_line(what)} |" for name, what in rows[:_LISTED]]
                parts += [f"| and {len(rows) - _LISTED} more | |"] if len(rows) > _LISTED else []
                parts.append("")
    parts += [f"- allowed nothing: {markdown_line(pattern)}" for pattern in comparison.unused]
    return readable("\n".join(parts).rstrip() + "\n")


def as_html(comparison: Comparison) -> str:
    """Give a comparison as one HTML file."""
    moods = {"regression": "bad", "expected": "unknown", "better": "good"}
    body = ["<h1>Before and after</h1>", f'<p class="dim">{escape(comparison.before)} → {escape(comparison.after)}</p>']
    body.append('<ul class="verdicts">')
    for host in comparison.hosts:
        mood = "bad" if host.of("regression") else "good"
        body.append(f'<li class="{mood}"><b>{escape(headline(host))}</b></li>')
    body.append("</ul>")
    for host in comparison.hosts:
        body.append(f"<h2>{escape(host.host)}</h2>")
        for weight, title in TITLES:
            rows = group(host.of(weight))
            if rows:
                body.append(f'<h3 class="{moods[weight]}">{title}</h3><table class="wide">')
                body += [f"<tr><td>{breakable(name)}</td><td>{escape(what)}</td></tr>" for name, what in rows[:_ROWS]]
                body += [f"<tr><td>and {len(rows) - _ROWS} more</td><td></td></tr>"] if len(rows) > _ROWS else []
                body.append("</table>")
    body += [f'<p class="dim">allowed nothing: {escape(pattern)}</p>' for pattern in comparison.unused]
    return readable(document("Before and after", body))
