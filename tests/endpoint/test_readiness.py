"""The ladder against servers in each state of their lives."""

from __future__ import annotations

import threading
import time

import pytest

from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.embedded import EmbeddedServer
from pytest_gpuinfra.endpoint.judge_readiness import judge_readiness
from pytest_gpuinfra.endpoint.readiness import Readiness, UnitState
from tests.endpoint.servers import RawServer, Reply, Request, Server, as_json, proxy, replay, unused_port

ONE_TOKEN = {"choices": [{"message": {"content": ""}, "finish_reason": "length"}], "usage": {"completion_tokens": 1}}


def _readiness(server: Server | RawServer, **options: object) -> Readiness:
    with InferenceEndpoint(server.base_url) as endpoint:
        return endpoint.readiness(**options)


def test_sglang_starts_as_it_does(monkeypatch: pytest.MonkeyPatch):
    """Refused, then 503 with an empty body, then 200 after a second's silence: SGLang's own states and bodies."""
    port = unused_port()
    bodies = replay("sglang-tp2-plain")
    started = time.monotonic() + 0.5

    def answer(request: Request) -> Reply | None:
        if request.path == "/health":
            loading = time.monotonic() - started < 0.5
            return Reply(503, b"", None) if loading else Reply(200, b"", None, wait_s=1.0)
        return bodies(request)

    servers: list[Server] = []
    starter = threading.Timer(0.5, lambda: servers.append(Server(answer, port)))
    starter.start()
    with InferenceEndpoint(f"http://127.0.0.1:{port}") as endpoint:
        readiness = endpoint.readiness(wait_s=20, model="tiny-times")
    starter.join()
    servers[0].close()

    assert judge_readiness(readiness).ok, judge_readiness(readiness).message
    assert [line.split("waiting for ")[-1].split(":")[0] for line in readiness.history[:2]] == ["port", "health"]
    assert "503 with an empty body (starting)" in readiness.history[1]
    assert readiness.history[-1].endswith("ready")
    assert readiness.rung("health").took_s == pytest.approx(1.0, abs=0.3)
    assert readiness.rung("port").attempts > 2
    assert readiness.rung("port").reached_s < 1 < readiness.rung("health").reached_s


def test_a_model_list_before_the_warm_up_is_not_ready():
    with Server(replay("sglang-tp2-plain", health=Reply(503, b"", None))) as server:
        readiness = _readiness(server, wait_s=0.5)

    verdict = judge_readiness(readiness)
    assert (readiness.ready, readiness.reached, readiness.stop) == (False, "port", "deadline")
    assert verdict.ending == "wrong"
    assert "503 with an empty body" in verdict.message
    assert "health not reached" in verdict.message


def test_a_server_without_tokens_is_not_ready():
    with Server(replay("sglang-tp2-plain", chat=Reply(500, b"Internal Server Error", "text/plain"))) as server:
        readiness = _readiness(server)

    assert readiness.reached == "models"
    assert "status 500" in judge_readiness(readiness).observed


def test_one_token_without_text_is_a_token():
    with Server(replay("sglang-tp2-plain", chat=as_json(ONE_TOKEN))) as server:
        assert _readiness(server).ready


def test_a_server_without_a_health_route_is_judged_by_its_token():
    with Server(replay("sglang-tp2-plain", health=as_json({"detail": "Not Found"}, 404))) as server:
        readiness = _readiness(server)

    assert readiness.ready
    assert "no health route" in readiness.rung("health").last


@pytest.mark.parametrize(
    ("reply", "reached", "says"),
    [
        (Reply(200, b"<html>Welcome</html>", "text/html"), "port", "foreign"),
        (Reply(200, b"{}"), "health", "answers 200 for a path that does not exist"),
        (Reply(200, b"OK", "text/plain"), "health", "answers 200 for a path that does not exist"),
        (Reply(301, b"", headers={"location": "https://login.example"}), "port", "login.example"),
    ],
    ids=["a-page", "json", "text", "redirect"],
)
def test_something_that_answers_everything_is_not_ready(reply: Reply, reached: str, says: str):
    with Server(lambda _: reply) as server:
        readiness = _readiness(server)

    assert readiness.reached == reached
    assert says in judge_readiness(readiness).observed


def test_another_model_ends_the_wait(llama: EmbeddedServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pytest_gpuinfra.endpoint.ladder.WRONG_MODEL_SETTLES_S", 0.3)

    def other(request: Request, reply: Reply) -> Reply:
        return as_json({"data": [{"id": "llama-70b"}]}) if request.path == "/v1/models" else reply

    with Server(proxy(llama.base_url, other)) as server:
        readiness = _readiness(server, wait_s=60, model="tiny-times")

    verdict = judge_readiness(readiness)
    assert readiness.stop == "model"
    assert readiness.waited_s < 5
    assert verdict.ending == "wrong"
    assert "lists llama-70b, not tiny-times" in verdict.observed


def test_a_tunnel_to_a_closed_port_has_no_port():
    with RawServer([b""]) as tunnel:
        readiness = _readiness(tunnel)

    assert readiness.reached is None
    assert "closed before any answer" in readiness.rung("port").last


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        ([UnitState("failed", "failed", journal_tail="CUDA out of memory", name="sglang.service")], "CUDA out of"),
        ([UnitState("activating", "auto-restart", restarts) for restarts in (1, 2, 3)], "restarted 3 times"),
        ([UnitState("active", "running"), UnitState("inactive", "dead")], "inactive (dead)"),
    ],
    ids=["failed", "flaps", "stopped"],
)
def test_a_lost_unit_ends_the_wait(states: list[UnitState], shown: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pytest_gpuinfra.endpoint.ladder.UNIT_EVERY_S", 0.0)
    left = iter(states)
    with InferenceEndpoint(f"http://127.0.0.1:{unused_port()}") as endpoint:
        readiness = endpoint.readiness(wait_s=60, unit_state=lambda: next(left, states[-1]))

    verdict = judge_readiness(readiness)
    assert readiness.stop == "unit"
    assert readiness.waited_s < 5
    assert verdict.ending == "wrong"
    assert shown in verdict.message


def test_a_unit_that_is_still_starting_is_waited_for():
    with InferenceEndpoint(f"http://127.0.0.1:{unused_port()}") as endpoint:
        readiness = endpoint.readiness(wait_s=0.4, unit_state=lambda: UnitState("activating", "start", 0))

    assert readiness.stop == "deadline"
    assert 0.4 <= readiness.waited_s < 2


def test_a_server_that_goes_away_again_is_not_ready():
    looks = iter([None, None, Reply(503, b"", None)])

    def answer(request: Request) -> Reply | None:
        if request.path == "/health":
            return Reply(200, b"", None) if next(looks, "late") is None else Reply(503, b"", None)
        return as_json({"error": "not now"}, 500)

    with Server(answer) as server:
        readiness = _readiness(server, wait_s=0.8)

    assert readiness.reached == "port"
    assert readiness.rung("health").reached_s is None
