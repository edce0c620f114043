"""
Ctrl-C and SIGTERM: the first one ends a session within seconds, with what was gathered; later ones change nothing.

Whatever the main thread waits for comes to its end, since all connections and requests are ended beside it. What is
written afterwards takes a moment, in which a second Ctrl-C would lose it, and leave things behind.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuinfra.session.session import Session


class Interrupts:
    """
    Takes the two signals of this process, where nobody else does.

    Args:
        session: Learns of it, and ends everything that it waits for, in a thread of its own.

    Attributes:
        taken: Whether one has come.
        workers: Process ids of xdist's workers, which are interrupted, too.
    """

    def __init__(self, session: Session) -> None:
        self.taken = False
        self.workers: set[int] = set()
        self._session = session
        self._finishing = False
        self._installed: set[int] = set()
        if threading.current_thread() is not threading.main_thread():
            return
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) is usual:
                signal.signal(number, self._take)
                self._installed.add(number)

    def finishing(self) -> None:
        """Say that the session comes to its end: what is being written is not interrupted any more."""
        self._finishing = True

    def restore(self) -> None:
        """Give the signals back, unless one has come: then this process ends, and is not interrupted in that."""
        if self.taken or threading.current_thread() is not threading.main_thread():
            return
        for number in self._installed:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        self._installed.clear()

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self.taken:
            return
        self.taken = True
        if self._finishing:
            return
        self._session.interrupted = True
        for worker in self.workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGINT)
        threading.Thread(target=self._session.stop, daemon=True, name="gpuinfra-stop").start()
        if number == signal.SIGTERM:
            raise pytest.exit.Exception("gpuinfra: ended by SIGTERM", returncode=pytest.ExitCode.INTERRUPTED)
        raise KeyboardInterrupt
