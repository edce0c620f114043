"""Speculative decoding judged: configured is one fact, accepting is another."""

from __future__ import annotations

from pytest_gpuinfra.endpoint.speculation import Acceptance, SpeculationRun
from pytest_gpuinfra.subjects.verdict import Ending, Verdict

ACCEPTING_ABOVE = 1.05
"""Mean accepted length, the certain token included, above which drafts count as accepted.
A random draft head reached 1.02 on SGLang, a trained one 1.95 (sglang-h200/)."""

ALIASES = {"NEXTN": "EAGLE", "FROZEN_KV_MTP": "EAGLE"}
"""Names that SGLang resolves into another."""

_WHY = "every request is slower than it was accepted to be, with all answers right: nothing else tells"


def judge_speculation(
    run: SpeculationRun,
    *,
    expected: bool | None = None,
    algorithm: str | None = None,
    mean_length_min: float | None = None,
) -> Verdict:
    """
    Judge speculation around requests of our own.

    Args:
        run: Counters before and after them.
        expected: Whether it shall speculate; None for whatever the engine says of itself, or if a floor is given.
        algorithm: Name expected (SGLang only); NEXTN is what SGLang calls EAGLE afterwards.
        mean_length_min: Floor of the mean accepted length, the certain token included.
    """
    info, name = run.after.engine.info, run.after.engine.name
    wanted = True if mean_length_min is not None or algorithm is not None else expected
    subject = f"speculation of {run.after.engine}"
    if run.failures:
        return _error(subject, f"{len(run.failures)} requests failed: {run.failures[0]}", "read the server's log")
    acceptance = run.acceptance
    if acceptance is None:
        return _error(
            subject, "counters fell: the server was restarted during the check", "see why it restarted, then run again"
        )
    if not acceptance.known and info.speculates is not False:
        return _unseen(subject, wanted, name)
    verdict = judge_acceptance(
        acceptance, wanted=wanted, configured=info.speculates, mean_length_min=mean_length_min, subject=subject
    )
    resolved = ALIASES.get(algorithm or "", algorithm)
    told = info.speculative_algorithm
    if verdict.ok and resolved is not None and told is None:
        return _error(
            subject, f"{name} does not tell its algorithm ({verdict.observed})", "expect it of the service's arguments"
        )
    if verdict.ok and resolved is not None and told not in (resolved, algorithm):
        return _wrong(subject, f"algorithm {told}", f"{algorithm} (shown as {resolved})", "compare the arguments")
    return verdict


def judge_acceptance(
    acceptance: Acceptance,
    *,
    wanted: bool | None = None,
    configured: bool | None = None,
    mean_length_min: float | None = None,
    subject: str = "speculation",
) -> Verdict:
    """
    Judge how drafts fared, from counters, log lines, or a benchmark's output.

    Args:
        acceptance: What happened in the interval.
        wanted: Whether it shall speculate; None if nobody said.
        configured: Whether the engine says that it speculates; None if it does not say.
        mean_length_min: Floor of the mean accepted length.
        subject: What is judged.
    """
    off = wanted is False or (wanted is None and not configured and not (configured is None and _drafts(acceptance)))
    expected = _expected(wanted, mean_length_min)
    if off:
        return _judge_off(acceptance, wanted, configured, subject, expected)
    return _judge_on(acceptance, configured, mean_length_min, subject, expected)


def _judge_off(
    acceptance: Acceptance, wanted: bool | None, configured: bool | None, subject: str, expected: str
) -> Verdict:
    seen = _shown(acceptance)
    if _drafts(acceptance) or _accepting(acceptance):
        said = "the engine says it does not speculate" if configured is False else "nobody expects it"
        state = "accepting but not configured" if _accepting(acceptance) else "drafting but not configured"
        return _wrong(subject, f"{state}: {said}, and {seen}", expected, _ARGUMENTS)
    if wanted is False and configured is not False and acceptance.drafts != 0:
        return _error(subject, f"nothing tells whether it speculates ({seen})", _ARGUMENTS)
    ending: Ending = "ok" if wanted is False else "skip"
    return Verdict(ending=ending, subject=subject, observed=f"no speculation ({seen})", expected=expected)


def _judge_on(
    acceptance: Acceptance, configured: bool | None, mean_length_min: float | None, subject: str, expected: str
) -> Verdict:
    accepting, seen, length = _accepting(acceptance), _shown(acceptance), acceptance.mean_length
    if configured is False:
        state = "accepting but not configured" if accepting else "not configured"
        return _wrong(subject, f"{state}: the engine says it does not speculate, and {seen}", expected, _ARGUMENTS)
    if accepting is None:
        return _error(subject, f"drafts are not counted ({seen})", "send more requests: the engine counts in steps")
    if not accepting:
        state = "configured but not drafting" if acceptance.drafts == 0 else "configured but not accepting"
        return _wrong(
            subject,
            f"{state}: {seen}",
            expected,
            "see whether the draft model or head belongs to this model and precision; the log names what it loaded",
        )
    if mean_length_min is not None and length is None:
        return _error(subject, f"the mean accepted length is not told ({seen})", "expect it of an engine that tells it")
    if mean_length_min is not None and length is not None and length < mean_length_min:
        return _wrong(subject, f"accepting too little: {seen}", expected, "compare draft model, steps and load")
    return Verdict(ending="ok", subject=subject, observed=seen, expected=expected, why=_WHY)


_ARGUMENTS = "compare the running process's speculation arguments with the inventory"


def _drafts(acceptance: Acceptance) -> bool:
    return bool(acceptance.drafts or acceptance.draft_tokens)


def _accepting(acceptance: Acceptance) -> bool | None:
    """Whether drafts are accepted; None if that is not known."""
    if acceptance.drafts == 0:
        return False
    if acceptance.accepted_tokens == 0:
        return False
    length = acceptance.mean_length
    if length is not None:
        return length > ACCEPTING_ABOVE
    rate = acceptance.rate
    return None if rate is None else rate > ACCEPTING_ABOVE - 1


def _shown(acceptance: Acceptance) -> str:
    parts = [
        f"{name} {value:.10g}"
        for name, value in (
            ("drafts", acceptance.drafts),
            ("proposed", acceptance.draft_tokens),
            ("accepted", acceptance.accepted_tokens),
        )
        if value is not None
    ]
    if acceptance.rate is not None:
        parts.append(f"rate {acceptance.rate:.3f}")
    if acceptance.mean_length is not None:
        parts.append(f"mean length {acceptance.mean_length:.2f}")
    return ", ".join(parts) or "nothing is counted"


def _expected(wanted: bool | None, mean_length_min: float | None) -> str:
    if wanted is False:
        return "no speculation"
    floor = ACCEPTING_ABOVE if mean_length_min is None else mean_length_min
    return f"drafts proposed and accepted, mean length {floor:g} or more (1 means that none was accepted)"


def _unseen(subject: str, wanted: bool | None, engine: str) -> Verdict:
    seen = f"{engine} gives no counters of speculation"
    if wanted is not None:
        return _error(
            subject, seen, "start the server with its metrics on: --enable-metrics (SGLang), --metrics (llama.cpp)"
        )
    return Verdict(ending="skip", subject=subject, observed=seen, expected="nothing")


def _wrong(subject: str, observed: str, expected: str, action: str) -> Verdict:
    return Verdict(ending="wrong", subject=subject, observed=observed, expected=expected, why=_WHY, action=action)


def _error(subject: str, observed: str, action: str) -> Verdict:
    return Verdict(ending="error", subject=subject, observed=observed, expected="counters that tell", action=action)
