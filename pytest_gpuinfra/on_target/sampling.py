"""The sampler as one text, its neighbours in front; it runs wherever exec() runs it as __main__."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pytest_gpuinfra.on_target.bundle import packed

from .probe_text import MASKING


def sampler_text() -> str:
    """Give the sampler's text."""
    return packed(("safe_path", *MASKING, "probe_bounds"), "sampler")


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """
    What the sampler is to do.

    Attributes:
        duration_s: Seconds from its first sample to its last.
        interval_s: Seconds between two samples. The driver's own activity counter moves every 1/6 s to 1 s.
        port: Port that the service listens on; a process is the service's if it, or one above it, listens there.
            None where the service is known by its unit alone.
    """

    duration_s: float = 6.0
    interval_s: float = 0.25
    port: int | None = None

    def document(self) -> dict[str, Any]:
        """Give the plan as the sampler reads it."""
        return asdict(self)
