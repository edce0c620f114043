"""Deadlines of a request, the requests under way, and the secrets that nobody may see."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from pytest_gpuinfra.masking import Masker


class UnderWay:
    """
    Requests under way, which another thread may cut.

    Attributes:
        stopped: Set once they were cut; every later request is cut, too.
    """

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._cuts: set[Callable[[], None]] = set()

    def begin(self, cut: Callable[[], None]) -> None:
        """Take note of a request, and of what cuts it."""
        with self._lock:
            self._cuts.add(cut)
        if self.stopped.is_set():
            cut()

    def end(self, cut: Callable[[], None]) -> None:
        """Forget a request."""
        with self._lock:
            self._cuts.discard(cut)

    def stop(self) -> None:
        """Cut all of them, and those to come."""
        self.stopped.set()
        with self._lock:
            cuts = list(self._cuts)
        for cut in cuts:
            cut()


@dataclass(frozen=True, slots=True)
class Timeouts:
    """
    Deadlines of one request, in seconds.

    Attributes:
        connect_s: Until the connection stands.
        read_s: Longest silence. SGLang's /health is silent for 1 s, a cold first token for a minute.
        total_s: Whole request, from connect to the last byte.
    """

    connect_s: float = 5.0
    read_s: float = 60.0
    total_s: float = 120.0

    def within(self, total_s: float) -> Timeouts:
        """Give the same deadlines, none longer than total_s."""
        return Timeouts(min(self.connect_s, total_s), min(self.read_s, total_s), min(self.total_s, total_s))


@dataclass(frozen=True, slots=True)
class Limits:
    """What every exchange of one endpoint shares: deadlines, the requests under way, and the secrets to mask."""

    timeouts: Timeouts = Timeouts()
    secrets: tuple[str, ...] = field(default=(), repr=False)
    under_way: UnderWay = field(default_factory=UnderWay, repr=False)

    def masked(self, text: str) -> str:
        """Give the text without the API key, in any encoding; a key under 4 characters cannot be told from text."""
        return _masker(self.secrets).known(text) if self.secrets else text


@lru_cache(16)
def _masker(secrets: tuple[str, ...]) -> Masker:
    return Masker(secrets)
