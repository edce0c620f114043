"""The same question again, many at a time, and as a stream: judged by what must not change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pytest_gpuinfra.endpoint.failures import NoAnswer
from pytest_gpuinfra.endpoint.judge_answers import CORRUPT, failed, judge_answer, shown
from pytest_gpuinfra.endpoint.smoke import Asked
from pytest_gpuinfra.masking import first_of
from pytest_gpuinfra.subjects.verdict import Verdict


def judge_repeats(asked: Sequence[Asked], *, different_max: int = 0) -> Verdict:
    """
    Judge one question asked again and again at temperature 0: one text each time.

    Args:
        asked: What came of each; two answers at least.
        different_max: How many may differ from the commonest text.
    """
    subject = f"{len(asked)} repeats of {asked[0].prompt.name}" if asked else "repeats"
    broken = _first_failure(subject, asked)
    if broken or len(asked) < 2:
        return broken or _nothing(subject, f"{len(asked)} answers")
    texts = Counter((item.answer.content, item.answer.reasoning) for item in asked if item.answer)
    (common, count), *others = texts.most_common()
    different = len(asked) - count
    commonest = "; ".join(
        f"{number}x {first_of(text[0].strip(), 60)!r}" for text, number in [(common, count), *others][:4]
    )
    return Verdict(
        ending="ok" if different <= different_max else "wrong",
        subject=subject,
        observed=f"{len(texts)} different texts: {commonest}"
        if others
        else f"one text: {first_of(common[0].strip(), 60)!r}",
        expected="the same text each time, reasoning included"
        + (f", or {different_max} that differ" if different_max else ""),
        why="the same request at temperature 0, alone on the server, must compute the same: else memory, a kernel, "
        "or a copy between GPUs is unreliable",
        action="repeat it while nobody else uses the server; if it stays, run the GPU suites",
    )


def judge_concurrent(
    asked: Sequence[Asked], alone: Sequence[Asked] = (), *, different_texts_max: int | None = None
) -> Verdict:
    """
    Judge answers that were made at the same time: each the right one to its own question.

    Args:
        asked: What came of each; two answers at least.
        alone: The same questions asked alone, to compare the texts with.
        different_texts_max: How many texts may differ from those alone; None for any number, since kernels for
            other batch sizes round differently. The number is in the warnings.
    """
    subject = f"{len(asked)} answers at the same time"
    broken = _first_failure(subject, asked)
    if broken or len(asked) < 2:
        return broken or _nothing(subject, f"{len(asked)} answers")
    judged = [(item, judge_answer(item)) for item in asked]
    wrong = [(item, verdict) for item, verdict in judged if not verdict.ok]
    texts = {item.prompt.name: item.answer.content for item in alone if item.answer}
    differ = sum(
        1 for item in asked if item.answer and texts.get(item.prompt.name, item.answer.content) != item.answer.content
    )
    too_many = different_texts_max is not None and differ > different_texts_max
    first = f"; {wrong[0][0].prompt.name}: {wrong[0][1].observed}" if wrong else ""
    note = f"{differ} of {len(asked)} texts differ from the answer alone" if differ else ""
    return Verdict(
        ending="wrong" if wrong or too_many else "ok",
        subject=subject,
        observed=f"{len(asked) - len(wrong)} of {len(asked)} right{first}" + (f"; {note}" if too_many else ""),
        expected="every answer right, each to its own question"
        + (f", at most {different_texts_max} texts that differ" if different_texts_max is not None else ""),
        why="under load the batch is larger and the KV cache is shared: what is right alone may be wrong, or another's",
        action=CORRUPT,
        warnings=(note,) if note and not too_many else (),
    )


def judge_stream(whole: Asked, streamed: Asked) -> Verdict:
    """Judge one question asked as a whole and as a stream: the same text, and a stream that ends well."""
    subject = f"stream of {whole.prompt.name}"
    broken = _first_failure(subject, (whole, streamed))
    if broken or whole.answer is None or streamed.answer is None or streamed.stream is None:
        return broken or _nothing(subject, "no stream")
    one, other = whole.answer, streamed.answer
    same = (one.content.strip(), one.reasoning) == (other.content.strip(), other.reasoning)
    warnings = [] if streamed.stream.done else ["the stream ended without [DONE]"]
    if other.usage.completion_tokens is None:
        warnings.append("the stream holds no usage, although it was asked for")
    return Verdict(
        ending="ok" if same and other.finish_reason == one.finish_reason else "wrong",
        subject=subject,
        observed=f"{shown(other)} in {len(streamed.stream.pieces)} pieces",
        expected=f"{shown(one)}, as when not streamed",
        why="clients that stream would get another answer than clients that do not",
        action="compare the two bodies attached; a proxy or a reasoning parser treats streams otherwise",
        warnings=tuple(warnings),
    )


def judge_usage(asked: Asked) -> Verdict:
    """
    Judge the token counts of one answer: they add up, on every engine in the same way.

    prompt + completion = total; reasoning is a part of completion, cached a part of prompt. skip where the server
    counts nothing.
    """
    subject = f"usage of {asked.prompt.name}"
    if asked.answer is None:
        return failed(subject, asked)
    usage = asked.answer.usage
    prompt, completion, total = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens
    observed = f"prompt {prompt} + completion {completion} = total {total}"
    expected = "prompt + completion = total, at least one of each; reasoning within completion, cached within prompt"
    if prompt is None or completion is None:
        return Verdict(ending="skip", subject=subject, observed="the server reports no token counts", expected=expected)
    problems = [
        problem
        for problem, true in (
            ("the sum is another", total is not None and prompt + completion != total),
            ("nothing was counted", prompt < 1 or completion < 1),
            (f"{usage.reasoning_tokens} reasoning tokens", (usage.reasoning_tokens or 0) > completion),
            (f"{usage.cached_tokens} cached tokens", (usage.cached_tokens or 0) > prompt),
        )
        if true
    ]
    return Verdict(
        ending="wrong" if problems else "ok",
        subject=subject,
        observed=f"{observed}: {', '.join(problems)}" if problems else observed,
        expected=expected,
        why="whoever bills or limits by tokens counts wrong",
        action="compare with the engine's release notes, and with what a proxy in between rewrites",
        warnings=() if total is not None else ("the server gives no total",),
    )


def _first_failure(subject: str, asked: Sequence[Asked]) -> Verdict | None:
    """Give the verdict on failures: a broken answer is wrong whatever else happened; a missing one is an error."""
    missing = [item for item in asked if item.failure is not None]
    if not missing:
        return None
    missing.sort(key=lambda item: isinstance(item.failure, NoAnswer))
    verdict = failed(subject, missing[0])
    return Verdict(
        ending=verdict.ending,
        subject=subject,
        observed=f"{len(missing)} of {len(asked)} without an answer; {verdict.observed}",
        expected=f"{len(asked)} answers",
        why=verdict.why,
        action=verdict.action,
    )


def _nothing(subject: str, observed: str) -> Verdict:
    return Verdict(
        ending="error",
        subject=subject,
        observed=f"{observed}: nothing can be told from that",
        expected="two answers at least",
        action="ask for more requests",
    )
