"""The probe as one text, its modules in front; it runs wherever exec() runs it as __main__."""

from __future__ import annotations

from pytest_gpuinfra.on_target.bundle import packed

MASKING = ("probe_names", "probe_work", "probe_forms", "probe_scan", "probe_tools", "probe_mask")
"""The masker's modules, each after those that it needs."""
MODULES = (
    *("safe_path", "as_process", *MASKING, "probe_environ", "probe_bounds", "probe_answer"),
    *("probe_reading", "probe_service", "probe_inside"),
)


def probe_text() -> str:
    """Give the probe's text."""
    return packed(MODULES, "probe")
