"""The served model judged: id, context, clock, precision, parallel size."""

from __future__ import annotations

from pytest_gpuinfra.endpoint.engine import EngineFacts
from pytest_gpuinfra.endpoint.models import ModelList
from pytest_gpuinfra.subjects.verdict import Verdict

CLOCK_TOLERANCE_S = 300.0
"""How far `created` may be from now, in seconds, before a clock is called wrong."""

_BY_ARGUMENT = "expect it of the service's arguments instead: expect.service.arguments"

_STAMPS = ("sglang", "vllm", "llamacpp")
"""Engines whose `created` is the moment of the request (seen on SGLang 0.5, vLLM 0.32, llama.cpp)."""


def judge_model_id(models: ModelList, expected: str) -> Verdict:
    """Judge whether the expected model is served."""
    return Verdict(
        ending="ok" if expected in models.ids else "wrong",
        subject="served model",
        observed=", ".join(models.ids) or "an empty model list",
        expected=expected,
        why="requests that name the model get an error, or another model's answers",
        action="compare --served-model-name (or the model path) with expect.model.id in the inventory",
        warnings=_context_note(models, expected),
    )


def judge_max_model_len(
    models: ModelList, model: str, expected: int | None, engine: EngineFacts | None = None
) -> Verdict:
    """
    Judge the context length that the server allows.

    Returns:
        skip if nothing is expected; error if something is, and neither the model list nor the engine tells it.
    """
    served = models.get(model)
    found, source = (served.max_model_len, served.max_model_len_source) if served else (None, None)
    if found is None and engine is not None and engine.info.context_length is not None:
        found, source = engine.info.context_length, "the engine's own account"
    subject = f"context length of {model}"
    if expected is None:
        return Verdict(ending="skip", subject=subject, observed="nothing is expected", expected="nothing")
    if found is None:
        return Verdict(
            ending="error",
            subject=subject,
            observed="neither the model list nor the engine tells it",
            expected=f"{expected} tokens",
            action=_BY_ARGUMENT,
        )
    return Verdict(
        ending="ok" if found == expected else "wrong",
        subject=subject,
        observed=f"{found} tokens ({source})",
        expected=f"{expected} tokens",
        why="longer requests are refused, or the KV cache is planned for another length",
        action="compare --context-length or --max-model-len of the running process with the inventory",
    )


def judge_created(models: ModelList, model: str, now_s: float, *, service_started_s: float | None = None) -> Verdict:
    """
    Judge `created`: seconds, and no later than now; it proves that the clock is sane and no more.

    Args:
        models: Model list.
        model: Model id.
        now_s: Controller's Unix time when the list was read.
        service_started_s: Unix time at which the service started; None if it is not known.

    Returns:
        skip if it is missing or 0, or old on a server that is not known to stamp requests.
    """
    served = models.get(model)
    subject = f"`created` of {model}"
    expected = "Unix time in seconds, within 5 minutes of now"
    if served is None or not served.created:
        return Verdict(ending="skip", subject=subject, observed="the server does not tell it", expected=expected)
    created, off_s = served.created, served.created - now_s
    problem = ""
    if created > 1e11:
        problem = "it is in milliseconds"
    elif off_s > CLOCK_TOLERANCE_S:
        problem = f"it lies {off_s:.0f} s in the future"
    elif service_started_s is not None and created < service_started_s - CLOCK_TOLERANCE_S:
        problem = f"it is {service_started_s - created:.0f} s older than the service's start"
    elif off_s < -CLOCK_TOLERANCE_S:
        if served.owned_by not in _STAMPS:
            observed = (
                f"{created:.0f}, {-off_s:.0f} s ago: this server does not stamp requests, so the clock is unknown"
            )
            return Verdict(ending="skip", subject=subject, observed=observed, expected=expected)
        problem = f"it lies {-off_s:.0f} s in the past, and {served.owned_by} stamps each request"
    return Verdict(
        ending="wrong" if problem else "ok",
        subject=subject,
        observed=f"{created:.0f}" + (f": {problem}" if problem else f", {off_s:+.0f} s from now"),
        expected=expected,
        why="with a wrong clock, logs of host and client cannot be laid side by side, and certificates fail",
        action="compare `date` on the host, in the container and here; then chronyc tracking",
    )


def judge_engine_setting(engine: EngineFacts, setting: str, expected: object) -> Verdict:
    """
    Judge one setting of the engine's own account ("tp_size", "dtype", "quantization", "kv_cache_dtype", ...).

    Returns:
        skip if nothing is expected; error if something is, and this engine does not tell.
    """
    found = getattr(engine.info, setting)
    if found == "auto" != expected:
        found, untold = None, f'{engine.name} tells "auto", and not what came of it'
    else:
        untold = f"{engine.name} does not tell it"
    subject = f"{engine}: {setting}"
    if expected is None:
        return Verdict(ending="skip", subject=subject, observed="nothing is expected", expected="nothing")
    if found is None:
        return Verdict(
            ending="error",
            subject=subject,
            observed=untold,
            expected=str(expected),
            action=_BY_ARGUMENT,
        )
    return Verdict(
        ending="ok" if found == expected else "wrong",
        subject=subject,
        observed=str(found),
        expected=str(expected),
        why="the model runs on other GPUs, or in another precision, than was accepted",
        action="compare the running process's arguments with the unit file",
    )


def _context_note(models: ModelList, model: str) -> tuple[str, ...]:
    served = models.get(model)
    return () if served is None or served.max_model_len is not None else ("the list does not tell the context length",)
