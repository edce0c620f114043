"""Folders of cases that are not our own: one case that cannot be run leaves the others as they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.cases.case import OWN, read_cases
from tests.cases.machine import judge, run_cases

XID = "[ 9.1] NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def entry(number: int, topic: str, text: str) -> dict[str, str]:
    return {"id": f"F{number}", "topic": topic, "verdict": "fail", "input": text, "reason": ""}


def test_older_form_is_converted_and_one_that_cannot_be_is_unread_alone(tmp_path: Path) -> None:
    rows = [entry(1, "xid-log", XID), entry(2, "p2p-copy", "source [1, 2]\ncopy [1]\n"), entry(3, "unheard-of", "x")]
    (tmp_path / "cases.json").write_text(json.dumps(rows), encoding="utf-8")

    xid, copy, other = read_cases(tmp_path)

    assert judge(xid, run_cases([xid], tmp_path)) == "fail"
    assert copy.unread.startswith("the converter does not take it: ValueError")
    assert other.unread == "no check reads this"


def test_machine_that_is_declared_wrongly_is_error_alone(tmp_path: Path) -> None:
    case = next(case for case in read_cases(OWN) if case.id == "C011")
    refused = replace(case, id="R1", hosts=[{**case.hosts[0], "spec": {"expect": {"no_such_key": 1}}}])

    ended = run_cases([case, refused, replace(case, id="R2")], tmp_path)

    assert [judge(one, ended) for one in (case, refused, replace(case, id="R2"))] == ["fail", "error", "fail"]
    assert "no_such_key" in ended["r1-0"][0].message
