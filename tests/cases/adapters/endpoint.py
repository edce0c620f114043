"""Topics endpoint-health, endpoint-models, endpoint-metrics."""

from __future__ import annotations

import json
from typing import Any

from pytest_gpuinfra.endpoint.engine import EngineFacts
from pytest_gpuinfra.endpoint.health import ALIVE, Health, parse_health
from pytest_gpuinfra.endpoint.metrics import parse_metrics, pick_metrics
from pytest_gpuinfra.endpoint.models import ModelList, parse_models
from pytest_gpuinfra.endpoint.server_info import ServerInfo, parse_sglang_info
from pytest_gpuinfra.endpoint.speculation import Acceptance, speculation_from
from pytest_gpuinfra.endpoint.speculation_logs import (
    interval,
    parse_benchmark,
    parse_llamacpp_log,
    parse_vllm_v0_log,
)
from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.verdict.base import Verdict
from pytest_gpuinfra.verdict.model import judge_engine_setting, judge_model_id
from pytest_gpuinfra.verdict.readiness import judge_health
from pytest_gpuinfra.verdict.speculation import judge_acceptance
from tests.cases.adapters.http import Answer, answers
from tests.cases.adapters.result import Result, result, unread
from tests.cases.case import Case

_ORDER = ("ok", "skip", "error", "wrong")


def judge_health_case(case: Case) -> Result:
    """Judge answers of /health beside those of /v1/models; or of metrics routes where these are what is shown."""
    found = answers(case.text)
    if any("metrics" in answer.path for answer in found):
        return _metrics_routes(found)
    listed = next((answer for answer in found if "/models" in answer.path), None)
    health = [parse_health(a.status, a.body, a.content_type) for a in found if "/models" not in a.path]
    if not health:
        return "error", "the text holds no answer of a health route", {}
    try:
        models = parse_models(listed.body) if listed and listed.status == 200 else None
    except GpuInfraError as error:
        return unread(error, {})
    verdict = judge_health(health, models, listed.status if listed else 200)
    return result(verdict, _of_health(health, models, listed))


def _of_health(health: list[Health], models: ModelList | None, listed: Answer | None) -> dict[str, Any]:
    named = dict(zip(("first", "second", "third"), health, strict=False))
    last = health[-1]
    return {
        **{name: {"status": item.status, "state": item.state, "body": item.body} for name, item in named.items()},
        "states": [item.state for item in health],
        "status": last.status,
        "state": last.state,
        "error": last.error,
        "error_type": last.error_type,
        "health": last.status,
        "ready": last.state in ALIVE,
        "models": list(models.ids) if models else None,
        "models_status": listed.status if listed else None,
    }


def _metrics_routes(found: list[Answer]) -> Result:
    metrics = pick_metrics((answer.path, answer.status, answer.body) for answer in found)
    acceptance = speculation_from(_engine(ServerInfo()), metrics).acceptance
    parsed = {
        "metrics_path": metrics.path if metrics else None,
        "model_name": metrics.label("model_name") if metrics else None,
        "spec_decode": _counted(acceptance) if acceptance.known else None,
    }
    return result(judge_acceptance(acceptance), parsed)


def judge_models_case(case: Case) -> Result:
    """Judge each line: a model list against the id that the first one serves, or an engine's account."""
    lines = [line for line in case.text.splitlines() if line.strip()]
    try:
        if not lines:
            return "error", "nothing was answered", {}
        if '"data"' in lines[0]:
            lists = [parse_models(line) for line in lines]
            wanted = next(iter(lists[0].ids), "")
            verdicts = [judge_model_id(models, wanted) for models in lists]
            lengths = [model.max_model_len for models in lists for model in models.models]
            ids = [id for models in lists for id in models.ids]
            return result(_worst(verdicts), {"ids": ids, "max_model_len": lengths})
        infos = [parse_sglang_info(line) for line in lines]
    except GpuInfraError as error:
        return unread(error, {})
    verdicts = [judge_engine_setting(_engine(info), "tp_size", infos[0].tp_size) for info in infos]
    parsed = {
        "tp_size": [info.tp_size for info in infos],
        "accept_length": [info.accept_length for info in infos],
        "context_length": [info.context_length for info in infos],
        "version": [info.version for info in infos],
    }
    return result(_worst(verdicts), parsed)


def judge_metrics_case(case: Case) -> Result:
    """Judge speculation by counters, log lines, or a benchmark's summary."""
    try:
        acceptance, parsed = _acceptance(case.text)
    except GpuInfraError as error:
        return unread(error, {})
    return result(judge_acceptance(acceptance), {**_counted(acceptance), **parsed})


def _acceptance(text: str) -> tuple[Acceptance, dict[str, Any]]:
    totals = parse_vllm_v0_log(text)
    if totals:
        between = interval(totals) or totals[-1]
        parsed = {
            "interval_accepted": between.accepted_tokens,
            "interval_draft": between.draft_tokens,
            "last_rate": totals[-1].accept_rate,
        }
        return between, parsed
    requests = parse_llamacpp_log(text)
    if requests:
        return requests[-1], {}
    benchmark = parse_benchmark(text)
    if benchmark:
        return benchmark, {}
    metrics = parse_metrics(text)
    return speculation_from(_engine(ServerInfo()), metrics).acceptance, {
        "verify_calls": metrics.total("sglang:spec_verify_calls_total")
    }


def _counted(acceptance: Acceptance) -> dict[str, Any]:
    return {
        "drafts": acceptance.drafts,
        "draft_tokens": acceptance.draft_tokens,
        "generated": acceptance.draft_tokens,
        "accepted": acceptance.accepted_tokens,
        "rate": acceptance.rate if acceptance.rate is not None else acceptance.accept_rate,
        "mean_length": acceptance.mean_length,
        "length": acceptance.mean_length,
        "accept_length": acceptance.accept_length,
        "accept_rate": acceptance.accept_rate,
    }


def _engine(info: ServerInfo) -> EngineFacts:
    return EngineFacts("SGLang", info=info)


def _worst(verdicts: list[Verdict]) -> Verdict:
    worst = max(verdicts, key=lambda verdict: _ORDER.index(verdict.ending))
    warned = next((verdict for verdict in verdicts if verdict.warnings), worst)
    return warned if worst.ok else worst


def is_json(text: str) -> bool:
    """Tell whether a text is one JSON document."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
