"""The sampler as one text, its neighbours in front; it runs wherever exec() runs it as __main__."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@cache
def sampler_text() -> str:
    """Give the sampler's text."""
    modules = {name: (HERE / f"{name}.py").read_text(encoding="utf-8") for name in ("probe_mask", "probe_bounds")}
    main = (HERE / "sampler.py").read_text(encoding="utf-8")
    return (
        "import sys, types\n"
        f"for _name, _text in {modules!r}.items():\n"
        "    _module = types.ModuleType(_name)\n"
        "    sys.modules[_name] = _module\n"
        "    exec(compile(_text, '<pytest-gpuinfra ' + _name + '.py>', 'exec'), _module.__dict__)\n"
        f"exec(compile({main!r}, '<pytest-gpuinfra sampler.py>', 'exec'))\n"
    )


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
