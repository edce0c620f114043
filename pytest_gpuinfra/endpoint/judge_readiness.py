"""May requests be sent? Judged from the ladder."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuinfra.endpoint.readiness import Readiness, Rung
from pytest_gpuinfra.subjects.verdict import Verdict

_KEY = "name the environment variable that holds the key: api_key_env in the inventory"
_WHY = "a balancer that sends traffic here gets errors or hangs"

_ACTIONS = {
    "port": "see whether the service is started and on this port: systemctl status, then its journal",
    "health": "read the service's journal: it is still loading, or it has failed to load",
    "models": "compare --served-model-name (or the model path) with expect.model.id in the inventory",
    "token": "send the same request by hand and read the journal: the server is up and cannot generate",
}


def judge_readiness(readiness: Readiness) -> Verdict:
    """
    Judge a climb of the ladder.

    ok if every rung was reached; error if the API key was refused, or a web page came in the API's place, since then
    nothing is known about the model; wrong otherwise.
    """
    subject = f"{readiness.base_url}: readiness"
    expected = f"port, health, model list and one token within {readiness.wait_s:g} s"
    if readiness.expected_model:
        expected += f", model {readiness.expected_model!r}"
    missing = readiness.missing
    if missing is None:
        return Verdict(ending="ok", subject=subject, observed=_timed(readiness.rungs), expected=expected)
    if readiness.stop == "unauthorized":
        return Verdict(
            ending="error",
            subject=subject,
            observed=f"{_timed(readiness.rungs)}; no valid API key ({missing.last})",
            expected=expected,
            action=_KEY,
        )
    if readiness.stop == "foreign":
        return Verdict(
            ending="error",
            subject=subject,
            observed=f"{_timed(readiness.rungs)}; something else than an inference server answers: {missing.last}",
            expected=expected,
            action="correct `endpoint` in the inventory, or whatever stands in front of the server: a proxy, a sign-in",
        )
    ended = {
        "unit": f"given up after {readiness.waited_s:.1f} s: {readiness.unit}",
        "model": f"given up after {readiness.waited_s:.1f} s: the server is healthy and keeps to this list",
    }.get(readiness.stop, f"not ready after {readiness.waited_s:.1f} s")
    unit = readiness.unit
    tail = f"\n  its journal ends:\n{unit.journal_tail.rstrip()}" if unit and unit.journal_tail else ""
    return Verdict(
        ending="wrong",
        subject=subject,
        observed=f"{ended}; {_timed(readiness.rungs)}; last answer of {missing.name}: {missing.last}{tail}",
        expected=expected,
        why=_WHY,
        action=_ACTIONS[missing.name],
    )


def _timed(rungs: Sequence[Rung]) -> str:
    return ", ".join(
        f"{rung.name} {f'after {rung.reached_s:.2f} s' if rung.reached_s is not None else 'not reached'}"
        for rung in rungs
    )
