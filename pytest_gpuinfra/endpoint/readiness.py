"""
The readiness ladder: port, health, models, one token; each rung timed, the last answer kept.

"200 OK" is not ready: SGLang's port opens before the weights are in use, model lists are static,
and a proxy answers 200 for everything. Only a token proves a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

RungName: TypeAlias = Literal["port", "health", "models", "token"]
RUNGS: tuple[RungName, ...] = ("port", "health", "models", "token")

Stop: TypeAlias = Literal["ready", "deadline", "unit", "unauthorized", "model", "foreign"]
"""
ready: all rungs. deadline: the time is over. unit: the service's unit failed or flaps.
foreign: the time is over, and a web page came in the API's place.
unauthorized: the key is missing or wrong. model: a healthy server lists other models and keeps to it.
"""


@dataclass(frozen=True, slots=True)
class UnitState:
    """
    State of the service's systemd unit at one moment.

    Attributes:
        active: systemd's ActiveState, verbatim ("active", "activating", "failed", "inactive", ...).
        sub: systemd's SubState, verbatim ("running", "auto-restart", ...).
        restarts: systemd's NRestarts; None if it is not known.
        journal_tail: Last lines of its journal; "" if they were not read.
        name: Name of the unit.
    """

    active: str
    sub: str = ""
    restarts: int | None = None
    journal_tail: str = ""
    name: str = ""

    def __str__(self) -> str:
        shown = f"{self.name or 'unit'} is {self.active}" + (f" ({self.sub})" if self.sub else "")
        return shown + (f", restarted {self.restarts} times" if self.restarts else "")


@dataclass(frozen=True, slots=True)
class Rung:
    """
    One rung of the ladder.

    Attributes:
        name: port, health, models or token.
        reached_s: When it was reached for good, in seconds from the start; None if it is not reached.
        took_s: Duration of the last attempt, in seconds; None if it was never tried.
        attempts: How often it was tried.
        last: Last answer, in one line; "" if it was never tried.
    """

    name: RungName
    reached_s: float | None = None
    took_s: float | None = None
    attempts: int = 0
    last: str = ""

    def __str__(self) -> str:
        when = "not tried" if not self.attempts else "no" if self.reached_s is None else f"{self.reached_s:.2f} s"
        return f"{self.name}: {when}{f' [{self.last}]' if self.last else ''}"


@dataclass(frozen=True, slots=True)
class Readiness:
    """
    How far a server got within the time that it was given.

    Attributes:
        base_url: Server that was asked.
        rungs: port, health, models, token, in this order. Shape (4,).
        stop: Why the climb ended.
        waited_s: How long it took, in seconds.
        wait_s: How long it might have taken, in seconds.
        expected_model: Id that the list had to hold; None if any would do.
        models: Ids of the last model list.
        unit: Last state of the service's unit; None if it was not asked or not told.
        history: Each change, with its moment: the progress lines.
    """

    base_url: str
    rungs: tuple[Rung, ...]
    stop: Stop
    waited_s: float
    wait_s: float
    expected_model: str | None = None
    models: tuple[str, ...] = ()
    unit: UnitState | None = None
    history: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether every rung was reached."""
        return all(rung.reached_s is not None for rung in self.rungs)

    @property
    def reached(self) -> RungName | None:
        """Highest rung reached; None if not even the port is open."""
        good = [rung.name for rung in self.rungs if rung.reached_s is not None]
        return good[-1] if good else None

    @property
    def missing(self) -> Rung | None:
        """First rung that was not reached; None if it is ready."""
        return next((rung for rung in self.rungs if rung.reached_s is None), None)

    def rung(self, name: RungName) -> Rung:
        """Give one rung."""
        return self.rungs[RUNGS.index(name)]

    def __str__(self) -> str:
        return "\n".join(str(rung) for rung in self.rungs)
