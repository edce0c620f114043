"""
Speculation in what engines and benchmarks log, judged: drafts that are never accepted cost time and give nothing.

Source: llama.cpp log lines of 2026 ("draft acceptance = ..."), vLLM's V0 engine ("Speculative metrics: ...", totals
since its start), vLLM's V1 engine ("SpecDecoding metrics: ...", of the seconds before), SGLang 0.5 ("Decode batch ...
accept len: ..."), SGLang's bench_serving summary; cases C098 to C100, C318.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_gpuinfra.endpoint.speculation import Acceptance
from pytest_gpuinfra.subjects.verdict import Ending, Verdict

_PER_REQUEST = re.compile(
    r"draft acceptance(?: rate)? = [\d.]+ \(\s*(?P<accepted>\d{1,15}) accepted /\s*(?P<proposed>\d{1,15}) generated\)"
    r"(?:, mean acceptance length =\s*(?P<length>\d[\d.]{0,15}))?"
)
_PER_INTERVAL = re.compile(
    r"SpecDecoding metrics: .*?Mean acceptance length: (?P<length>\d[\d.]{0,15}).*?"
    r"Accepted: (?P<accepted>\d{1,15}) tokens, Drafted: (?P<proposed>\d{1,15}) tokens"
)
_TOTALS = re.compile(
    r"Speculative metrics: Draft acceptance rate: [\d.]+.*?Number of accepted tokens: (?P<accepted>\d{1,15}), "
    r"Number of draft tokens: (?P<proposed>\d{1,15})"
)
_LENGTH = re.compile(r"Decode batch.*?\baccept len: (?P<length>\d[\d.]{0,15})")
_SUMMARY = {
    name: re.compile(rf"^\s*{re.escape(label)}\s+(\d[\d.]{{0,15}})\s*$", re.MULTILINE)
    for name, label in (
        ("proposed", "Draft tokens:"),
        ("accepted", "Accepted tokens:"),
        ("length", "Acceptance length (server):"),
        ("short", "Acceptance length:"),
    )
}
_TOO_FEW = 10
"""Drafted tokens of a warm-up, by which nobody can tell."""


def parse_speculation_log(text: str) -> Acceptance | None:
    """
    Read all that a log tells of speculation as one: counts added up, lengths averaged.

    Of totals since the engine's start, what happened between the first and the last counts.

    Returns:
        None if no line speaks of it.
    """
    proposed = accepted = 0
    lengths: list[float] = []
    seen = False
    for found in _counted(text):
        seen = True
        proposed += int(found["proposed"])
        accepted += int(found["accepted"])
        lengths += [_number(found["length"])] if found["length"] else []
    totals = [(int(found["proposed"]), int(found["accepted"])) for found in _TOTALS.finditer(text)]
    if totals:
        seen = True
        before = totals[0] if len(totals) > 1 else (0, 0)
        proposed += max(0, totals[-1][0] - before[0])
        accepted += max(0, totals[-1][1] - before[1])
    summary = {name: match[1] for name, pattern in _SUMMARY.items() if (match := pattern.search(text))}
    if "proposed" in summary and "accepted" in summary:
        seen = True
        proposed += int(_number(summary["proposed"]))
        accepted += int(_number(summary["accepted"]))
    lengths += [_number(summary[name]) for name in ("length", "short") if name in summary][:1]
    lengths += [_number(found["length"]) for found in _LENGTH.finditer(text)]
    if not seen and not lengths:
        return None
    return Acceptance(
        draft_tokens=float(proposed) if seen else None,
        accepted_tokens=float(accepted) if seen else None,
        accept_length=sum(lengths) / len(lengths) if lengths else None,
        source="the service's log",
    )


def judge_speculation_log(acceptance: Acceptance | None, *, mean_length_min: float | None = None) -> Verdict:
    """
    Judge what a log tells of speculation.

    Args:
        acceptance: As `parse_speculation_log` gives it.
        mean_length_min: Mean tokens per verification that are expected at least; None for more than the certain one.
    """
    if acceptance is None:
        return _verdict("skip", "its log does not speak of speculation", mean_length_min)
    length = acceptance.accept_length
    observed = "" if length is None else f"mean length {length:.2f}"
    if acceptance.draft_tokens is not None:
        counts = f"{acceptance.accepted_tokens:.0f} of {acceptance.draft_tokens:.0f} drafted tokens accepted"
        observed = f"{counts}, {observed}" if observed else counts
        if acceptance.draft_tokens < _TOO_FEW:
            return _verdict("skip", f"{observed}: too few to tell", mean_length_min)
        if not acceptance.accepted_tokens:
            return _verdict("wrong", observed, mean_length_min)
    if length is not None and (length <= 1.0 or (mean_length_min is not None and length < mean_length_min)):
        return _verdict("wrong", observed, mean_length_min)
    return _verdict("ok", observed, mean_length_min)


def _counted(text: str) -> Iterator[re.Match[str]]:
    yield from _PER_REQUEST.finditer(text)
    yield from _PER_INTERVAL.finditer(text)


def _number(text: str) -> float:
    """Read a number of a log; a sentence's full stop may stand behind it."""
    whole, _, part = text.rstrip(".").partition(".")
    return float(f"{whole}.{part.partition('.')[0] or 0}")


def _verdict(ending: Ending, observed: str, mean_length_min: float | None) -> Verdict:
    return Verdict(
        ending=ending,
        subject="speculation by the service's log",
        observed=observed,
        expected="drafts are accepted"
        + ("" if mean_length_min is None else f", {mean_length_min:g} tokens a verification at least"),
        why="each draft costs time, and a draft model that does not belong to the model gives nothing back",
        action="see which draft model is loaded, and whether it was made for this model",
    )
