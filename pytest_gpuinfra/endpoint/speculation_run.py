"""Reads the speculation counters of a live server, and watches them around requests of our own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_gpuinfra.endpoint.engine import EngineFacts, read_engine
from pytest_gpuinfra.endpoint.failures import BrokenAnswer, NoAnswer, bare
from pytest_gpuinfra.endpoint.metrics import pick_metrics
from pytest_gpuinfra.endpoint.speculation import SpeculationCounters, SpeculationRun, grown, speculation_from
from pytest_gpuinfra.endpoint.throughput import PROMPTS
from pytest_gpuinfra.errors import EndpointError

if TYPE_CHECKING:
    from pytest_gpuinfra.endpoint.client import InferenceEndpoint


def read_speculation(endpoint: InferenceEndpoint, engine: EngineFacts | None = None) -> SpeculationCounters:
    """
    Read the counters as they are now.

    Args:
        endpoint: Whom to ask.
        engine: Engine and its account, if they are known and need not be read again.

    Raises:
        NoAnswer, BrokenAnswer: The server did not answer.
    """
    facts = engine or read_engine(endpoint)
    if facts.metrics_path is None:
        return speculation_from(facts, None)
    answer = endpoint.get(facts.metrics_path, total_s=10.0)
    return speculation_from(facts, pick_metrics([(facts.metrics_path, answer.status, answer.text)]))


def run_speculation(
    endpoint: InferenceEndpoint, *, requests: int = 8, prompts: Sequence[str] = PROMPTS, settle_s: float = 3.0
) -> SpeculationRun:
    """
    Read the counters, ask, and read them again once they have taken note.

    Args:
        endpoint: Whom to ask.
        requests: Requests, one after the other. SGLang's own averages move every 40 verifications only.
        prompts: Questions, asked in turn.
        settle_s: How long to wait for counters that lag behind, in seconds.

    Raises:
        NoAnswer, BrokenAnswer: The counters could not be read, or no request had an answer.
    """
    before = read_speculation(endpoint)
    tokens, answered, failures = 0, 0, list[EndpointError]()
    for at in range(requests):
        try:
            answer = endpoint.ask(prompts[at % len(prompts)])
        except (NoAnswer, BrokenAnswer) as error:
            failures.append(bare(error))
            continue
        answered += 1
        tokens += answer.usage.completion_tokens or 0
    if not answered and failures:
        raise failures[0]
    deadline = time.monotonic() + settle_s
    while True:
        more = grown(before.generated_tokens, read_speculation(endpoint, before.engine).generated_tokens)
        if more is None or more >= tokens or more < 0 or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    after = read_speculation(endpoint)
    return SpeculationRun(before, after, answered, tokens, tuple(error.reason for error in failures))
