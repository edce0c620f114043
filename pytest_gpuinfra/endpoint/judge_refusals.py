"""Refusals and speed judged."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuinfra.endpoint.bad_requests import Refusal
from pytest_gpuinfra.endpoint.failures import BrokenAnswer
from pytest_gpuinfra.endpoint.judge_answers import judge_answer
from pytest_gpuinfra.endpoint.smoke import Asked
from pytest_gpuinfra.endpoint.throughput import Throughput
from pytest_gpuinfra.masking import first_of
from pytest_gpuinfra.subjects.verdict import Verdict


def judge_refusal(refusal: Refusal) -> Verdict:
    """Judge one bad request: a status from 400 to 499, and a message, nested or flat."""
    failure, status = refusal.failure, refusal.status
    message = refusal.error.message if refusal.error else ""
    observed = failure.reason if failure else f"status {status}, {first_of(message, 200) or 'no message'}"
    right = status is not None and 400 <= status < 500 and bool(message)
    return Verdict(
        ending="ok" if right else "error" if failure and not isinstance(failure, BrokenAnswer) else "wrong",
        subject=f"bad request {refusal.name}",
        observed=observed if right or failure or message else f"{observed}: {first_of(refusal.text, 200)!r}",
        expected="a status from 400 to 499 and a message",
        why="a client cannot tell its own mistake from the server's: it retries, and monitoring counts an outage",
        action="report it to the engine; until then, keep clients from sending such requests",
    )


def judge_still_answers(refusals: Sequence[Refusal], after: Asked) -> Verdict:
    """Judge whether the server still answers rightly after the bad requests."""
    verdict = judge_answer(after)
    names = ", ".join(refusal.name for refusal in refusals)
    return Verdict(
        ending=verdict.ending if refusals else "error",
        subject=f"answer after {len(refusals)} bad requests ({names or 'none was sent'})",
        observed=verdict.observed,
        expected=verdict.expected,
        why="one client's mistake takes the service from everybody",
        action="read the server's log from the first bad request on",
    )


def judge_throughput(measured: Throughput, baseline_tokens_per_s: float | None, *, slower_max: float = 0.15) -> Verdict:
    """
    Judge speed against a stored baseline only.

    Args:
        measured: The measurement.
        baseline_tokens_per_s: Tokens of all streams per second, measured before in the same way; None for none.
        slower_max: Largest loss, as a fraction of the baseline.

    Returns:
        skip without a baseline: the number is recorded and not judged.
    """
    subject = f"throughput with {measured.streams} stream{'s' * (measured.streams > 1)}"
    observed = str(measured)
    if measured.failures:
        observed += f"; {len(measured.failures)} requests failed: {measured.failures[0]}"
    if baseline_tokens_per_s is None:
        return Verdict(ending="skip", subject=subject, observed=f"no baseline; {observed}", expected="a baseline")
    floor = baseline_tokens_per_s * (1 - slower_max)
    change = measured.tokens_per_s / baseline_tokens_per_s - 1
    return Verdict(
        ending="ok" if measured.tokens_per_s >= floor and not measured.failures else "wrong",
        subject=subject,
        observed=f"{observed}: {change:+.0%} of the baseline",
        expected=f"{floor:.1f} tokens/s or more ({baseline_tokens_per_s:.1f} in the baseline, less {slower_max:.0%})",
        why="the same load needs more machines than it was planned for",
        action="compare speculation, clocks, PCIe links and NCCL's transport with the baseline's recording",
        warnings=() if measured.counted else ("the server gives no counts: pieces of the streams stand for tokens",),
    )
