"""Whether a systemd unit is in the state that the inventory names."""

from __future__ import annotations

from pytest_gpuinfra.subjects.service.unit import UnitState


def unit_is(unit: UnitState, expected: str) -> bool:
    """
    Tell whether a unit is in a state.

    Args:
        unit: What systemd says.
        expected: "active" (and not on its way in or out), "inactive" (neither running nor failed), "absent",
            or "without-effect" (absent, or does not run, did not run since boot, and is not enabled).
    """
    if expected == "absent":
        return not unit.exists
    if expected == "without-effect":
        return not unit.exists or unit.without_effect
    return unit.exists and unit.active_state == expected
