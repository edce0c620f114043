"""Questions to real llama.cpp, and the same server behind a proxy that does damage: each fault ends as it should."""

from __future__ import annotations

import itertools
import json
import threading

import pytest

from pytest_gpuinfra.endpoint.bad_requests import send_bad_requests
from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.embedded import EmbeddedServer
from pytest_gpuinfra.endpoint.judge_answers import judge_answer
from pytest_gpuinfra.endpoint.judge_refusals import judge_refusal, judge_still_answers
from pytest_gpuinfra.endpoint.judge_stability import judge_concurrent, judge_repeats, judge_stream, judge_usage
from pytest_gpuinfra.endpoint.limits import Timeouts
from pytest_gpuinfra.endpoint.prompts import Prompt, read_prompts
from pytest_gpuinfra.endpoint.smoke import Asked, ask_both_ways, ask_concurrently, ask_prompt, ask_repeatedly
from pytest_gpuinfra.subjects.verdict import Verdict
from tests.endpoint.servers import Reply, Request, Server, events, proxy

PROMPTS = read_prompts()
SMOKE = PROMPTS[0]
SHORT = Timeouts(connect_s=1, read_s=1, total_s=1)


@pytest.mark.parametrize("prompt", PROMPTS, ids=[prompt.name for prompt in PROMPTS])
def test_the_embedded_model_answers_every_shipped_prompt(endpoint: InferenceEndpoint, prompt: Prompt):
    verdict = judge_answer(ask_prompt(endpoint, prompt))

    assert verdict.ok, verdict.message


def test_repeats_give_one_text(endpoint: InferenceEndpoint):
    verdict = judge_repeats(ask_repeatedly(endpoint, SMOKE, 10))

    assert verdict.ok, verdict.message


def test_concurrent_answers_are_right_each_to_its_own_question(endpoint: InferenceEndpoint):
    alone = [ask_prompt(endpoint, prompt) for prompt in PROMPTS]
    asked = ask_concurrently(endpoint, PROMPTS, streams=8, times=32)
    verdict = judge_concurrent(asked, alone)

    assert verdict.ok, verdict.message
    assert verdict.observed == "32 of 32 right"


def test_a_stream_gives_the_same_as_no_stream(endpoint: InferenceEndpoint):
    verdict = judge_stream(*ask_both_ways(endpoint, SMOKE))

    assert verdict.ok, verdict.message
    assert verdict.warnings == ()


def test_usage_adds_up(endpoint: InferenceEndpoint):
    verdict = judge_usage(ask_prompt(endpoint, SMOKE))

    assert verdict.ok, verdict.message
    assert verdict.observed == "prompt 20 + completion 79 = total 99"


def test_bad_requests_are_refused_and_the_server_still_answers(endpoint: InferenceEndpoint):
    refusals = send_bad_requests(endpoint, max_model_len=512)
    verdicts = [judge_refusal(refusal) for refusal in refusals]

    assert [verdict.ending for verdict in verdicts] == ["ok"] * 5, "\n".join(map(str, verdicts))
    assert judge_still_answers(refusals, ask_prompt(endpoint, SMOKE)).ok


def test_an_answer_cut_by_length_is_wrong(endpoint: InferenceEndpoint):
    verdict = judge_answer(ask_prompt(endpoint, Prompt("short", SMOKE.prompt, "345", max_tokens=20)))

    assert verdict.ending == "wrong"
    assert "cut by length after 20 tokens" in verdict.observed


def test_a_wrong_expectation_is_seen(endpoint: InferenceEndpoint):
    verdict = judge_answer(ask_prompt(endpoint, Prompt("other", SMOKE.prompt, "346")))

    assert verdict.ending == "wrong"
    assert "it comes to 345" in verdict.observed


