"""Topic chat: answers, streams, error bodies, and messages about too long a request."""

from __future__ import annotations

import json
from typing import Any

from pytest_gpuinfra.endpoint.chat import ChatAnswer, parse_chat
from pytest_gpuinfra.endpoint.error_body import error_in, parse_context_overflow, parse_error_body
from pytest_gpuinfra.endpoint.stream import parse_stream
from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.verdict.answers import judge_body, judge_streamed
from pytest_gpuinfra.verdict.refusals import judge_context_fit, judge_error_bodies
from tests.cases.adapters.endpoint import is_json
from tests.cases.adapters.http import answers
from tests.cases.adapters.result import Result, result, unread
from tests.cases.case import Case


def judge(case: Case) -> Result:
    """Judge the text as what it is: a stream, an answer, error bodies, or a message."""
    recorded = answers(case.text) if case.text.startswith("HTTP/") else []
    text = recorded[0].body if recorded else case.text
    try:
        if any(line.startswith("data:") for line in text.splitlines()):
            return _stream(text, recorded[0].status if recorded else 200)
        if is_json(text) and error_in(json.loads(text)) is None:
            answer = parse_chat(text)
            return result(judge_body(answer), _answer(answer))
        lines = [line for line in text.splitlines() if line.strip()]
        if all(is_json(line) for line in lines):
            bodies = [parse_error_body(line) for line in lines]
            parsed = {
                "messages": [body.message if body else None for body in bodies],
                "codes": [body.code if body else None for body in bodies],
            }
            return result(judge_error_bodies(bodies), parsed)
        overflow = parse_context_overflow(text)
    except GpuInfraError as error:
        return unread(error, {})
    if overflow:
        fields = {name: getattr(overflow, name) for name in ("limit", "requested", "input", "completion")}
        return result(judge_context_fit(overflow), fields)
    return "error", "nothing that the product reads", {}


def _stream(text: str, status: int) -> Result:
    stream = parse_stream(text, status=status)
    parsed = {
        **_answer(stream.answer),
        "done": stream.done,
        "http_status": stream.status,
        "error_code": stream.error.code if stream.error else None,
    }
    return result(judge_streamed(stream), parsed)


def _answer(answer: ChatAnswer) -> dict[str, Any]:
    return {
        "content": answer.content,
        "text": answer.content,
        "reasoning": answer.reasoning,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.usage.prompt_tokens,
        "completion_tokens": answer.usage.completion_tokens,
        "total_tokens": answer.usage.total_tokens,
        "cached_tokens": answer.usage.cached_tokens,
        "reasoning_tokens": answer.usage.reasoning_tokens,
        "text_len": len(answer.content),
        "distinct_chars": len(set(answer.content)),
    }
