"""
What an endpoint said, read again for the diagnosis: out of the recorded exchanges, asking nobody.

Loaded only where something was asked of an endpoint: it brings the HTTP client along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pytest_gpuinfra.endpoint.engine import engine_from
from pytest_gpuinfra.endpoint.judge_speculation import judge_speculation
from pytest_gpuinfra.endpoint.metrics import pick_metrics
from pytest_gpuinfra.endpoint.readiness import Readiness
from pytest_gpuinfra.endpoint.speculation import SpeculationCounters, SpeculationRun, grown, speculation_from
from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.gather.endpoint import EmbeddedOnce, Serving, ServingSettings
from pytest_gpuinfra.inventory.model import SpeculationExpectation
from pytest_gpuinfra.subjects.verdict import Verdict


def read_readiness(data: Mapping[str, Any], alias: str) -> Readiness:
    """
    Read how far the endpoint got.

    Raises:
        RecordingError, KeyError, TypeError: The recording is of another shape.
    """
    settings = ServingSettings(data["address"])
    return Serving(alias, settings, connection=_nobody, local=False, embedded=EmbeddedOnce(), recorded=data).readiness


def read_speculation(data: Mapping[str, Any], expect: SpeculationExpectation) -> Verdict | None:
    """
    Judge speculation over the whole session: by the first and the last reading of the counters.

    All our own requests lie between the two, so that nothing has to be asked again.

    Returns:
        None if nothing was asked between two readings.
    """
    exchanges = data["exchanges"]
    before, after = _counters(exchanges[::-1]), _counters(exchanges)
    tokens = grown(before.generated_tokens, after.generated_tokens)
    if not tokens:
        return None
    return judge_speculation(
        SpeculationRun(before, after, 1, int(tokens)),
        expected=expect.enabled,
        algorithm=expect.algorithm,
        mean_length_min=expect.mean_accepted_length_min,
    )


def _counters(exchanges: Sequence[Mapping[str, Any]]) -> SpeculationCounters:
    """Read the counters and the engine's account out of the last good answer of each route."""
    bodies = {
        str(one["path"]): "".join(one["pieces"])
        for one in exchanges
        if one["method"] == "GET" and one.get("status") == 200 and "failed" not in one
    }
    engine = engine_from(bodies)
    path = engine.metrics_path
    return speculation_from(engine, pick_metrics([(path, 200, bodies[path])]) if path is not None else None)


def _nobody() -> NoReturn:
    raise FactUnavailable("diagnosis", "it asks nobody")
