"""Tokens per second and time to first token, for one stream and for many; and a load to measure under."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuinfra.endpoint.failures import BrokenAnswer, NoAnswer, bare
from pytest_gpuinfra.endpoint.stream import StreamAnswer
from pytest_gpuinfra.errors import EndpointError

if TYPE_CHECKING:
    from pytest_gpuinfra.endpoint.client import InferenceEndpoint

PROMPTS = tuple(f"What is {a}*{b}? Answer briefly." for a, b in ((15, 23), (47, 86), (38, 59), (64, 72), (91, 13)))


@dataclass(frozen=True, slots=True)
class Throughput:
    """
    One measurement.

    Attributes:
        streams: Requests under way at the same time.
        requests: Requests that ended with an answer.
        failures: Why the others did not; empty if all did.
        tokens: Tokens generated in all, by the server's count; by pieces of the stream where it counts none.
        counted: Whether the server counted them.
        wall_s: From the first request to the last answer, in seconds.
        first_token_s: Time to first token of each request, in seconds, ascending. Shape (requests,).
        stream_tokens_per_s: Tokens per second of each request after its first token, ascending.
            Shape (requests,) at most: a request of one token has none.
    """

    streams: int
    requests: int
    failures: tuple[str, ...]
    tokens: int
    counted: bool
    wall_s: float
    first_token_s: tuple[float, ...]
    stream_tokens_per_s: tuple[float, ...]

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all streams per second, prompt processing included."""
        return self.tokens / self.wall_s if self.wall_s else 0.0

    @property
    def median_first_token_s(self) -> float | None:
        """Median time to first token, in seconds; None without an answer."""
        return statistics.median(self.first_token_s) if self.first_token_s else None

    def __str__(self) -> str:
        first = self.median_first_token_s
        return (
            f"{self.streams} stream{'s' * (self.streams > 1)}: {self.tokens_per_s:.1f} tokens/s "
            f"({self.requests} requests, {self.tokens} tokens, {self.wall_s:.2f} s), "
            f"first token after {'-' if first is None else f'{first * 1000:.1f} ms'} (median)"
        )


def measure_throughput(
    endpoint: InferenceEndpoint,
    *,
    streams: int = 1,
    requests: int = 8,
    prompts: Sequence[str] = PROMPTS,
    max_tokens: int = 256,
    total_s: float | None = None,
) -> Throughput:
    """
    Send streamed requests, so many at the same time, and measure.

    Args:
        endpoint: Whom to ask; warm it up before.
        streams: Requests under way at the same time.
        requests: Requests in all.
        prompts: Questions, asked in turn.
        max_tokens: Longest answer.
        total_s: Deadline of one request, in seconds.

    Raises:
        NoAnswer: No request at all had an answer.
    """
    limit = endpoint.max_tokens(max_tokens)
    lock, failures, answers = threading.Lock(), list[EndpointError](), list[StreamAnswer]()

    def one(at: int) -> None:
        try:
            answer = endpoint.stream(prompts[at % len(prompts)], max_tokens=limit, total_s=total_s)
        except (NoAnswer, BrokenAnswer) as error:
            with lock:
                failures.append(bare(error))
        else:
            with lock:
                answers.append(answer)

    started = time.monotonic()
    with ThreadPoolExecutor(streams, "gpuinfra-load") as pool:
        list(pool.map(one, range(requests)))
    wall_s = time.monotonic() - started
    if not answers:
        raise failures[0]
    return throughput_of(answers, streams=streams, wall_s=wall_s, failures=tuple(error.reason for error in failures))


def throughput_of(
    answers: Sequence[StreamAnswer], *, streams: int, wall_s: float, failures: tuple[str, ...] = ()
) -> Throughput:
    """Put a measurement together from streams."""
    counted = all(answer.answer.usage.completion_tokens is not None for answer in answers)
    return Throughput(
        streams=streams,
        requests=len(answers),
        failures=failures,
        tokens=sum(_tokens(answer) for answer in answers),
        counted=counted,
        wall_s=wall_s,
        first_token_s=tuple(sorted(s for answer in answers if (s := answer.first_token_s) is not None)),
        stream_tokens_per_s=tuple(sorted(speed for answer in answers if (speed := _speed(answer)) is not None)),
    )


@contextmanager
def background_load(
    endpoint: InferenceEndpoint, *, streams: int = 4, prompts: Sequence[str] = PROMPTS, max_tokens: int = 256
) -> Iterator[list[StreamAnswer | EndpointError]]:
    """
    Keep so many requests under way until the block ends; then wait for those under way.

    Yields:
        A list that grows by one entry a request: its answer, or its failure. Look at it after the block.
    """
    done, results = threading.Event(), list[StreamAnswer | EndpointError]()
    limit = endpoint.max_tokens(max_tokens)

    def keep_busy(at: int) -> None:
        while not done.is_set():
            try:
                results.append(endpoint.stream(prompts[at % len(prompts)], max_tokens=limit))
            except (NoAnswer, BrokenAnswer) as error:
                results.append(bare(error))
                done.wait(0.5)
            at += 1

    with ThreadPoolExecutor(streams, "gpuinfra-load") as pool:
        waiting = [pool.submit(keep_busy, at) for at in range(streams)]
        try:
            yield results
        finally:
            done.set()
        for future in waiting:
            future.result()


def _tokens(answer: StreamAnswer) -> int:
    counted = answer.answer.usage.completion_tokens
    return len(answer.pieces) if counted is None else counted


def _speed(answer: StreamAnswer) -> float | None:
    if len(answer.pieces) < 2:
        return None
    span = answer.pieces[-1][0] - answer.pieces[0][0]
    return (_tokens(answer) - 1) / span if span > 0 else None
