"""The page as Markdown and as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_gpuinfra.masking import Masker, mask_text
from pytest_gpuinfra.report.change_rows import Since
from pytest_gpuinfra.report.endpoint_picture import draw_endpoint
from pytest_gpuinfra.report.escaped import Shown, escape, readable
from pytest_gpuinfra.report.fleet.html import fleet_html
from pytest_gpuinfra.report.fleet.matrix import FLEET_STYLE
from pytest_gpuinfra.report.fleet.text import fleet_markdown
from pytest_gpuinfra.report.host_verdict import EACH, IN_FULL
from pytest_gpuinfra.report.page import HostPage, Page, Trouble
from pytest_gpuinfra.report.pair_picture import draw, summary

_SIGNS = {"good": "✅", "bad": "❌", "unknown": "❔"}
_LISTED = 20
_CHANGES = 40


def write_page(path: Path, page: Page, masker: Masker | None = None) -> None:
    """
    Write the page: HTML where the file's name ends so, else Markdown.

    Raises:
        OSError: It cannot be written.
    """
    text = page_html(page) if path.suffix in (".html", ".htm") else page_markdown(page)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(Shown(masker or Masker()).text(text), encoding="utf-8")


def page_markdown(page: Page) -> str:
    """Write the page as Markdown, for a pull request's comment."""
    parts = ["# May these GPU hosts take traffic?", ""]
    if page.fleet is not None:
        parts += fleet_markdown(page.fleet, markdown_line)
    shown, left = _in_full(page)
    parts += [_verdict_line(host) for host in shown]
    if left:
        parts += ["", f"Not in full: {left} more hosts; `gpuinfra report RECORDING --host=ALIAS` shows one."]
    for host in shown:
        parts += ["", f"## {host.alias}: {host.verdict}", ""]
        parts += _md_since(page.since.get(host.alias))
        parts += _md_findings(host)
        parts += _md_troubles("Wrong", host.failed)
        parts += _md_troubles("Could not be observed", host.unknown)
        if host.matrix is not None:
            parts += [f"**GPU pairs:** {markdown_line(summary(host.matrix))}", ""]
        rows = [*host.numbers.items(), *host.versions.items()]
        if rows:
            parts += [
                "| | |",
                "|---|---|",
                *(f"| {markdown_line(name)} | {markdown_line(value)} |" for name, value in rows),
                "",
            ]
        if host.skipped:
            parts += ["<details><summary>Not asked for: " + f"{sum(host.skipped.values())} checks</summary>", ""]
            parts += [f"- {markdown_line(reason)} ({count})" for reason, count in list(host.skipped.items())[:_LISTED]]
            parts += ["", "</details>"]
    parts += ["", "---", _footer(page)]
    return readable("\n".join(parts) + "\n")


def _in_full(page: Page) -> tuple[Sequence[HostPage], int]:
    """Give the hosts that have a section of their own, and how many have none: of many, the good ones."""
    if len(page.hosts) <= EACH:
        return page.hosts, 0
    shown = [host for host in page.hosts if host.mood != "good"][:IN_FULL]
    return shown, len(page.hosts) - len(shown)


def _verdict_line(host: HostPage) -> str:
    counts = ", ".join(f"{host.counts[name]} {name}" for name in ("failed", "error", "passed") if host.counts.get(name))
    because = f": {markdown_line(host.because)}" if host.because else ""
    return f"- {_SIGNS[host.mood]} **{host.alias} {host.verdict}** ({counts or 'no check ended'}){because}"


def _md_findings(host: HostPage) -> list[str]:
    if not host.findings:
        return []
    lines = ["### Diagnosis, causes first", ""]
    for number, finding in enumerate(host.findings, 1):
        lines.append(f"{number}. **{markdown_line(finding.title)}** ({finding.rung}, {finding.confidence})")
        lines += [f"   - seen: {markdown_line(line)}" for line in finding.evidence]
        lines += [f"   - not seen: {markdown_line(line)}" for line in finding.unseen]
        lines += [f"   - next: {markdown_line(str(step))}" for step in finding.steps]
    return [*lines, ""]


def _md_troubles(title: str, troubles: Sequence[Trouble]) -> list[str]:
    if not troubles:
        return []
    lines = [f"### {title}", ""]
    for trouble in troubles[:_LISTED]:
        message = trouble.message
        times = f" ({len(trouble.items)} checks)" if len(trouble.items) > 1 else ""
        lines.append(f"- **{markdown_line(message.subject)}**{times}")
        rows = message.parts
        lines += [f"  - {name}: {markdown_line(value)}" for name, value in rows if value]
    if len(troubles) > _LISTED:
        lines.append(f"- and {len(troubles) - _LISTED} more in the recording")
    return [*lines, ""]


