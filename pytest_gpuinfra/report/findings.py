"""The diagnosis in the terminal, before the table of hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from pytest_gpuinfra.report.masked import shown_of

if TYPE_CHECKING:
    from pytest_gpuinfra.diagnosis.finding import Finding
    from pytest_gpuinfra.session.session import Session

_SHOWN = 5
_LINES = 8
EACH_DIAGNOSED = 8
"""Hosts of one run up to which evidence and steps are printed, too; the report holds them for any number."""
_STYLES = {"certain": "bold red", "likely": "bold yellow", "possible": "bold"}


def show_findings(console: Console, session: Session) -> None:
    """
    Print what is wrong with each host, why, and what to do; nothing where nothing wrong was seen.

    Of many hosts, those whose items all passed or were skipped are left out: a diagnosis takes its time for each.
    """
    mask = shown_of(session).text
    for alias in session.hosts:
        if len(session.hosts) > EACH_DIAGNOSED and alias not in session.wrong:
            continue
        findings = session.parsed.findings(alias)
        if not findings:
            continue
        console.print(Text(f"{alias}: diagnosis, causes first", "bold"), soft_wrap=True)
        for number, finding in enumerate(findings[:_SHOWN], 1):
            _show(console, number, finding, mask, brief=len(session.hosts) > EACH_DIAGNOSED)
        if len(findings) > _SHOWN:
            more = "; ".join(finding.title for finding in findings[_SHOWN:])
            console.print(Text(f"  and {len(findings) - _SHOWN} more: {more}"), soft_wrap=True)
        console.print()


def _show(console: Console, number: int, finding: Finding, mask: Callable[[str], str], *, brief: bool) -> None:
    head = Text(f"  {number}. ") + Text(finding.title, _STYLES[finding.confidence])
    console.print(head + Text(f" [{finding.rung}, {finding.confidence}]"), soft_wrap=True)
    if brief:
        return
    for line in finding.evidence[:_LINES]:
        console.print(Text(f"     seen: {mask(line)}"), soft_wrap=True)
    for line in finding.unseen[:_LINES]:
        console.print(Text(f"     not seen: {mask(line)}", "dim"), soft_wrap=True)
    for step in finding.steps:
        console.print(Text(f"     {'next' if step.open else 'not open here'}: {mask(step.do)}"), soft_wrap=True)
        console.print(Text(f"       {'costs' if step.open else 'because'}: {step.costs}"), soft_wrap=True)
