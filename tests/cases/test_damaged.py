"""What a machine shows, cut off or replaced by garbage: no item passes for it, and none gives a traceback."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

from tests.cases.case import OWN, Case, read_cases
from tests.cases.machine import judge, of_case, run_cases

GARBAGE = "lorem ipsum\n\x00 dolor\n"


def damaged(case: Case, word: str, *, keep: float) -> Case:
    """Cut every text of a case's machines off, or put garbage in place of it where nothing is kept."""
    hosts = copy.deepcopy(list(case.hosts))
    for host in hosts:
        for row in host.get("readings", ()):
            if row[3] and row[3].get("t"):
                row[3]["t"] = row[3]["t"][: int(len(row[3]["t"]) * keep)] if keep else GARBAGE
    return replace(case, id=f"{case.id}{word}", hosts=hosts)


def test_damaged_readings_never_pass_and_give_no_traceback(tmp_path: Path) -> None:
    shown = [case for case in read_cases(OWN) if case.texts() and not case.unread]
    garbage = [damaged(case, "garbage", keep=0) for case in shown]
    cut = [damaged(case, f"cut{part}", keep=part / 10) for case in shown for part in (3, 8)]

    ended = run_cases([*garbage, *cut], tmp_path)

    for case in garbage:  # what a machine with one GPU is skipped for does not hang on these texts
        assert judge(case, ended) in ("error", "fail", *(["skip"] if case.verdict == "skip" else [])), case.id
    assert [case.id for case in cut if judge(case, ended) == "nothing"] == []
    messages = {(case.id, item.message) for case in (*garbage, *cut) for item in of_case(case, ended)}
    assert [pair for pair in messages if "Traceback" in pair[1]] == []
