"""
The number that an answer comes to.

A wrong number must never pass for the right one, so what is undecided is no answer;
a right one must be found whatever stands around it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from pytest_gpuinfra.endpoint.markup import BOLD, BOXED, END, marked_text

_GROUP = "[,'\u2019_ \u00a0\u2009\u202f]"
_NUMBER = re.compile(
    rf"(?<![\w.,])(?P<sign>[-+]?)(?P<int>\d{{1,3}}(?:(?P<group>{_GROUP})\d{{3}})(?:(?P=group)\d{{3}})*(?!\d)|\d+)"
    r"(?P<frac>\.\d+|,\d{1,2}(?![\d,]))?(?P<exp>[eE][-+]?\d+)?(?![\d])"
)
_BLANK = rf"[\s{BOXED}{BOLD}{END}]*"
_OPERATOR_AFTER = re.compile(
    rf"[\s){BOXED}{BOLD}{END}]*(?:[+*\u00d7·∙⋅/÷^²³]|[xX]{_BLANK}\d|-{_BLANK}\d|%|(?:times|multiplied|plus|minus|divided)\b)"
)
_OPERATOR_BEFORE = re.compile(
    rf"(?:[+*\u00d7·∙⋅/÷^]|\d{_BLANK}[xX]|\d{_BLANK}-|\b(?:times|plus|minus|by))[\s(]*[{BOXED}{BOLD}{END}]*$"
)
_NEGATION = re.compile(
    r"(?:≠|!=|\b(?:not|never|nor|nicht|neither)\b|n['\u2019]t\b|\brather than\b|\binstead of\b)"
    r"(?P<between>[^\d.,;:!?\n]*)$",
    re.IGNORECASE,
)
_DENIED = re.compile(
    rf"{_BLANK}(?:is|was|would be|are)(?:\s+not\b|n['\u2019]t\b|\s+(?:wrong|incorrect|false)\b)",
    re.IGNORECASE,
)
_RESULT = re.compile(
    r"\b(?:answer|result|product|total|equals|therefore|thus|hence|so)\b[^\d\n.;]{0,40}$", re.IGNORECASE
)
_OR = re.compile(rf"{_BLANK},?\s*(?:or|oder|ou|and/or|maybe|or maybe|possibly){_BLANK}", re.IGNORECASE)
_ASIDE = re.compile(r"\b(?:because|since|e\.g\.|for example|check:)", re.IGNORECASE)

LONGEST_NUMBER = 60
"""Digits of a number; a longer one is no result of any question."""


@dataclass(frozen=True, slots=True)
class FinalNumber:
    """
    What an answer comes to.

    Attributes:
        value: The number; None if there is none, or if it is undecided.
        reason: Why there is none; "" if there is one.
        seen: All numbers of the answer as they are written there, in order.
    """

    value: Decimal | None
    reason: str = ""
    seen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    value: Decimal
    start: int
    end: int


def final_number(answer: str, prompt: str = "") -> FinalNumber:
    """
    Find the number that an answer comes to.

    Numbers that are operands, list markers, denied ("not 345"), or repeated from the prompt are no result.
    Of several the boxed one counts, else the one named as the answer, else the bold one, else the last.

    Args:
        answer: Answer without its reasoning.
        prompt: The question.
    """
    text = _without_list_markers(marked_text(answer))
    matches = list(_NUMBER.finditer(text))
    seen = tuple(match[0] for match in matches)
    if not matches:
        return FinalNumber(None, "there is no number in it")
    given = {value for match in _NUMBER.finditer(marked_text(prompt)) if (value := _value(match)) is not None}
    results = []
    denied = False
    for match in matches:
        value = _value(match)
        if value is None or _is_operand(text, match):
            continue
        if _is_denied(text, match):
            denied = True
            continue
        results.append(_Found(value, match.start(), match.end()))
    fresh = [found for found in results if found.value not in given] or results
    if not fresh:
        return FinalNumber(None, "the number in it is denied" if denied else "no number in it is a result", seen)
    for first, second in pairwise(fresh):
        if first.value != second.value and _OR.fullmatch(text[first.end : second.start]):
            return FinalNumber(None, "it leaves open which of two numbers it is", seen)
    return FinalNumber(_chosen(text, fresh).value, "", seen)


def _chosen(text: str, results: list[_Found]) -> _Found:
    def marked(mark: str) -> list[_Found]:
        spans = [match.span() for match in re.finditer(f"{mark}[^{END}]*{END}", text)]
        return [found for found in results if any(a <= found.start < b for a, b in spans)]

    named = [found for found in results if _RESULT.search(text, max(0, found.start - 80), found.start)]
    main = [found for found in results if not _is_aside(text, found)]
    for choice in (marked(BOXED), named, marked(BOLD), main):
        if choice:
            return choice[-1]
    return results[-1]


def _value(match: re.Match[str]) -> Decimal | None:
    whole = re.sub(_GROUP, "", match["int"])
    exponent = (match["exp"] or "e0")[1:].lstrip("+-")
    if (len(whole) > 1 and whole.startswith("0")) or len(whole) > LONGEST_NUMBER or len(exponent) > 2:
        return None  # no number is written so
    fraction = (match["frac"] or "").replace(",", ".")
    return Decimal(f"{match['sign']}{whole}{fraction}{match['exp'] or ''}")


def _is_operand(text: str, match: re.Match[str]) -> bool:
    after = text[match.end() : match.end() + 40]
    glued = re.match(r"[A-Za-z]+\d", after) is not None
    return (
        glued
        or bool(_OPERATOR_AFTER.match(after))
        or bool(_OPERATOR_BEFORE.search(text[max(0, match.start() - 40) : match.start()]))
    )


def _is_denied(text: str, match: re.Match[str]) -> bool:
    before = _NEGATION.search(text[max(0, match.start() - 60) : match.start()])
    if before and len(before["between"].split()) <= 3 and not re.search(r"\bbut\b", before["between"]):
        return True
    return bool(_DENIED.match(text[match.end() : match.end() + 40]))


def _is_aside(text: str, found: _Found) -> bool:
    before = text[max(0, found.start - 400) : found.start]
    line = before[before.rfind("\n") + 1 :]
    return line.count("(") > line.count(")") or bool(_ASIDE.search(line))


def _without_list_markers(text: str) -> str:
    numbers = [int(found) for found in re.findall(r"(?m)^[^\S\n]*(\d{1,2})[.)]\s+\S", text)]
    if numbers[:2] != [1, 2]:
        return text
    return re.sub(r"(?m)^[^\S\n]*\d{1,2}[.)]\s+(?=\S)", "", text)
