"""Captures of many hosts: the limit, slow ones that give their place, the deadline for all, and an interruption."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import pytest

from pytest_gpuinfra.capture import many as captures
from pytest_gpuinfra.capture.many import SLOW_MOST, Standing, capture_many


@dataclass(frozen=True)
class Host:
    """A host of a made run."""

    alias: str


class Made:
    """
    A made run: what was under way at the same time, and what became of each host.

    Args:
        slow: Aliases whose capture ends only when `go` is set.
    """

    def __init__(self, slow: frozenset[str] = frozenset()) -> None:
        self.slow = slow
        self.go = threading.Event()
        self.under_way = 0
        self.most = 0
        self.results: list[str] = []
        self.given_up: dict[str, bool] = {}
        self.goes_at = -1
        self._lock = threading.Lock()

    def take(self, host: Host) -> str:
        """Capture one."""
        with self._lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        if host.alias in self.slow:
            self.go.wait(20)
        else:
            time.sleep(0.02)
        with self._lock:
            self.under_way -= 1
        return host.alias

    def look(self, standing: Standing) -> None:
        """Let the slow ones end once so many of the others have."""
        if standing.done == self.goes_at:
            self.go.set()

    def give_up(self, host: Host, begun: bool) -> str:
        """Give up one."""
        self.given_up[host.alias] = begun
        return f"{host.alias} given up"

    def run(self, count: int, limit: int, deadline_s: float | None = None) -> None:
        """Capture hosts "0", "1" and so on."""
        capture_many(
            [Host(str(number)) for number in range(count)],
            self.take,
            limit=limit,
            deadline_s=deadline_s,
            give_up=self.give_up,
            on_done=self.results.append,
            on_look=self.look,
        )


def test_no_more_are_under_way_than_the_limit_says() -> None:
    """All are done, each once."""
    made = Made()
    made.run(30, 4)
    assert sorted(made.results, key=int) == [str(number) for number in range(30)]
    assert made.most == 4
    assert made.given_up == {}


def test_slow_ones_give_their_place_and_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow hosts, in front of all others and as many as the limit, hold up nobody; how many may do so is limited."""
    monkeypatch.setattr(captures, "SLOW_S", 0.2)
    made = Made(frozenset({"0", "1"}))
    made.goes_at = 10
    made.run(12, 2)
    assert made.results[-2:] == ["0", "1"] or made.results[-2:] == ["1", "0"]
    assert made.most <= 2 * SLOW_MOST


def test_slow_ones_are_told_with_their_time() -> None:
    """The longest first; where all take long, none is slow."""
    running = {"a": 27.0, "b": 7.0, "c": 0.5}
    assert list(Standing(5, 1, running).slow_s) == ["a", "b"]
    assert Standing(5, 1, running, slow_after_s=30.0).slow_s == {}


def test_deadline_gives_up_those_under_way_and_those_that_wait() -> None:
    """Each has a result, and its kind is told."""
    made = Made(frozenset({"0", "1"}))
    made.run(4, 2, deadline_s=0.3)
    made.go.set()
    assert made.given_up == {"0": True, "1": True, "2": False, "3": False}
    assert sorted(made.results) == [f"{number} given up" for number in range(4)]


def test_error_of_a_capture_ends_all_and_the_others_are_given_up() -> None:
    """What a capture raises is a fault of ours, and is not swallowed."""
    made = Made(frozenset({"0"}))
    took = made.take

    def take(host: Host) -> str:
        if host.alias == "1":
            raise ZeroDivisionError
        return took(host)

    made.take = take  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        made.run(2, 2)
    made.go.set()
    assert made.given_up == {"0": True}
