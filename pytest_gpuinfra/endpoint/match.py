"""Is the answer the expected one? By the prompt's kind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from pytest_gpuinfra.endpoint.markup import plain_text
from pytest_gpuinfra.endpoint.numbers import final_number
from pytest_gpuinfra.endpoint.prompts import Prompt

LONGEST = 20_000
"""Characters of an answer that are looked at, from its end."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """
    How an answer compares with the expected one.

    Attributes:
        right: Whether it is the expected one.
        found: What the answer comes to, in a normal form: two answers of the same meaning have the same.
        reason: Why it is not; "" if it is.
    """

    right: bool
    found: str
    reason: str = ""


def compare(prompt: Prompt, answer: str) -> Comparison:
    """
    Compare an answer, without its reasoning, with the one that the prompt expects.

    Args:
        prompt: Question and expected answer.
        answer: What a person reads, mark-up and all.
    """
    answer = answer[-LONGEST:]
    if prompt.kind in ("integer", "tolerance"):
        return _number(prompt, answer)
    text = plain_text(answer)
    if prompt.kind == "regex":
        found = re.search(prompt.expected, text)
        reason = "" if found else f"/{prompt.expected}/ is not in it"
        return Comparison(found is not None, found[0] if found else text, reason)
    bare = _bare(text)
    return Comparison(
        bare == _bare(prompt.expected), bare, "" if bare == _bare(prompt.expected) else "it is another text"
    )


def _number(prompt: Prompt, answer: str) -> Comparison:
    final = final_number(answer, prompt.prompt)
    if final.value is None:
        return Comparison(False, plain_text(answer), final.reason)
    distance = abs(final.value - Decimal(prompt.expected))
    limit = Decimal(str(prompt.tolerance)) if prompt.kind == "tolerance" else Decimal(0)
    shown = f"{final.value.normalize():f}"
    return Comparison(distance <= limit, shown, "" if distance <= limit else f"it comes to {shown}")


def _bare(text: str) -> str:
    quotes = "\"'\u201c\u201d\u2018\u2019"
    return " ".join(text.split()).strip(quotes).removesuffix(".").strip(quotes)
