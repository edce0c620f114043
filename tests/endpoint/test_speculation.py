"""Speculation: real llama.cpp with a draft model, with n-grams and without; SGLang's and vLLM's own figures."""

from __future__ import annotations

import re

import pytest

from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.embedded import EmbeddedServer, ServerSettings
from pytest_gpuinfra.endpoint.engine import EngineFacts, engine_from
from pytest_gpuinfra.endpoint.judge_speculation import judge_acceptance, judge_speculation
from pytest_gpuinfra.endpoint.metrics import parse_metrics
from pytest_gpuinfra.endpoint.server_info import parse_sglang_info
from pytest_gpuinfra.endpoint.speculation import (
    Acceptance,
    SpeculationCounters,
    SpeculationRun,
    difference,
    speculation_from,
)
from pytest_gpuinfra.endpoint.speculation_run import run_speculation
from tests.endpoint.servers import RECORDED

SGLANG = RECORDED / "sglang-tp2-speculation"


@pytest.mark.parametrize("kind", ["draft", "ngram"])
def test_llamacpp_accepts_drafts(kind: str):
    with EmbeddedServer(ServerSettings(speculation=kind)) as server, InferenceEndpoint(server.base_url) as endpoint:
        run = run_speculation(endpoint)
    verdict = judge_speculation(run, expected=True, mean_length_min=4.0 if kind == "draft" else 1.2)

    assert verdict.ok, verdict.message
    assert run.after.engine.info.speculates is True
    assert run.tokens == 8 * 79 or run.requests == 8


def test_a_floor_that_is_not_reached_is_wrong():
    settings = ServerSettings(speculation="ngram")
    with EmbeddedServer(settings) as server, InferenceEndpoint(server.base_url) as endpoint:
        verdict = judge_speculation(run_speculation(endpoint), mean_length_min=3.0)

    assert verdict.ending == "wrong"
    assert "accepting too little" in verdict.observed


@pytest.mark.parametrize(
    ("expected", "ending", "says"),
    [
        (True, "wrong", "not configured: the engine says it does not speculate"),
        (False, "ok", "no speculation"),
        (None, "skip", "no speculation"),
    ],
)
def test_llamacpp_without_speculation(endpoint: InferenceEndpoint, expected: bool | None, ending: str, says: str):
    verdict = judge_speculation(run_speculation(endpoint, requests=2), expected=expected)

    assert (verdict.ending, says in verdict.observed) == (ending, True), verdict.message


def _sglang(changes: dict[str, float], info: str | None = None) -> SpeculationCounters:
    """Give the recorded state of SGLang with some of its series at other values."""
    text = (SGLANG / "metrics.txt").read_text()
    for name, value in changes.items():
        text, count = re.subn(rf"(?m)^(sglang:{name}\{{.*\}}) \S+$", rf"\1 {value}", text)
        assert count, name
    body = info or (SGLANG / "server_info.json").read_text()
    return speculation_from(engine_from({"/metrics": text, "/server_info": body}), parse_metrics(text))


START = {"generation_tokens_total": 8.0, "num_requests_total": 1.0, "spec_verify_calls_total": 2.0}
"""After the warm-up: 8 tokens by one request."""


def test_sglang_by_difference():
    run = SpeculationRun(_sglang(START), _sglang({}), 3, 237)
    verdict = judge_speculation(run, expected=True, algorithm="STANDALONE", mean_length_min=3.5)

    assert verdict.ok, verdict.message
    assert run.acceptance is not None
    assert (run.acceptance.drafts, run.acceptance.draft_tokens, run.acceptance.accepted_tokens) == (60, 180, 174)
    assert run.acceptance.mean_length == pytest.approx(3.9)
    assert run.acceptance.accept_length == 3.975


def test_sglang_with_an_untrained_head_is_configured_and_not_accepting():
    """Figures of sglang-h200: NEXTN shown as EAGLE, 78 verifications for 79 tokens, gauge 1.0, rate 0.0."""
    info = (SGLANG / "server_info.json").read_text().replace('"STANDALONE"', '"EAGLE"').replace("3.975", "1.02")
    after = _sglang(
        {
            "generation_tokens_total": 8.0 + 237,
            "num_requests_total": 4.0,
            "spec_verify_calls_total": 2.0 + 3 * 78,
            "spec_accept_length": 1.0,
            "spec_accept_rate": 0.0,
        },
        info,
    )
    verdict = judge_speculation(SpeculationRun(_sglang(START, info), after, 3, 237), algorithm="NEXTN")

    assert verdict.ending == "wrong"
    assert verdict.observed.startswith("configured but not accepting: drafts 234, proposed 702, accepted 0")


