"""
State of systemd units, from `systemctl show`.

Source: systemctl(1), and org.freedesktop.systemd1(5) for the properties; systemd prints them in its own order.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.facts.reading import Reading


@dataclass(frozen=True, slots=True)
class UnitState:
    """
    One unit as the running systemd sees it.

    Attributes:
        name: Unit name, "sglang-qwen.service".
        load_state: systemd's word: "loaded", "not-found", "masked", "bad-setting", "error".
        active_state: systemd's word: "active", "reloading", "inactive", "failed", "activating", "deactivating".
        sub_state: systemd's word, by type of unit: "running", "dead", "exited", "auto-restart", ...
        unit_file_state: systemd's word: "enabled", "disabled", "static", "masked", ...; "" if there is no file.
        started_us: Microseconds from boot to the last start; 0 if it was not started since boot.
        restarts: Restarts by systemd itself; None where this systemd does not count them.
    """

    name: str
    load_state: str
    active_state: str
    sub_state: str
    unit_file_state: str
    started_us: int
    restarts: int | None

    @property
    def exists(self) -> bool:
        """Whether systemd found a unit of that name."""
        return self.load_state != "not-found"

    @property
    def without_effect(self) -> bool:
        """Whether it does not run, did not run since boot, and will not be started at the next boot."""
        return (
            self.active_state == "inactive"
            and self.started_us == 0
            and self.unit_file_state in ("", "disabled", "masked", "static", "linked")
        )

    def __str__(self) -> str:
        words = [
            self.load_state,
            f"{self.active_state} ({self.sub_state})",
            self.unit_file_state or "no unit file",
        ]
        words.append("started since boot" if self.started_us else "not started since boot")
        return ", ".join(words)


def parse_unit_state(name: str, reading: Reading) -> UnitState:
    """
    Read the output of `systemctl show -p Id,LoadState,... UNIT`.

    Raises:
        FactUnavailable: systemctl could not be run, or systemd does not run on the target.
        ParseError: The output lacks a property that every unit has.
    """
    remedy = "is systemd the init of this target? (`systemctl is-system-running`)"
    text = reading.require_success(remedy=remedy)
    values = {}
    for line in text.splitlines():
        key, sign, value = line.partition("=")
        if sign:
            values[key] = value
    if not values:
        raise FactUnavailable(reading.source, "it printed no property", remedy=remedy)
    for key in ("LoadState", "ActiveState", "SubState"):
        if key not in values:
            raise ParseError(reading.source, 0, text, f"no property {key}")
    return UnitState(
        name,
        values["LoadState"],
        values["ActiveState"],
        values["SubState"],
        values.get("UnitFileState", ""),
        max(
            _number(reading, values, "ExecMainStartTimestampMonotonic") or 0,
            _number(reading, values, "ActiveEnterTimestampMonotonic") or 0,
        ),
        _number(reading, values, "NRestarts"),
    )


def _number(reading: Reading, values: dict[str, str], key: str) -> int | None:
    text = values.get(key, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit():
        raise ParseError(reading.source, 0, f"{key}={text}", "not a number")
    return int(text)
