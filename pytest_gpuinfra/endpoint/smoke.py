"""Asks the questions of a prompt file: once, again and again, at the same time, and both ways."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_gpuinfra.endpoint.chat import ChatAnswer
from pytest_gpuinfra.endpoint.failures import BrokenAnswer, NoAnswer, bare
from pytest_gpuinfra.endpoint.prompts import Prompt
from pytest_gpuinfra.endpoint.stream import StreamAnswer

if TYPE_CHECKING:
    from pytest_gpuinfra.endpoint.client import InferenceEndpoint

Failure: TypeAlias = NoAnswer | BrokenAnswer


@dataclass(frozen=True, slots=True)
class Asked:
    """
    One question and what came of it: an answer or a failure, never both.

    Attributes:
        prompt: The question.
        answer: The answer; None if there was a failure.
        failure: Why there is no answer; None if there is one.
        stream: The stream that brought the answer; None if it was not streamed.
    """

    prompt: Prompt
    answer: ChatAnswer | None = None
    failure: Failure | None = None
    stream: StreamAnswer | None = None


def ask_prompt(endpoint: InferenceEndpoint, prompt: Prompt, *, stream: bool = False) -> Asked:
    """Ask one question; a failure is part of the result, not raised."""
    try:
        options: dict[str, Any] = {
            "system": prompt.system,
            "max_tokens": endpoint.max_tokens(prompt.max_tokens),
        }
        if not stream:
            return Asked(prompt, endpoint.ask(prompt.prompt, **options))
        streamed = endpoint.stream(prompt.prompt, **options)
        if streamed.error is not None:
            raise BrokenAnswer(
                "stream-error",
                f"an error inside a stream that had begun with status 200: {streamed.error.message}",
                status=streamed.status,
                text=streamed.answer.raw,
            )
        return Asked(prompt, streamed.answer, stream=streamed)
    except (NoAnswer, BrokenAnswer) as failure:
        return Asked(prompt, failure=bare(failure))


def ask_repeatedly(endpoint: InferenceEndpoint, prompt: Prompt, times: int) -> tuple[Asked, ...]:
    """Ask one question so many times, one after the other. Shape (times,), in order."""
    return tuple(ask_prompt(endpoint, prompt) for _ in range(times))


def ask_concurrently(
    endpoint: InferenceEndpoint,
    prompts: Sequence[Prompt],
    *,
    streams: int = 8,
    times: int = 32,
    stream: bool = False,
) -> tuple[Asked, ...]:
    """
    Ask several questions at the same time, so that an answer given to another's question shows.

    Args:
        endpoint: Whom to ask.
        prompts: Questions, asked in turn; at least one.
        streams: Requests under way at the same time; the first of them start together.
        times: Requests in all.
        stream: Whether answers are streamed.

    Returns:
        Shape (times,), in the order of asking: the question at i is prompts[i % len(prompts)].
    """
    streams = min(streams, times)
    start = threading.Barrier(streams)

    def one(at: int) -> Asked:
        if at < streams:
            start.wait(timeout=30)
        return ask_prompt(endpoint, prompts[at % len(prompts)], stream=stream)

    with ThreadPoolExecutor(streams, "gpuinfra-ask") as pool:
        return tuple(pool.map(one, range(times)))


def ask_both_ways(endpoint: InferenceEndpoint, prompt: Prompt) -> tuple[Asked, Asked]:
    """Ask one question as a whole and as a stream. Shape (2,), in this order."""
    return ask_prompt(endpoint, prompt), ask_prompt(endpoint, prompt, stream=True)
