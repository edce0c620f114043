"""vLLM on the CPU: without speculation, with n-grams, with a draft model."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pytest_gpuinfra.endpoint.bad_requests import send_bad_requests
from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.judge_answers import judge_answer
from pytest_gpuinfra.endpoint.judge_model import (
    judge_created,
    judge_engine_setting,
    judge_max_model_len,
    judge_model_id,
)
from pytest_gpuinfra.endpoint.judge_refusals import judge_refusal, judge_still_answers
from pytest_gpuinfra.endpoint.judge_speculation import judge_speculation
from pytest_gpuinfra.endpoint.judge_stability import judge_concurrent, judge_repeats, judge_stream, judge_usage
from pytest_gpuinfra.endpoint.prompts import read_prompts
from pytest_gpuinfra.endpoint.smoke import ask_both_ways, ask_concurrently, ask_prompt, ask_repeatedly
from pytest_gpuinfra.endpoint.speculation_run import run_speculation
from pytest_gpuinfra.endpoint.throughput import measure_throughput
from tests.endpoint.engines import MODEL, started

PYTHON = os.environ.get("VLLM_PYTHON", "/var/cache/pytest-gpuinfra-servers/vllm/bin/python")
PROMPTS = read_prompts()
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
SPECULATION = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1},
    "draft": {"method": "draft_model", "model": str(MODEL), "num_speculative_tokens": 3},
}

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"VLLM_PYTHON: no {PYTHON}"),
]


def _started(speculation: str = "", *more: str) -> AbstractContextManager[InferenceEndpoint]:
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL), "--port", "PORT"]
    command += ["--served-model-name", "tiny-times", "--max-model-len", "512", "--max-num-seqs", "8", "--enforce-eager"]
    command += ["--dtype", "float32", "--reasoning-parser", "qwen3"]
    if speculation:
        command += ["--speculative-config", json.dumps(SPECULATION[speculation])]
    return started([*command, *more], "tiny-times", ENVIRONMENT)


@pytest.fixture(scope="module")
def served() -> Iterator[InferenceEndpoint]:
    """The tiny model, served without speculation."""
    with _started() as endpoint:
        yield endpoint


def test_engine_and_model(served: InferenceEndpoint):
    engine, models = served.engine(), served.models()

    assert (engine.name, engine.info.version, engine.info.speculates) == ("vLLM", "0.32.0", False)
    assert judge_model_id(models, "tiny-times").ok
    assert judge_max_model_len(models, "tiny-times", 512).ok
    assert judge_created(models, "tiny-times", time.time()).ok
    assert judge_engine_setting(engine, "tp_size", 1).ending == "error"


def test_answers(served: InferenceEndpoint):
    for prompt in PROMPTS:
        verdict = judge_answer(ask_prompt(served, prompt))
        assert verdict.ok, verdict.message
    assert judge_repeats(ask_repeatedly(served, PROMPTS[0], 5)).ok
    verdict = judge_concurrent(ask_concurrently(served, PROMPTS, times=16))
    assert verdict.ok, verdict.message


def test_stream_and_usage(served: InferenceEndpoint):
    whole, streamed = ask_both_ways(served, PROMPTS[0])
    verdict = judge_stream(whole, streamed)

    assert verdict.ok, verdict.message
    assert verdict.warnings == ()
    assert judge_usage(whole).ok
    assert (whole.answer.usage.reasoning_tokens or 0) > 60


def test_bad_requests(served: InferenceEndpoint):
    refusals = send_bad_requests(served, 512)
    verdicts = [judge_refusal(refusal) for refusal in refusals]

    assert [verdict.ending for verdict in verdicts] == ["ok"] * 5, "\n".join(map(str, verdicts))
    assert judge_still_answers(refusals, ask_prompt(served, PROMPTS[0])).ok


def test_throughput(served: InferenceEndpoint):
    one, eight = measure_throughput(served, requests=4), measure_throughput(served, streams=8, requests=16)
    print(one, eight, sep="\n")

    assert eight.tokens_per_s > one.tokens_per_s


def test_without_speculation(served: InferenceEndpoint):
    run = run_speculation(served, requests=2)

    assert judge_speculation(run, expected=True).observed.startswith("not configured")
    assert judge_speculation(run, expected=False).ok


@pytest.mark.parametrize(("kind", "floor"), [("ngram", 1.1), ("draft", 3.5)])
def test_speculation(kind: str, floor: float):
    with _started(kind) as endpoint:
        run = run_speculation(endpoint)
    verdict = judge_speculation(run, expected=True, mean_length_min=floor)
    print(verdict)

    assert verdict.ok, verdict.message


def test_two_ranks_answer_as_one():
    with _started("", "--tensor-parallel-size", "2") as endpoint:
        alone = [ask_prompt(endpoint, prompt) for prompt in PROMPTS]
        verdict = judge_concurrent(ask_concurrently(endpoint, PROMPTS, times=16), alone)
        repeats = judge_repeats(ask_repeatedly(endpoint, PROMPTS[0], 5))

    assert verdict.ok, verdict.message
    assert repeats.ok, repeats.message
