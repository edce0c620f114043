"""A comparison for people and programs: terminal, Markdown, HTML, JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape

from rich.console import Console
from rich.text import Text

from pytest_gpuinfra.compare import Change, Comparison, HostComparison, Weight
from pytest_gpuinfra.masking import mask_data, mask_text
from pytest_gpuinfra.report.page_text import document, markdown_line

_TITLES: tuple[tuple[Weight, str], ...] = (
    ("regression", "Unexpected"),
    ("expected", "Expected"),
    ("better", "Better"),
)
_STYLES = {"regression": "bold red", "expected": "cyan", "better": "green"}
_LISTED = 40


def group(changes: Sequence[Change]) -> list[tuple[str, str]]:
    """
    Bring changes that say the same of several things into one row.

    Returns:
        (names, what changed), in the order of the first of each. Shape (n,).
    """
    rows: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        before = "absent" if change.before is None else change.before
        after = "absent" if change.after is None else change.after
        note = f" ({change.note})" if change.note else ""
        parts = change.name.split("/")
        about = f"{parts[0]}/.../{parts[-1]}" if len(parts) > 2 and change.kind != "ending" else change.name
        if change.kind == "ending":
            about = change.name.partition("[")[0]
            note = "" if ": " in note else note
        if change.kind == "number":
            rows[change.name, f"{before} -> {after}{note}"] = [change]
        else:
            rows.setdefault((about, f"{before} -> {after}{note}"), []).append(change)
    found = []
    for (about, what), same in rows.items():
        if len(same) == 1:
            found.append((same[0].name, f"{what}{_why(same[0])}"))
        else:
            subjects = [_subject(change) for change in same]
            more = f" and {len(subjects) - 6} more" if len(subjects) > 6 else ""
            found.append((f"{about} of {', '.join(subjects[:6])}{more}", f"{what}{_why(same[0])}"))
    return found


def _why(change: Change) -> str:
    return f" ({change.note})" if change.kind == "ending" and ": " in change.note else ""


def _subject(change: Change) -> str:
    if change.kind == "ending":
        return change.name.partition("[")[2].rstrip("]") or "the host"
    return "/".join(change.name.split("/")[1:-1])


def headline(host: HostComparison) -> str:
    """Put a host's comparison into one line."""
    counts = [f"{len(host.of(weight))} {title.lower()}" for weight, title in _TITLES if host.of(weight)]
    boot = {True: "rebooted", False: "same boot", None: "boot not known from both"}[host.boot_changed]
    return f"{host.host}: {', '.join(counts) or 'no change'}; {host.same} the same; {boot}"


def show(comparison: Comparison, console: Console) -> None:
    """Print a comparison."""
    console.print(Text(f"before: {comparison.before}   after: {comparison.after}", "dim"))
    for host in comparison.hosts:
        console.print(Text(mask_text(headline(host)), "bold"), soft_wrap=True)
        for weight, title in _TITLES:
            rows = group(host.of(weight))
            for name, what in rows[:_LISTED]:
                line = Text(f"  {title.lower()}: ", _STYLES[weight]) + Text(mask_text(f"{name}: {what}"))
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
                "changes": [{key: value for key, value in asdict(c).items() if key != "host"} for c in host.changes],
            }
            for host in comparison.hosts
        ],
    }
    return json.dumps(mask_data(data), indent=1, ensure_ascii=False) + "\n"


def as_markdown(comparison: Comparison) -> str:
    """Give a comparison as Markdown."""
    parts = ["# Before and after", "", f"Before: {comparison.before}. After: {comparison.after}.", ""]
    for host in comparison.hosts:
        sign = "❌" if host.of("regression") else "✅"
        parts += [f"## {sign} {markdown_line(headline(host))}", ""]
        for weight, title in _TITLES:
            rows = group(host.of(weight))
            if rows:
                parts += [f"### {title}", "", "| what | change |", "|---|---|"]
                parts += [f"| {markdown_line(name)} | {markdown_line(what)} |" for name, what in rows[:_LISTED]]
                parts += [f"| and {len(rows) - _LISTED} more | |"] if len(rows) > _LISTED else []
                parts.append("")
    parts += [f"- allowed nothing: {markdown_line(pattern)}" for pattern in comparison.unused]
    return mask_text("\n".join(parts).rstrip() + "\n")


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
        for weight, title in _TITLES:
            rows = group(host.of(weight))
            if rows:
                body.append(f'<h3 class="{moods[weight]}">{title}</h3><table class="wide">')
                body += [f"<tr><td>{escape(name)}</td><td>{escape(what)}</td></tr>" for name, what in rows]
                body.append("</table>")
    body += [f'<p class="dim">allowed nothing: {escape(pattern)}</p>' for pattern in comparison.unused]
    return mask_text(document("Before and after", body))