def test_sglang_accepting_but_not_configured_is_another_failure():
    run = SpeculationRun(_sglang(START), _sglang({}), 3, 237)
    verdict = judge_speculation(run, expected=False)

    assert verdict.ending == "wrong"
    assert verdict.observed.startswith("accepting but not configured: nobody expects it")


def test_nextn_is_shown_as_eagle_and_other_names_are_not():
    info = (SGLANG / "server_info.json").read_text().replace('"STANDALONE"', '"EAGLE"')
    run = SpeculationRun(_sglang(START, info), _sglang({}, info), 3, 237)

    assert judge_speculation(run, algorithm="NEXTN").ok
    assert judge_speculation(run, algorithm="NGRAM").ending == "wrong"


def test_gauges_that_ranks_repeat_are_not_summed():
    text = (SGLANG / "metrics.txt").read_text()
    both = text + "".join(
        line.replace('tp_rank="0"', 'tp_rank="1"') + "\n" for line in text.splitlines() if "spec_accept_length{" in line
    )
    assert speculation_from(EngineFacts("SGLang"), parse_metrics(both)).acceptance.accept_length == 3.975


@pytest.mark.parametrize(("file", "algorithm"), [("server_info-ngram", "NGRAM"), ("server_info-off", None)])
def test_sglang_tells_nothing_of_lengths_before_traffic(file: str, algorithm: str | None):
    info = parse_sglang_info((RECORDED / "sglang-cpu" / f"{file}.json").read_text())

    assert (info.speculative_algorithm, info.speculates) == (algorithm, algorithm is not None)
    assert info.accept_length is None


def test_sglang_without_metrics_and_speculation_expected_is_an_error():
    body = (RECORDED / "sglang-cpu" / "server_info-ngram.json").read_text()
    counters = speculation_from(engine_from({"/server_info": body}), None)
    verdict = judge_speculation(SpeculationRun(counters, counters, 8, 632), expected=True)

    assert verdict.ending == "error"
    assert "--enable-metrics" in verdict.action


VLLM = """vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} %d
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.79e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 2045.0
vllm:generation_tokens_total{engine="0",model_name="m"} 5.0
"""


def _vllm(text: str) -> SpeculationCounters:
    return speculation_from(engine_from({"/metrics": text}), parse_metrics(text))


def test_vllm_counters_are_summed_over_engines_and_nothing_else():
    found = difference(_vllm(VLLM % (10, 10, 60, 20)), _vllm(VLLM % (110, 60, 510, 320)))

    assert found is not None
    assert (found.drafts, found.draft_tokens, found.accepted_tokens) == (150, 450, 300)
    assert (found.rate, found.mean_length) == (pytest.approx(2 / 3), 3.0)


def test_vllm_without_the_series_does_not_speculate():
    counters = _vllm('vllm:generation_tokens_total{engine="0"} 5.0\n')
    run = SpeculationRun(counters, counters, 8, 632)

    assert judge_speculation(run).ending == "skip"
    assert judge_speculation(run, expected=False).ending == "ok"
    assert judge_speculation(run, expected=True).observed.startswith("not configured")


def test_a_restart_in_between_is_an_error():
    run = SpeculationRun(_vllm(VLLM % (110, 60, 510, 320)), _vllm(VLLM % (1, 1, 6, 2)), 8, 632)

    assert judge_speculation(run, expected=True).ending == "error"


@pytest.mark.parametrize(
    ("acceptance", "wanted", "ending"),
    [
        (Acceptance(), False, "error"),
        (Acceptance(), None, "skip"),
        (Acceptance(), True, "error"),
        (Acceptance(0, 0, 0), True, "wrong"),
        (Acceptance(0, 0, 0), False, "ok"),
        (Acceptance(50, 150, 0), None, "wrong"),
        (Acceptance(50, 150, 0), False, "wrong"),
        (Acceptance(50, 150, 2), True, "wrong"),
        (Acceptance(50, 150, 20), True, "ok"),
        (Acceptance(accept_length=1.02), True, "wrong"),
        (Acceptance(accept_length=1.95), True, "ok"),
        (Acceptance(accept_rate=0.4), True, "ok"),
    ],
)
def test_endings(acceptance: Acceptance, wanted: bool | None, ending: str):
    assert judge_acceptance(acceptance, wanted=wanted).ending == ending
