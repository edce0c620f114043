"""Climbs the readiness ladder: the I/O behind readiness.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpuinfra.endpoint.chat import parse_chat
from pytest_gpuinfra.endpoint.failures import BrokenAnswer, BrokenAnswerKind, NoAnswer
from pytest_gpuinfra.endpoint.health import ALIVE, parse_health
from pytest_gpuinfra.endpoint.models import parse_models
from pytest_gpuinfra.endpoint.readiness import RUNGS, Readiness, Rung, RungName, Stop, UnitState
from pytest_gpuinfra.endpoint.status import expect_200
from pytest_gpuinfra.errors import EndpointError, ParseError

if TYPE_CHECKING:
    from pytest_gpuinfra.endpoint.client import InferenceEndpoint
    from pytest_gpuinfra.endpoint.http import HttpAnswer

FIRST_LOOK_S: dict[RungName, float] = {"port": 5.0, "health": 25.0, "models": 15.0, "token": 60.0}
"""Longest that a rung may take, in seconds. SGLang's /health takes 1 s and gives up after 20."""

UNIT_EVERY_S = 2.0
PROGRESS_EVERY_S = 10.0
WRONG_MODEL_SETTLES_S = 10.0
"""A healthy server that lists other models for so long will not change its mind."""


@dataclass(slots=True)
class Ladder:
    """One climb."""

    endpoint: InferenceEndpoint
    wait_s: float
    model: str | None
    unit_state: Callable[[], UnitState | None] | None
    on_progress: Callable[[str], None] | None
    sleep: Callable[[float], None] = time.sleep
    started: float = field(default_factory=time.monotonic)
    rungs: dict[RungName, Rung] = field(default_factory=lambda: {name: Rung(name) for name in RUNGS})
    models: tuple[str, ...] = ()
    unit: UnitState | None = None
    first_unit: UnitState | None = None
    unit_asked_s: float = -UNIT_EVERY_S
    wrong_model_since_s: float | None = None
    unauthorized: bool = False
    foreign: bool = False
    history: list[str] = field(default_factory=list)
    shown: str = ""
    shown_s: float = 0.0

    def climb(self) -> Readiness:
        """Look, and look again, until there is a reason to stop."""
        pause = 0.1
        while True:
            self._look()
            stop = self._stop()
            self._progress(stop)
            if stop is not None:
                return self._result(stop)
            self.sleep(min(pause, max(0.0, self._left())))
            pause = min(1.0, pause * 1.4)

    def _look(self) -> None:
        self.unauthorized = self.foreign = False
        steps: tuple[tuple[RungName, Callable[[float], str]], ...] = (
            ("port", self._port),
            ("health", self._health),
            ("models", self._models),
            ("token", self._token),
        )
        for at, (name, step) in enumerate(steps):
            before = time.monotonic()
            try:
                said, good = step(self._allowed(name)), True
            except (EndpointError, OSError) as error:
                said, good = getattr(error, "reason", "") or str(error), False
                self.unauthorized = isinstance(error, NoAnswer) and error.kind == "unauthorized"
                self.foreign = isinstance(error, BrokenAnswer) and error.kind == "content-type"
            self._note(name, said, good=good, took_s=time.monotonic() - before)
            if not good:
                for later, _ in steps[at + 1 :]:
                    self.rungs[later] = replace(self.rungs[later], reached_s=None)
                return

    def _note(self, name: RungName, said: str, *, good: bool, took_s: float) -> None:
        rung = self.rungs[name]
        reached = (self._now() if rung.reached_s is None else rung.reached_s) if good else None
        self.rungs[name] = Rung(name, reached, took_s, rung.attempts + 1, said)

    def _port(self, total_s: float) -> str:
        self.endpoint.port_open(total_s)
        return "connection taken"

    def _health(self, total_s: float) -> str:
        try:
            answer = self.endpoint.get("/health", total_s=total_s)
        except NoAnswer as error:
            if error.kind in ("refused", "closed"):  # a tunnel takes every connection: the port is not open
                self.rungs["port"] = replace(self.rungs["port"], reached_s=None, last=error.reason)
            raise
        health = parse_health(answer.status, answer.text, answer.content_type)
        if health.state in ALIVE:
            return str(health)
        if health.state == "absent":
            return f"{health}: this server has no health route, so models and token decide"
        if health.state == "unauthorized":
            raise NoAnswer("unauthorized", f"/health: {health}", status=health.status)
        where = f" to {answer.headers.get('location')}" if health.state == "redirect" else ""
        kind: BrokenAnswerKind = "content-type" if health.state == "foreign" else "status"
        raise BrokenAnswer(kind, f"/health: {health}{where}", status=health.status, text=answer.text)

    def _models(self, total_s: float) -> str:
        answer = expect_200(self.endpoint.get("/v1/models", total_s=total_s))
        try:
            self.models = parse_models(answer.text).ids
        except ParseError as error:
            raise BrokenAnswer("shape", f"/v1/models: {error.reason}{self._for_everything()}") from None
        more = f" and {len(self.models) - 20} more" if len(self.models) > 20 else ""
        listed = (", ".join(self.models[:20]) or "nothing") + more
        if self.models and (self.model is None or self.model in self.models):
            self.wrong_model_since_s = None
            return f"lists {listed}"
        if self.wrong_model_since_s is None:
            self.wrong_model_since_s = self._now()
        raise BrokenAnswer("shape", f"/v1/models lists {listed}, not {self.model or 'a model'}", status=200)

    def _token(self, total_s: float) -> str:
        endpoint = self.endpoint
        model = self.model or self.models[0]
        body = endpoint.request_body("Hello", model=model, max_tokens=1)
        answer = endpoint.post(endpoint.path, body, total_s=total_s)
        chat = parse_chat(expect_200(answer).text)
        if not chat.generated:
            raise BrokenAnswer("shape", f"{endpoint.path}: status 200, and no token: {answer.text[:200]}", status=200)
        return f"{chat.usage.completion_tokens or 'some'} token in {answer.took_s:.3f} s"

    def _for_everything(self) -> str:
        """Say so if the server answers 200 for a path that cannot exist."""
        try:
            answer: HttpAnswer = self.endpoint.get("/pytest-gpuinfra/no-such-path", total_s=5.0)
        except EndpointError:
            return ""
        return "; it answers 200 for a path that does not exist, too: a proxy" if answer.status == 200 else ""

    def _stop(self) -> Stop | None:
        if all(rung.reached_s is not None for rung in self.rungs.values()):
            return "ready"
        self._ask_unit()
        if self._unit_is_lost():
            return "unit"
        if self.unauthorized:
            return "unauthorized"
        since = self.wrong_model_since_s
        if since is not None and self._now() - since >= WRONG_MODEL_SETTLES_S:
            return "model"
        return None if self._left() > 0 else "foreign" if self.foreign else "deadline"

    def _ask_unit(self) -> None:
        if self.unit_state is None or self._now() - self.unit_asked_s < UNIT_EVERY_S:
            return
        self.unit_asked_s = self._now()
        self.unit = self.unit_state() or self.unit
        self.first_unit = self.first_unit or self.unit

    def _unit_is_lost(self) -> bool:
        unit, first = self.unit, self.first_unit
        if unit is None or first is None:
            return False
        now, then = unit.restarts or 0, first.restarts or 0
        flaps = now - then >= 2 or (unit.sub == "auto-restart" and now >= 3)
        stopped = unit.active == "inactive" and first.active in ("active", "activating")
        return unit.active == "failed" or flaps or stopped

    def _allowed(self, name: RungName) -> float:
        if self.wait_s <= 0:
            return FIRST_LOOK_S[name]
        least = 0.2 if self.rungs[name].attempts else 5.0
        return min(FIRST_LOOK_S[name], max(least, self._left()))

    def _progress(self, stop: Stop | None) -> None:
        missing = next((rung for rung in self.rungs.values() if rung.reached_s is None), None)
        state = "ready" if missing is None else f"waiting for {missing.name}: {missing.last}"
        unit = f"; {self.unit}" if self.unit and missing is not None else ""
        if state + unit != self.shown:
            self.history.append(f"{self._now():7.2f} s  {state}{unit}")
        elif self._now() - self.shown_s < PROGRESS_EVERY_S and stop is None:
            return
        self.shown, self.shown_s = state + unit, self._now()
        if self.on_progress is not None:
            self.on_progress(f"{self.endpoint.base_url}: {self._now():.0f} s of {self.wait_s:g} s, {state}{unit}")

    def _result(self, stop: Stop) -> Readiness:
        return Readiness(
            base_url=self.endpoint.base_url,
            rungs=tuple(self.rungs[name] for name in RUNGS),
            stop=stop,
            waited_s=self._now(),
            wait_s=self.wait_s,
            expected_model=self.model,
            models=self.models,
            unit=self.unit,
            history=tuple(self.history),
        )

    def _now(self) -> float:
        return time.monotonic() - self.started

    def _left(self) -> float:
        return self.wait_s - self._now()
