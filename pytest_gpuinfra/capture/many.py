"""
Captures of many hosts at the same time.

So many are under way as the limit says. One that takes long gives its place to the next and goes on beside it, so that
dead and slow hosts do not hold up the others; how many may go on like that is limited, too.
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Protocol, TypeVar

SLOW_S = 5.0
"""Seconds after which a capture counts as slow, and no longer against the limit."""

SLOW_TIMES = 3.0
"""How many times as long as half of those done it must also have taken: where all take long, the load is ours."""

SLOW_MOST = 4
"""Captures under way, slow ones included, as a multiple of the limit."""

_LOOK_S = 0.5


class Named(Protocol):
    """Something with an alias: a host that was selected."""

    @property
    def alias(self) -> str:
        """Its name."""
        ...


HostT = TypeVar("HostT", bound=Named)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Standing:
    """
    How far the captures are.

    Attributes:
        done: Hosts that have answered, or failed to.
        waiting: Hosts whose capture has not begun.
        running_s: Seconds that each capture under way has taken so far, by alias, the longest first.
        slow_after_s: Seconds after which one is slow.
    """

    done: int
    waiting: int
    running_s: dict[str, float]
    slow_after_s: float = SLOW_S

    @property
    def slow_s(self) -> dict[str, float]:
        """Those that take long."""
        return {alias: seconds for alias, seconds in self.running_s.items() if seconds >= self.slow_after_s}


def capture_many(
    hosts: Sequence[HostT],
    take: Callable[[HostT], ResultT],
    *,
    limit: int,
    deadline_s: float | None,
    give_up: Callable[[HostT, bool], ResultT],
    on_done: Callable[[ResultT], None],
    on_look: Callable[[Standing], None],
) -> None:
    """
    Capture hosts, each in a thread of its own.

    Args:
        hosts: Which, in the order in which they begin.
        take: Captures one; called in its thread.
        limit: Captures under way at the same time, slow ones left out.
        deadline_s: Seconds for all of them together; None for no limit.
        give_up: Makes the result of a host that the deadline has overtaken, and ends its connection; called with
            whether its capture had begun. Also called for every host that is left if this function is interrupted.
        on_done: Called in the calling thread with each result.
        on_look: Called in the calling thread twice a second, and at each result.

    Raises:
        BaseException: What `take` raised.
    """
    results: Queue[tuple[HostT, ResultT | None, BaseException | None]] = Queue()
    waiting = deque(hosts)
    running: dict[str, tuple[HostT, float]] = {}
    ends_at = None if deadline_s is None else time.monotonic() + deadline_s
    took_s: list[float] = []  # of those done, in order of length

    def work(host: HostT) -> None:
        try:
            results.put((host, take(host), None))
        except BaseException as error:  # it is raised again in the calling thread
            results.put((host, None, error))

    try:
        while waiting or running:
            now = time.monotonic()
            if ends_at is not None and now >= ends_at:
                for host in [host for host, _ in running.values()]:
                    on_done(give_up(host, True))
                for host in waiting:
                    on_done(give_up(host, False))
                running.clear()
                waiting.clear()
                return
            slow_after_s = max(SLOW_S, SLOW_TIMES * took_s[len(took_s) // 2]) if took_s else SLOW_S
            brisk = sum(now - began < slow_after_s for _, began in running.values())
            while waiting and brisk < limit and len(running) < limit * SLOW_MOST:
                host = waiting.popleft()
                running[host.alias] = host, now
                brisk += 1
                threading.Thread(target=work, args=(host,), name=f"capture {host.alias}", daemon=True).start()
            on_look(Standing(len(took_s), len(waiting), _seconds(running), slow_after_s))
            left_s = _LOOK_S if ends_at is None else max(0.0, min(_LOOK_S, ends_at - now))
            try:
                host, result, error = results.get(timeout=left_s)
            except Empty:
                continue
            _, began = running.pop(host.alias)
            if error is not None:
                raise error
            insort(took_s, time.monotonic() - began)
            on_done(result)  # type: ignore[arg-type]
    finally:
        for host, _ in running.values():
            on_done(give_up(host, True))
        for host in waiting:
            on_done(give_up(host, False))


def _seconds(running: dict[str, tuple[HostT, float]]) -> dict[str, float]:
    now = time.monotonic()
    return {alias: now - began for alias, (_, began) in sorted(running.items(), key=lambda item: item[1][1])}
