"""A part of the readings of two recorded hosts, spoilt; `python -m tests.truth` spoils all of all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.truth.rules import broken
from tests.truth.spoil import WHOLE, Place, chosen, judged

RECORDED = Path(__file__).parents[1] / "recorded"
RECORDINGS = [
    RECORDED / "reference" / "recording.json",
    RECORDED / "h200" / "two-gpus.json",
    RECORDED / "h200" / "two-gpus-topology.json",
    RECORDED / "h200" / "one-gpu.json",
    RECORDED / "sglang" / "recording.json",
    RECORDED / "sglang" / "dying.json",
]
SEED = 20261130


@pytest.mark.parametrize(("recording", "most"), [(RECORDINGS[0], 12), (RECORDINGS[1], 8)], ids=["reference", "h200"])
def test_no_fault_is_hidden_and_no_pass_outlives_its_source(recording: Path, most: int, tmp_path: Path) -> None:
    """Denied, absent, empty, garbage, cut, behind a banner: each makes ERROR, or the same, and nothing else."""
    answers = next(iter(json.loads(recording.read_text())["hosts"].values()))["capture"]["answers"]
    found = judged(tmp_path, recording, chosen(answers, SEED, most))
    assert len(found) > 3 * most
    assert list(broken(found)) == []


def test_rules_see_what_they_are_for() -> None:
    """Each rule is seen broken."""
    place = Place("boot", "", "cmdline")
    whole = {"fault": "failed", "good": "passed", "kept": "passed"}
    denied = {"fault": "error", "good": "error", "kept": "passed"}
    found = {(None, WHOLE): whole, (place, "denied"): denied}
    assert list(broken(found)) == []
    (hidden,) = broken({**found, (place, "empty"): {**denied, "fault": "passed"}})
    assert hidden.startswith("a fault is hidden")
    (outlives,) = broken({**found, (place, "garbage"): {**denied, "good": "passed"}})
    assert outlives.startswith("a pass outlives its source")
    (untrue,) = broken({**found, (place, "banner"): {**denied, "kept": "failed"}})
    assert untrue.startswith("what is unknown is told as wrong")
    gone = list(broken({**found, (place, "cut"): {}}))
    assert [line.split(":")[0] for line in gone] == ["a check is gone, and nothing says so"] * 3
