"""
Requests that every server must refuse, with a message and without falling over.

Only what every conforming engine refuses is here. An unknown model (SGLang and llama.cpp accept it)
and a negative temperature (llama.cpp accepts it) are not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpuinfra.endpoint.error_body import ErrorBody, parse_error_body
from pytest_gpuinfra.endpoint.failures import BrokenAnswer, NoAnswer, bare

if TYPE_CHECKING:
    from pytest_gpuinfra.endpoint.client import InferenceEndpoint


@dataclass(frozen=True, slots=True)
class Refusal:
    """
    What a server did with a bad request.

    Attributes:
        name: Which one: a key of bad_requests().
        status: HTTP status; None if there was no answer.
        error: Its error, of whichever shape; None if there is none in the body.
        text: Body, at most 2,000 characters.
        failure: Why there was no answer; None if there was one.
    """

    name: str
    status: int | None
    error: ErrorBody | None = None
    text: str = ""
    failure: NoAnswer | BrokenAnswer | None = None


def bad_requests(model: str, max_model_len: int | None = None) -> dict[str, bytes]:
    """
    Give the bodies, by name.

    Args:
        model: Model id.
        max_model_len: Context in tokens; None leaves the question out that is too long.
    """
    question = [{"role": "user", "content": "What is 15*23? Answer briefly."}]
    good: dict[str, Any] = {"model": model, "messages": question, "max_tokens": 8, "temperature": 0}
    bodies = {
        "broken-json": json.dumps(good).encode()[:-7],
        "no-messages": _json({name: value for name, value in good.items() if name != "messages"}),
        "temperature-word": _json({**good, "temperature": "hot"}),
        "messages-word": _json({**good, "messages": "hello"}),
    }
    if max_model_len is not None and max_model_len <= 1_000_000:
        long = [{"role": "user", "content": "7 x " * (max_model_len + 64)}]
        bodies["too-long"] = _json({**good, "messages": long})
    return bodies


def send_bad_requests(endpoint: InferenceEndpoint, max_model_len: int | None = None) -> tuple[Refusal, ...]:
    """
    Send each of them, one after the other.

    Raises:
        NoAnswer, BrokenAnswer: The model list gives no model to name.
    """
    bodies = bad_requests(endpoint.model_id(), max_model_len)
    return tuple(_send(endpoint, name, body) for name, body in bodies.items())


def _send(endpoint: InferenceEndpoint, name: str, body: bytes) -> Refusal:
    try:
        answer = endpoint.post("/v1/chat/completions", body, total_s=60.0)
    except (NoAnswer, BrokenAnswer) as failure:
        return Refusal(name, None, failure=bare(failure))
    return Refusal(name, answer.status, parse_error_body(answer.text), answer.text[:2000])


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()
