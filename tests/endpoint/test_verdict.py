"""What every verdict has: four parts of a message, and the right exception where nothing was observed."""

from __future__ import annotations

from typing import Literal

import pytest

from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.subjects.verdict import Verdict


def _verdict(ending: Literal["ok", "wrong", "skip", "error"]) -> Verdict:
    return Verdict(
        ending=ending,
        subject="the subject",
        observed="355",
        expected="345",
        why="it is wrong",
        action="look",
        warnings=("a note",),
    )


def test_the_message_has_four_parts_and_the_notes():
    assert _verdict("wrong").message.splitlines() == [
        "the subject",
        "  observed: 355",
        "  expected: 345",
        "  why it matters: it is wrong",
        "  what to do: look",
        "  also: a note",
    ]


@pytest.mark.parametrize("ending", ["ok", "wrong", "skip"])
def test_what_was_observed_is_given_back(ending: Literal["ok", "wrong", "skip"]):
    verdict = _verdict(ending)

    assert verdict.settled() is verdict
    assert verdict.ok is (ending == "ok")


def test_what_was_not_observed_is_raised():
    with pytest.raises(FactUnavailable, match="the subject: 355\n  what to do: look"):
        _verdict("error").settled()
