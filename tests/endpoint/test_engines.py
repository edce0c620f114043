"""Which engine it is, what it tells of itself, and the verdicts on that."""

from __future__ import annotations

import json

import pytest

from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.engine import EngineFacts, engine_from
from pytest_gpuinfra.endpoint.judge_answers import judge_answer
from pytest_gpuinfra.endpoint.judge_model import (
    judge_created,
    judge_engine_setting,
    judge_max_model_len,
    judge_model_id,
)
from pytest_gpuinfra.endpoint.judge_stability import judge_usage
from pytest_gpuinfra.endpoint.models import ModelList, parse_models
from pytest_gpuinfra.endpoint.prompts import Prompt, read_prompts
from pytest_gpuinfra.endpoint.smoke import ask_prompt
from pytest_gpuinfra.errors import ParseError
from tests.endpoint.servers import Server, replay

NOW = 1_795_970_621.0
VLLM = (
    '{"object":"list","data":[{"id":"m","object":"model","created":1795966686,"owned_by":"vllm","max_model_len":512}]}'
)
TRANSFORMERS = json.dumps(
    {"data": [{"owned_by": "local", "id": "/m2", "object": "model", "created": 0, "status": {"value": "loaded"}}]}
)
PLAIN = '{"object":"list","data":[{"id":"gpt","object":"model","created":1686935002,"owned_by":"openai"}]}'


def test_llamacpp_live(endpoint: InferenceEndpoint):
    engine = endpoint.engine()
    models = endpoint.models()

    assert (engine.name, engine.metrics_path) == ("llama.cpp", "/metrics")
    assert engine.info.dtype == "all F32"
    assert models.models[0].max_model_len_source == "meta.n_ctx"
    assert judge_max_model_len(models, "tiny-times", 512).ok
    assert judge_engine_setting(engine, "dtype", "all F32").ok
    assert judge_engine_setting(engine, "tp_size", 1).ending == "error"


@pytest.mark.parametrize(
    ("directory", "algorithm"), [("sglang-tp2-plain", None), ("sglang-tp2-speculation", "STANDALONE")]
)
def test_sglang_replayed(directory: str, algorithm: str | None):
    with Server(replay(directory)) as server, InferenceEndpoint(server.base_url) as endpoint:
        engine, models = endpoint.engine(), endpoint.models()
        smoke = Prompt("13-times-23", "What is 13*23?", "299") if algorithm else read_prompts()[0]
        asked = ask_prompt(endpoint, smoke)

    assert (engine.name, engine.info.version, engine.info.speculative_algorithm) == ("SGLang", "0.5.16", algorithm)
    assert judge_engine_setting(engine, "tp_size", 2).ok
    assert judge_engine_setting(engine, "dtype", "bfloat16").ok
    assert judge_engine_setting(engine, "dtype", "float16").ending == "wrong"
    assert engine.info.custom_all_reduce_off is True
    assert judge_model_id(models, "tiny-times").ok
    assert judge_answer(asked).ok
    assert judge_usage(asked).ok
    assert judge_created(models, "tiny-times", NOW).ok


@pytest.mark.parametrize(
    ("bodies", "name", "version"),
    [
        ({"/v1/models": VLLM, "/version": '{"version":"0.32.0"}'}, "vLLM", "0.32.0"),
        ({"/v1/models": PLAIN, "/metrics": 'vllm:num_requests_running{engine="0"} 0.0\n'}, "vLLM", None),
        ({"/v1/models": TRANSFORMERS}, "transformers serve", None),
        ({"/info": '{"model_id":"m","version":"3.3.5","max_total_tokens":4096,"model_dtype":"bf16"}'}, "TGI", "3.3.5"),
        ({"/v1/models": PLAIN}, "OpenAI-compatible", None),
        ({"/v1/models": PLAIN, "/version": '{"version":"1.0"}'}, "OpenAI-compatible", "1.0"),
        ({"/v1/models": PLAIN, "/info": "{}", "/props": "oops"}, "OpenAI-compatible", None),
        ({"/metrics": "[]", "/prometheus/metrics": "trtllm_kv_cache 1\n"}, "TensorRT-LLM", None),
        ({}, "unknown", None),
    ],
)
def test_other_engines(bodies: dict[str, str], name: str, version: str | None):
    engine = engine_from(bodies)

    assert (engine.name, engine.info.version) == (name, version)


@pytest.mark.parametrize(
    ("entry", "length"),
    [
        ({"max_model_len": 262144}, 262144),
        ({"max_model_len": None}, None),
        ({"meta": {"n_ctx": 4096, "n_ctx_train": 32768}}, 4096),
        ({"meta": {"n_ctx_train": 32768}}, None),
        ({"meta": None, "context_window": 131072}, 131072),
        ({"max_model_len": True}, None),
        ({}, None),
    ],
)
def test_context_length(entry: dict[str, object], length: int | None):
    models = parse_models(json.dumps({"data": [{"id": "m", **entry}]}))

    assert models.models[0].max_model_len == length
    assert judge_max_model_len(models, "m", length or 1).ending == ("ok" if length else "error")
    assert judge_max_model_len(models, "m", None).ending == "skip"
    assert judge_max_model_len(models, "m", 17).ending == ("wrong" if length else "error")


@pytest.mark.parametrize("text", ["", "{}", '{"data":{}}', '{"data":[{"object":"model"}]}', "<html>"])
def test_what_is_no_model_list(text: str):
    with pytest.raises(ParseError):
        parse_models(text)


def test_another_model_is_wrong_and_an_empty_list_too():
    assert judge_model_id(parse_models(PLAIN), "qwen").observed == "gpt"
    assert judge_model_id(ModelList(()), "qwen").ending == "wrong"


@pytest.mark.parametrize(
    ("owner", "created", "started", "ending", "says"),
    [
        ("sglang", NOW - 2, None, "ok", "-2 s"),
        ("sglang", NOW - 4000, None, "wrong", "in the past"),
        ("sglang", NOW + 4000, None, "wrong", "in the future"),
        ("sglang", NOW * 1000, None, "wrong", "milliseconds"),
        ("local", 0, None, "skip", "does not tell"),
        ("openai", NOW - 1e8, None, "skip", "does not stamp requests"),
        ("openai", NOW - 1e5, NOW - 60, "wrong", "older than the service's start"),
        ("openai", NOW - 30, NOW - 60, "ok", ""),
    ],
)
def test_created(owner: str, created: float, started: float | None, ending: str, says: str):
    models = parse_models(json.dumps({"data": [{"id": "m", "created": created, "owned_by": owner}]}))
    verdict = judge_created(models, "m", NOW, service_started_s=started)

    assert (verdict.ending, says in verdict.observed) == (ending, True), verdict.message


def test_nothing_expected_is_skipped_and_nothing_told_is_an_error():
    engine = EngineFacts("vLLM")

    assert judge_engine_setting(engine, "tp_size", None).ending == "skip"
    assert judge_engine_setting(engine, "tp_size", 4).ending == "error"
