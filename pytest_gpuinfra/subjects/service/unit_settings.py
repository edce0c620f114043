"""A unit's settings as systemd holds them judged: there at all, running, and nothing of its environment dropped."""

from __future__ import annotations

from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.subjects.service.unit import NO_SYSTEMD_REASON, UnitState
from pytest_gpuinfra.subjects.service.unit_file import UnitFile
from pytest_gpuinfra.subjects.verdict import Ending, Verdict


def judge_unit_properties(unit: UnitState) -> Verdict:
    """
    Judge what systemd shows of a unit.

    A unit that does not exist is an error: its name is wrong, and nothing was observed of the service.
    """
    load = unit.values.get("LoadState", "loaded")
    if load == "not-found":
        return _verdict("error", "there is no unit of that name (LoadState=not-found), which is not a stopped one")
    if load != "loaded":
        return _verdict("wrong", f"LoadState={load}: systemd does not run it")
    if unit.values.get("NeedDaemonReload") == "yes":
        return _verdict("wrong", "its files were changed and systemd was not told (NeedDaemonReload=yes)")
    if unit.dropped:
        return _verdict("wrong", _dropped(unit.dropped))
    if unit.active is False:
        states = ", ".join(unit.values.get(name, "") for name in ("ActiveState", "SubState", "Result"))
        return _verdict("wrong", f"not active: {states}")
    restarts = unit.values.get("NRestarts", "0")
    notes = (f"systemd has restarted it {restarts} times",) if restarts not in ("", "0") else ()
    return _verdict("ok", f"{len(unit.values)} properties", notes)


def judge_unit_file(unit: UnitFile) -> Verdict:
    """Judge a unit file with its drop-ins: one command in effect, and nothing of its environment dropped."""
    if unit.dropped:
        return _verdict("wrong", _dropped(unit.dropped))
    if not unit.commands:
        return _verdict("wrong", "no ExecStart is in effect")
    return _verdict("ok", " ".join(unit.commands[-1]))


def judge_unreadable_unit(error: FactUnavailable) -> Verdict:
    """
    Judge why a unit could not be read.

    Where systemd is not process 1 no unit can be judged, which is a skip; everything else is an error.
    """
    if NO_SYSTEMD_REASON in error.reason:
        return _verdict("skip", error.reason)
    return _verdict("error", error.reason)


def _dropped(words: tuple[str, ...]) -> str:
    return f"systemd drops {', '.join(words)}: a value with blanks needs quotes around the whole assignment"


def _verdict(ending: Ending, observed: str, warnings: tuple[str, ...] = ()) -> Verdict:
    return Verdict(
        ending=ending,
        subject="unit",
        observed=observed,
        expected="loaded, active, every word of its environment in effect",
        why="the service runs with other settings than its unit file seems to say, or not at all",
        action="systemctl cat UNIT; systemctl show UNIT; then daemon-reload and restart",
        warnings=warnings,
    )
