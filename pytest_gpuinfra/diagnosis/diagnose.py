"""
The diagnosis of a host: from everything that was observed of it to what is wrong, why, and what to do.

A pure function. Causes come before what follows from them, what is only possible comes last, and a host of which
nothing wrong was seen gets no finding. A part that could not be observed makes a finding less certain; it never
makes one go away that was seen, and never stands for "right".
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_gpuinfra.diagnosis import device, path, service
from pytest_gpuinfra.diagnosis.finding import Confidence, Finding, Rung, Step
from pytest_gpuinfra.diagnosis.observations import Observations

__all__ = ["RULES", "Confidence", "Finding", "Rung", "Step", "diagnose"]

RULES: tuple[Callable[[Observations], Finding | None], ...] = (
    path.fsp_dead_end,
    device.gpu_lost,
    device.driver_mismatch,
    device.not_initialised,
    device.nodes_missing,
    lambda seen: path.translation(seen, exposed=service.exposed(seen), kept_off=service.kept_off(seen)),
    path.acs_redirect,
    path.peers_corrupt,
    path.peer_access_absent,
    service.fallback_missing,
    service.custom_all_reduce,
    service.shm_small,
    path.transport_overridden,
    path.collective_wrong,
    service.started_early,
    service.not_restarted,
    service.speculation,
    service.idle_rank,
)
"""Causes before what follows from them."""

_EXPLAINED = {
    "translation-blocks-peers": "peers-corrupt",
    "acs-redirect": "peers-corrupt",
    "shm-small": "collective-wrong",
    "transport-overridden": "collective-wrong",
}
"""What needs no finding of its own once its cause is found."""


def diagnose(seen: Observations) -> tuple[Finding, ...]:
    """
    Say what is wrong with a host.

    Args:
        seen: Everything that was observed.

    Returns:
        Findings, causes first, those that are only possible last; () if nothing wrong was seen. Shape (n,).
    """
    found = [finding for rule in RULES if (finding := rule(seen)) is not None]
    causes = {finding.key for finding in found if finding.confidence != "possible"}
    explained = {effect for cause, effect in _EXPLAINED.items() if cause in causes}
    kept = [finding for finding in found if finding.key not in explained]
    return tuple(sorted(kept, key=lambda finding: finding.confidence == "possible"))
