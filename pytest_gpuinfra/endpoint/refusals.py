"""Refusals of a server judged by their bodies alone: do they tell what is wrong, was the context too small?"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuinfra.endpoint.error_body import ContextOverflow, ErrorBody
from pytest_gpuinfra.subjects.verdict import Verdict


def judge_error_bodies(bodies: Sequence[ErrorBody | None]) -> Verdict:
    """
    Judge whether each error body gives a message.

    Args:
        bodies: As `parse_error_body` gives them; None where a body holds no error.
    """
    silent = sum(body is None for body in bodies)
    said = "; ".join(body.message for body in bodies if body)
    return Verdict(
        ending="error" if not bodies else "wrong" if silent else "ok",
        subject="error bodies",
        observed=f"{silent} of {len(bodies)} without a message; {said}" if silent or not bodies else said,
        expected="a message in each",
        why="a client cannot tell its own mistake from the server's",
        action="report it to the engine",
    )


def judge_context_fit(overflow: ContextOverflow) -> Verdict:
    """Judge a request that the server says does not fit its context."""
    needs = f"{overflow.requested} tokens" if overflow.requested is not None else "more tokens than fit"
    parts = (
        f" ({overflow.input} + {overflow.completion})"
        if overflow.input is not None and overflow.completion is not None
        else ""
    )
    return Verdict(
        ending="wrong",
        subject="request against the context",
        observed=f"it needs {needs}{parts}, the limit is {overflow.limit}",
        expected="a request that fits",
        why="the server refuses it, whatever is in it",
        action="ask for fewer tokens, or serve the model with a longer context",
    )
