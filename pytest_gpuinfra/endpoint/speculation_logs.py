"""
Speculation in what engines and benchmarks print, for servers without counters.

Source: llama.cpp log lines of 2026 ("draft acceptance = ..."), vLLM's V0 engine ("Speculative metrics: ..."),
SGLang's bench_serving summary; cases C098 to C100.
"""

from __future__ import annotations

import re

from pytest_gpuinfra.endpoint.speculation import Acceptance

_LLAMACPP = re.compile(
    r"draft acceptance(?: rate)? = (?P<rate>[\d.]+) \(\s*(?P<accepted>\d+) accepted /\s*(?P<proposed>\d+) generated\)"
    r"(?:, mean acceptance length =\s*(?P<length>[\d.]+))?"
)
_VLLM_V0 = re.compile(
    r"Speculative metrics: Draft acceptance rate: (?P<rate>[\d.]+).*?"
    r"Number of accepted tokens: (?P<accepted>\d+), Number of draft tokens: (?P<proposed>\d+)"
)


def parse_llamacpp_log(text: str) -> tuple[Acceptance, ...]:
    """
    Read llama.cpp's line of each request; the "statistics" lines say the same again and are left out.

    Returns:
        One for each request, in log order; empty if no request was speculated on.
    """
    return tuple(
        Acceptance(
            draft_tokens=float(found["proposed"]),
            accepted_tokens=float(found["accepted"]),
            accept_length=float(found["length"]) if found["length"] else None,
            accept_rate=float(found["rate"]),
            source="llama.cpp log",
        )
        for found in _LLAMACPP.finditer(text)
    )


def parse_vllm_v0_log(text: str) -> tuple[Acceptance, ...]:
    """
    Read the lines of vLLM's V0 engine, whose numbers are totals since its start.

    Returns:
        One total for each line, in log order; interval() gives what happened between the first and the last.
    """
    return tuple(
        Acceptance(
            draft_tokens=float(found["proposed"]),
            accepted_tokens=float(found["accepted"]),
            accept_rate=float(found["rate"]),
            source="vLLM log",
        )
        for found in _VLLM_V0.finditer(text)
    )


def interval(totals: tuple[Acceptance, ...]) -> Acceptance | None:
    """Give what happened between the first and the last of several totals; None for fewer than two."""
    if len(totals) < 2:
        return None
    first, last = totals[0], totals[-1]
    return Acceptance(
        draft_tokens=(last.draft_tokens or 0) - (first.draft_tokens or 0),
        accepted_tokens=(last.accepted_tokens or 0) - (first.accepted_tokens or 0),
        source=last.source,
    )


def parse_benchmark(text: str) -> Acceptance | None:
    """
    Read the summary of bench_serving, whose rate is in percent and whose length counts the certain token.

    Returns:
        None if it holds no line about speculation.
    """

    def number(label: str) -> float | None:
        found = re.search(rf"^\s*{re.escape(label)}\s*:?\s+([\d.]+)\s*$", text, re.MULTILINE)
        return float(found[1]) if found else None

    rate = number("Acceptance rate (%):")
    acceptance = Acceptance(
        drafts=number("Drafts:"),
        draft_tokens=number("Draft tokens:"),
        accepted_tokens=number("Accepted tokens:"),
        accept_length=number("Acceptance length (server):") or number("Acceptance length:"),
        accept_rate=None if rate is None else rate / 100,
        source="benchmark",
    )
    return acceptance if acceptance.known else None
