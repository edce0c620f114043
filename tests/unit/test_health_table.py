"""The table of what nvidia-smi's leaves mean: an entry that is taken out may end in ERROR, and never in a pass."""

from __future__ import annotations

import re

from pytest_gpuinfra.subjects.gpu.health import read_health_table


def test_what_can_be_wrong_is_watched_even_without_its_entry() -> None:
    """A word that is a fault or a note is unknown, not neutral, to a table that lacks the entry."""
    table = read_health_table()
    for rule in table.leaves:
        words = {word.lower() for word in (*rule.fault, *rule.note)}
        if words:
            assert all(table.watched.search(path) for path in rule.paths), rule.paths
        assert words & table.neutral <= {"false", "no"}, rule.paths
    assert sum(bool(rule.fault) for rule in table.leaves) >= 15


def test_every_entry_says_why_and_since_when() -> None:
    """A reason for a person, and a driver that can be compared."""
    table = read_health_table()
    for rule in table.leaves:
        assert rule.reason
    for since in (rule.since for rule in (*table.leaves, *table.shown)):
        assert re.fullmatch(r"(?:\d{3}(?:\.\d{2,3})?)?", since), since


def test_what_must_be_shown_is_judged_when_it_is() -> None:
    """Nothing is required whose value nobody looks at."""
    table = read_health_table()
    for rule in table.shown:
        for path in rule.any:
            assert table.rule(path) is not None, path
