"""`transformers serve`, the peer that conforms least: what it does right passes, what it does not is said."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuinfra.endpoint.bad_requests import send_bad_requests
from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.judge_answers import judge_answer
from pytest_gpuinfra.endpoint.judge_model import judge_created, judge_max_model_len, judge_model_id
from pytest_gpuinfra.endpoint.judge_refusals import judge_refusal, judge_still_answers
from pytest_gpuinfra.endpoint.judge_speculation import judge_speculation
from pytest_gpuinfra.endpoint.judge_stability import judge_concurrent, judge_repeats, judge_stream, judge_usage
from pytest_gpuinfra.endpoint.prompts import read_prompts
from pytest_gpuinfra.endpoint.smoke import ask_both_ways, ask_concurrently, ask_prompt, ask_repeatedly
from pytest_gpuinfra.endpoint.speculation_run import run_speculation
from tests.endpoint.engines import MODEL, started

PYTHON = os.environ.get("TRANSFORMERS_PYTHON", "/var/cache/pytest-gpuinfra-servers/transformers/bin/python")
PROMPTS = read_prompts()

pytestmark = [
    pytest.mark.transformers_serve,
    pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"TRANSFORMERS_PYTHON: no {PYTHON}"),
]


@pytest.fixture(scope="module")
def served() -> Iterator[InferenceEndpoint]:
    """The tiny model, served."""
    command = [str(Path(PYTHON).with_name("transformers")), "serve", str(MODEL), "--device", "cpu", "--port", "PORT"]
    with started(command, str(MODEL), {}) as endpoint:
        yield endpoint


def test_engine_and_model(served: InferenceEndpoint):
    models = served.models()

    assert served.engine().name == "transformers serve"
    assert judge_model_id(models, str(MODEL)).ok
    assert judge_max_model_len(models, str(MODEL), 512).ending == "skip"
    assert judge_created(models, str(MODEL), time.time()).ending == "skip"


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
    assert verdict.warnings == ("the stream ended without [DONE]",)
    assert judge_usage(whole).ok


def test_bad_requests(served: InferenceEndpoint):
    refusals = send_bad_requests(served)
    verdicts = {refusal.name: judge_refusal(refusal) for refusal in refusals}

    assert verdicts["broken-json"].ok, verdicts["broken-json"].message
    assert verdicts["no-messages"].ending == "wrong"
    assert "status 500" in verdicts["no-messages"].observed
    assert judge_still_answers(refusals, ask_prompt(served, PROMPTS[0])).ok


def test_speculation_is_not_told(served: InferenceEndpoint):
    run = run_speculation(served, requests=1)

    assert judge_speculation(run, expected=True).ending == "error"
    assert judge_speculation(run).ending == "skip"
