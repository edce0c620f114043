"""
One answer judged: the expected one, whole, and in the content.

A server that answers wrongly, or breaks an answer off, was observed: wrong.
A server that could not be reached, refused the key, or was silent until the deadline was not: error.
"""

from __future__ import annotations

import re

from pytest_gpuinfra.endpoint.chat import ChatAnswer
from pytest_gpuinfra.endpoint.failures import BrokenAnswer
from pytest_gpuinfra.endpoint.match import LONGEST, compare
from pytest_gpuinfra.endpoint.prompts import Prompt
from pytest_gpuinfra.endpoint.smoke import Asked
from pytest_gpuinfra.masking import first_of
from pytest_gpuinfra.subjects.verdict import Verdict

_WRONG = "a model that computes wrongly on this host serves wrong answers to everybody, and nothing else tells"
CORRUPT = (
    "run the GPU suites: pair copies and all-reduce show whether the ranks exchange right data; "
    "then compare the weights' checksums"
)


def judge_answer(asked: Asked) -> Verdict:
    """
    Judge one answer: the expected one, whole, and in the content.

    wrong, with the reason, for another number, an answer only inside the reasoning, one cut by length,
    one character repeated, or a broken answer; error if nothing came to judge.
    """
    prompt = asked.prompt
    subject = f"answer to {prompt.name}"
    if asked.answer is None:
        return failed(subject, asked)
    answer = asked.answer
    problem, action = _problem(prompt, answer)
    observed = shown(answer) + (f": {problem}" if problem else "")
    return Verdict(
        ending="wrong" if problem else "ok",
        subject=subject,
        observed=observed,
        expected=f"{prompt.expected!r} ({prompt.kind}) for {prompt.prompt!r}",
        why=_WRONG,
        action=action,
        warnings=() if problem else _warnings(answer),
    )


def failed(subject: str, asked: Asked) -> Verdict:
    """Give the verdict on a request without an answer: wrong if it was broken, error if nothing came."""
    failure = asked.failure
    seen = failure.text if isinstance(failure, BrokenAnswer) else ""
    reason = failure.reason if failure else "nothing was asked"
    return Verdict(
        ending="wrong" if isinstance(failure, BrokenAnswer) else "error",
        subject=subject,
        observed=reason + (f" [{first_of(seen, 200)}]" if seen and seen[:80] not in reason else ""),
        expected="an answer",
        why="clients get the same",
        action=(failure.remedy if failure else "") or "read the server's log at this moment",
    )


def _problem(prompt: Prompt, answer: ChatAnswer) -> tuple[str, str]:
    problem, action = _form_problem(answer)
    if problem:
        return problem, action
    inside = compare(prompt, answer.reasoning).right if answer.reasoning else False
    if inside and not any(char.isalnum() for char in answer.answer):
        return (
            "it stands only inside the reasoning",
            "check --reasoning-parser against the model's chat template: it takes the answer for reasoning",
        )
    if not answer.answer:
        return "the content is empty", "read the server's log for this request, and try the prompt by hand"
    reason = compare(prompt, answer.answer).reason
    return (f"{reason}; the right one stands only inside the reasoning" if reason and inside else reason), CORRUPT


def _form_problem(answer: ChatAnswer) -> tuple[str, str]:
    repeated = repeated_text(answer.content) or ("" if answer.content else repeated_text(answer.reasoning))
    if repeated:
        return f"it is {repeated}: the weights, the KV cache or a copy between GPUs is corrupt", CORRUPT
    if answer.finish_reason == "length":
        return (
            f"it was cut by length after {answer.usage.completion_tokens} tokens",
            "give the prompt more max_tokens; if the model rambles, treat it as a wrong answer",
        )
    if answer.finish_reason not in ("stop", "eos", "eos_token", "stop_sequence", None):
        return f"it ended by {answer.finish_reason!r}", "read the server's log: something else than the model ended it"
    return "", ""


def repeated_text(text: str) -> str:
    """Say what a text consists of if it is one piece again and again, as corrupt weights give; "" otherwise."""
    text = text[:LONGEST]
    bare = "".join(text.split())
    if len(bare) >= 16 and len(set(bare)) == 1:
        return f"one character ({bare[0]!r}) {len(bare)} times"
    found = re.search(r"(.{2,24}?)\1{11,}", text, re.DOTALL)
    if found and len(found[0]) >= max(48, len(text) // 2):
        return f"one piece ({found[1]!r}) again and again"
    return ""


def shown(answer: ChatAnswer) -> str:
    """Show an answer in one line."""
    text = answer.answer or answer.content
    shown = text if len(text) <= 160 else f"{first_of(text, 160)}... ({len(text)} characters)"
    return f"{shown!r}" + ("" if answer.finish_reason == "stop" else f", finish_reason {answer.finish_reason}")


def _warnings(answer: ChatAnswer) -> tuple[str, ...]:
    notes = []
    if answer.finish_reason is None:
        notes.append("finish_reason is null although the answer is complete")
    if "\ufffd" in answer.content:
        notes.append("the text holds bytes that are no UTF-8")
    return tuple(notes)