def markdown_line(text: str) -> str:
    """Keep a text on its line, and Markdown and HTML out of it."""
    text = mask_text(text)  # before: a sign that is escaped stands within names, and lines tell what is whose
    flat = " ".join(text.split()) if len(text) < 2000 else " ".join(text[:2000].split()) + " ..."
    for sign in ("\\", "`", "*", "_", "|", "[", "]", "<", ">", "#"):
        flat = flat.replace(sign, {"<": "&lt;", ">": "&gt;"}.get(sign, f"\\{sign}"))
    return flat


def _footer(page: Page) -> str:
    recording = f"recording {page.recording}" if page.recording else "no recording was written"
    digest = f", sha256 {page.sha256}" if page.sha256 else ""
    return f"{page.started_at}; pytest-gpuinfra {page.plugin}; {recording}{digest}"


_STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1b1f24;--dim:#57606a;--line:#d8dee4;--soft:#f6f8fa;--good:#1a7f37;
--bad:#c9252d;--unknown:#8a5a00}
@media (prefers-color-scheme:dark){:root{--page:#0f1216;--ink:#e6edf3;--dim:#9aa4af;--line:#30363d;--soft:#171b21;
--good:#5ad17f;--bad:#ff7b72;--unknown:#e3b341}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:anywhere}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 3rem}h1{font-size:1.5rem;margin:0 0 1rem}
h2{font-size:1.2rem;margin:2.2rem 0 .3rem;padding-top:1rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.2rem 0 .4rem}.dim{color:var(--dim)}.good{color:var(--good)}.bad{color:var(--bad)}
.unknown{color:var(--unknown)}.verdicts{list-style:none;padding:0;margin:0}
.verdicts li{padding:.55rem .8rem;border:1px solid var(--line);border-left:5px solid;border-radius:6px;margin:.4rem 0;
border-left-color:currentColor}.verdicts li>*{color:var(--ink)}.verdicts b.v{color:inherit}
.verdicts .b{display:block;font-size:.92rem;color:var(--dim)}
.item{background:var(--soft);border:1px solid var(--line);border-radius:6px;padding:.7rem .9rem;margin:.5rem 0}
.item p{margin:0 0 .4rem;font-weight:600}dl{display:grid;grid-template-columns:8.5rem 1fr;gap:.15rem .8rem;margin:0}
dt{color:var(--dim)}dd{margin:0;white-space:pre-line}table{border-collapse:collapse;width:100%}
td{border-bottom:1px solid var(--line);padding:.3rem .6rem .3rem 0;vertical-align:top}td:first-child{color:var(--dim)}
.wide td:first-child{width:45%}
.picture{overflow-x:auto;border:1px solid var(--line);border-radius:8px}.picture svg{display:block;max-width:none}
summary{cursor:pointer}footer{margin-top:2rem;font-size:.85rem;color:var(--dim)}
@media (max-width:640px){dl{grid-template-columns:1fr}dt{margin-top:.3rem}}
""".replace("\n", "")


def page_html(page: Page) -> str:
    """Write the page as one HTML file."""
    body = ["<h1>May these GPU hosts take traffic?</h1>"]
    shown, left = _in_full(page)
    if page.fleet is not None:
        body += fleet_html(page.fleet, {host.alias for host in shown})
    body.append('<ul class="verdicts">')
    for host in shown:
        counts = ", ".join(
            f"{host.counts[n]} {n}" for n in ("failed", "error", "passed", "skipped") if host.counts.get(n)
        )
        because = f'<span class="b">{escape(host.because)}</span>' if host.because else ""
        body.append(
            f'<li class="{host.mood}"><a href="#{escape(host.alias)}"><b>{escape(host.alias)}</b></a> '
            f'<b class="v">{escape(host.verdict)}</b> <span class="dim">{escape(counts)}</span>{because}</li>'
        )
    body.append("</ul>")
    if left:
        told = f"Not in full: {left} more hosts; <code>gpuinfra report RECORDING --host=ALIAS</code> shows one."
        body.append(f'<p class="dim">{told}</p>')
    for host in shown:
        body += _html_host(host, page.since.get(host.alias))
    body.append(f"<footer>{escape(_footer(page))}</footer>")
    return readable(document("May these GPU hosts take traffic?", body))


def document(title: str, body: Sequence[str]) -> str:
    """Put a body into an HTML document with the page's style."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{FLEET_STYLE}</style></head><body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _html_since(since: Since | None) -> list[str]:
    if since is None:
        return []
    mood = "bad" if since.bad else "good"
    parts = ["<h3>Since the baseline</h3>", f'<p class="{mood}">{escape(since.headline.partition(": ")[2])}</p>']
    if since.rows:
        cells = [
            f"<tr><td>{escape(title)}: {breakable(name)}</td><td>{escape(what)}</td></tr>"
            for title, name, what in since.rows[:_CHANGES]
        ]
        parts += ['<table class="wide">', *cells, "</table>"]
    if len(since.rows) > _CHANGES:
        parts.append(f'<p class="dim">and {len(since.rows) - _CHANGES} more; <code>gpuinfra compare</code> has all</p>')
    return parts


def _md_since(since: Since | None) -> list[str]:
    if since is None:
        return []
    lines = [f"**Since the baseline:** {markdown_line(since.headline.partition(': ')[2])}", ""]
    if since.rows:
        lines += ["| what | change |", "|---|---|"]
        lines += [
            f"| {title.lower()}: {markdown_line(name)} | {markdown_line(what)} |"
            for title, name, what in since.rows[:_CHANGES]
        ]
        lines += [f"| and {len(since.rows) - _CHANGES} more | |"] if len(since.rows) > _CHANGES else []
        lines.append("")
    return lines


def breakable(name: str) -> str:
    """Make a long name one of HTML that may break between its words on narrow screens."""
    return escape(name).replace("_", "_<wbr>").replace("::", "::<wbr>").replace("/", "/<wbr>")


def _html_host(host: HostPage, since: Since | None) -> list[str]:
    parts = [
        f'<h2 id="{escape(host.alias)}">{escape(host.alias)}: '
        f'<span class="{host.mood}">{escape(host.verdict)}</span></h2>',
        f'<div class="dim">{escape(host.reached)}</div>',
        *_html_since(since),
    ]
    if host.findings:
        parts.append("<h3>Diagnosis, causes first</h3>")
    for finding in host.findings:
        rows = [("seen", line) for line in finding.evidence] + [("not seen", line) for line in finding.unseen]
        rows += [
            ("next", f"{step.do}\ncosts: {step.costs}")
            if step.open
            else ("not open here", f"{step.do}\nbecause: {step.costs}")
            for step in finding.steps
        ]
        cells = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in rows)
        sure = f'<span class="dim">{finding.rung}, {finding.confidence}</span>'
        parts.append(f'<div class="item"><p>{escape(finding.title)} {sure}</p><dl>{cells}</dl></div>')
    parts += _html_troubles("Wrong", host.failed)
    parts += _html_troubles("Could not be observed", host.unknown)
    if host.matrix is not None:
        parts += ["<h3>GPU pairs</h3>", f'<div class="picture">{draw(host.matrix, f"all pairs of {host.alias}")}</div>']
    if host.endpoint is not None:
        picture = draw_endpoint(host.endpoint, f"endpoint of {host.alias}")
        parts += ["<h3>Endpoint</h3>", f'<div class="picture">{picture}</div>']
    for title, values in (("Numbers", host.numbers), ("What it is", host.versions)):
        if values:
            lines = [f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in values.items()]
            parts += [f"<h3>{title}</h3><table>", *lines, "</table>"]
    if host.skipped:
        parts.append(f"<details><summary>Not asked for: {sum(host.skipped.values())} checks</summary><ul>")
        parts += [f"<li>{escape(reason)} ({count})</li>" for reason, count in list(host.skipped.items())[:_LISTED]]
        parts.append("</ul></details>")
    return parts


def _html_troubles(title: str, troubles: Sequence[Trouble]) -> list[str]:
    if not troubles:
        return []
    parts = [f"<h3>{title}</h3>"]
    for trouble in troubles[:_LISTED]:
        message = trouble.message
        times = f' <span class="dim">{len(trouble.items)} checks</span>' if len(trouble.items) > 1 else ""
        rows = message.parts
        cells = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in rows if value)
        parts.append(f'<div class="item"><p>{escape(message.subject)}{times}</p><dl>{cells}</dl></div>')
    if len(troubles) > _LISTED:
        parts.append(f'<p class="dim">and {len(troubles) - _LISTED} more in the recording</p>')
    return parts