class Damage:
    """Faults for chat answers; everything else passes."""

    def __init__(self, kind: str) -> None:
        self.kind, self.count, self.lock = kind, itertools.count(1), threading.Lock()

    def __call__(self, request: Request, reply: Reply) -> Reply | None:
        if not request.path.endswith("/chat/completions"):
            return reply
        with self.lock:
            number = next(self.count)
        return getattr(self, self.kind)(number, reply)

    def dies(self, _: int, reply: Reply) -> Reply:
        return Reply(200, [reply.body[: len(reply.body) // 2]], reply.content_type, then_cut=True)

    def ends_early(self, _: int, reply: Reply) -> Reply:
        whole = reply.body.split(b"\n\n")
        return Reply(200, [piece + b"\n\n" for piece in whole[:9]], reply.content_type)

    def late(self, _: int, reply: Reply) -> Reply:
        return Reply(200, reply.body, reply.content_type, wait_s=30)

    def half(self, _: int, reply: Reply) -> Reply:
        return Reply(200, reply.body[: len(reply.body) // 2], reply.content_type)

    def huge(self, _: int, reply: Reply) -> Reply:
        return Reply(200, (b" " * 1_000_000 for _ in range(100)), reply.content_type)

    def page(self, _: int, reply: Reply) -> Reply:
        return Reply(200, b"<html>502</html>", "text/html")

    def plain(self, _: int, reply: Reply) -> Reply:
        return Reply(200, reply.body, "text/plain")

    def error_inside(self, _: int, reply: Reply) -> Reply:
        pieces = reply.body.split(b"\n\n")[:3]
        error = {"error": {"object": "error", "message": "CUDA error: an illegal memory access", "code": 500}}
        return Reply(200, [*(piece + b"\n\n" for piece in pieces), *events([error])], "text/event-stream")

    def error_under_200(self, _: int, reply: Reply) -> Reply:
        return Reply(200, json.dumps({"object": "error", "message": "out of memory", "code": 500}).encode())

    def one_in_ten(self, number: int, reply: Reply) -> Reply:
        return Reply(200, reply.body.replace(b'"345"', b'"355"') if number % 10 == 7 else reply.body)

    def other_text(self, number: int, reply: Reply) -> Reply:
        return Reply(200, reply.body.replace(b'"345"', b'"It is 345."') if number == 5 else reply.body)

    def breaks_down(self, number: int, reply: Reply) -> Reply | None:
        return reply if number <= 2 else None

    def no_message(self, _: int, reply: Reply) -> Reply:
        return reply if reply.status == 200 else Reply(500, b"Internal Server Error", "text/plain")

    def repeats_itself(self, _: int, reply: Reply) -> Reply:
        return Reply(200, reply.body.replace(b'"345"', b'"' + b"!" * 40 + b'"'))


def _asked(llama: EmbeddedServer, kind: str, *, stream: bool = False, **options: object) -> Asked:
    with (
        Server(proxy(llama.base_url, Damage(kind))) as server,
        InferenceEndpoint(server.base_url, **options) as endpoint,
    ):
        return ask_prompt(endpoint, SMOKE, stream=stream)


@pytest.mark.parametrize(
    ("kind", "stream", "ending", "says"),
    [
        ("dies", False, "wrong", "broke off"),
        ("dies", True, "wrong", "broke off"),
        ("ends_early", True, "wrong", "without finish reason and [DONE]"),
        ("late", False, "error", "no answer"),
        ("late", True, "error", "no answer"),
        ("half", False, "wrong", "no complete JSON"),
        ("half", True, "wrong", "without finish reason"),
        ("huge", False, "wrong", "longer than"),
        ("huge", True, "wrong", "a line of more than"),
        ("page", False, "wrong", "a web page"),
        ("page", True, "wrong", "came as text/html"),
        ("plain", True, "wrong", "came as text/plain"),
        ("error_inside", True, "wrong", "an illegal memory access"),
        ("error_under_200", False, "wrong", "out of memory"),
        ("repeats_itself", False, "wrong", "one character ('!') 40 times"),
    ],
)
def test_faults(llama: EmbeddedServer, kind: str, stream: bool, ending: str, says: str):
    options = {"timeouts": SHORT} if kind == "late" else {}
    verdict = judge_answer(_asked(llama, kind, stream=stream, **options))

    assert (verdict.ending, says in verdict.observed) == (ending, True), verdict.message
    assert verdict.why
    assert verdict.action


def _judged_behind(llama: EmbeddedServer, kind: str, *, concurrent: bool) -> Verdict:
    with Server(proxy(llama.base_url, Damage(kind))) as server, InferenceEndpoint(server.base_url) as endpoint:
        if concurrent:
            return judge_concurrent(ask_concurrently(endpoint, [SMOKE], streams=8, times=8))
        return judge_repeats(ask_repeatedly(endpoint, SMOKE, 10))


def test_a_wrong_answer_once_in_ten_is_seen(llama: EmbeddedServer):
    verdict = _judged_behind(llama, "one_in_ten", concurrent=False)

    assert verdict.ending == "wrong"
    assert "9x '345'; 1x '355'" in verdict.observed


def test_one_of_eight_concurrent_answers_that_differs_is_seen(llama: EmbeddedServer):
    verdict = _judged_behind(llama, "one_in_ten", concurrent=True)

    assert verdict.ending == "wrong"
    assert verdict.observed.startswith("7 of 8 right; 15-times-23: '355'")


def test_another_text_of_the_same_meaning_is_noted_under_load(llama: EmbeddedServer):
    with (
        Server(proxy(llama.base_url, Damage("other_text"))) as server,
        InferenceEndpoint(server.base_url) as endpoint,
    ):
        alone = [ask_prompt(endpoint, SMOKE)]
        asked = ask_concurrently(endpoint, [SMOKE], streams=8, times=8)

    assert judge_concurrent(asked, alone).ok
    assert judge_concurrent(asked, alone).warnings == ("1 of 8 texts differ from the answer alone",)
    assert judge_concurrent(asked, alone, different_texts_max=0).ending == "wrong"


def test_a_server_that_breaks_down_under_bad_requests_is_seen(llama: EmbeddedServer):
    with (
        Server(proxy(llama.base_url, Damage("breaks_down"))) as server,
        InferenceEndpoint(server.base_url) as endpoint,
    ):
        refusals = send_bad_requests(endpoint)
        after = judge_still_answers(refusals, ask_prompt(endpoint, SMOKE))

    assert [judge_refusal(refusal).ending for refusal in refusals] == ["ok", "ok", "error", "error"]
    assert after.ending == "error"
    assert "closed before any answer" in after.observed


def test_a_refusal_needs_a_message_and_a_status_of_400(llama: EmbeddedServer):
    with (
        Server(proxy(llama.base_url, Damage("no_message"))) as server,
        InferenceEndpoint(server.base_url) as endpoint,
    ):
        verdicts = [judge_refusal(refusal) for refusal in send_bad_requests(endpoint)]

    assert {verdict.ending for verdict in verdicts} == {"wrong"}
    assert "status 500" in verdicts[0].observed
