"""vLLM's and `transformers serve`'s own bodies, replayed: the same endings as on the servers themselves."""

from __future__ import annotations

import json

import pytest

from pytest_gpuinfra.endpoint.bad_requests import Refusal
from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.error_body import parse_error_body
from pytest_gpuinfra.endpoint.judge_answers import judge_answer
from pytest_gpuinfra.endpoint.judge_readiness import judge_readiness
from pytest_gpuinfra.endpoint.judge_refusals import judge_refusal
from pytest_gpuinfra.endpoint.judge_speculation import judge_acceptance
from pytest_gpuinfra.endpoint.judge_stability import judge_stream, judge_usage
from pytest_gpuinfra.endpoint.prompts import read_prompts
from pytest_gpuinfra.endpoint.smoke import ask_both_ways
from pytest_gpuinfra.endpoint.speculation import speculation_from
from pytest_gpuinfra.endpoint.speculation_run import read_speculation
from tests.endpoint.servers import RECORDED, Server, replay

SMOKE = read_prompts()[0]


@pytest.mark.parametrize(
    ("directory", "engine", "length", "notes"),
    [
        ("vllm-cpu-ngram", "vLLM 0.32.0", 512, ()),
        ("transformers-serve", "transformers serve", None, ("the stream ended without [DONE]",)),
    ],
)
def test_replayed(directory: str, engine: str, length: int | None, notes: tuple[str, ...]):
    with Server(replay(directory)) as server, InferenceEndpoint(server.base_url) as endpoint:
        readiness = endpoint.readiness()
        facts, models = endpoint.engine(), endpoint.models()
        whole, streamed = ask_both_ways(endpoint, SMOKE)

    assert judge_readiness(readiness).ok, judge_readiness(readiness).message
    assert (str(facts), models.models[0].max_model_len) == (engine, length)
    assert judge_answer(whole).ok, judge_answer(whole).message
    assert whole.answer is not None
    assert whole.answer.reasoning.startswith("15*23:5*3=15")
    assert judge_usage(whole).ok
    assert judge_stream(whole, streamed).ok, judge_stream(whole, streamed).message
    assert judge_stream(whole, streamed).warnings == notes


def test_vllm_counts_accepted_ngrams():
    with Server(replay("vllm-cpu-ngram")) as server, InferenceEndpoint(server.base_url) as endpoint:
        counters = read_speculation(endpoint)

    verdict = judge_acceptance(counters.acceptance, wanted=True, configured=counters.engine.info.speculates)
    assert verdict.ok, verdict.message
    assert counters.acceptance.mean_length == pytest.approx(1 + 90 / 156)
    assert speculation_from(counters.engine, None).acceptance.known is False


@pytest.mark.parametrize(
    ("directory", "endings"),
    [("vllm-cpu-ngram", ["ok"] * 4), ("transformers-serve", ["ok", "wrong", "wrong", "wrong"])],
)
def test_bad_requests(directory: str, endings: list[str]):
    recorded = json.loads((RECORDED / directory / "bad_requests.json").read_text())
    refusals = [
        Refusal(item["name"], item["status"], parse_error_body(item["text"]), item["text"]) for item in recorded
    ]

    assert [judge_refusal(refusal).ending for refusal in refusals] == endings
