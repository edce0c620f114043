"""What NVML reports of each GPU judged: values that can be read, link, memory errors, action asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pytest_gpuinfra.subjects.gpu.table import GpuRow
from pytest_gpuinfra.subjects.verdict import Ending, Verdict

_ACTIVITY = ("utilization.gpu", "power.draw", "memory.used", "memory.total", "memory.free")
_MUST_BE_ZERO = (
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.volatile.dram",
    "ecc.errors.uncorrected.volatile.sram",
)
_MUST_BE_NO = ("retired_pages.pending", "remapped_rows.pending", "remapped_rows.failure")
_GEN, _GEN_MAX = "pcie.link.gen.current", "pcie.link.gen.max"
_WIDTH, _WIDTH_MAX = "pcie.link.width.current", "pcie.link.width.max"
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")
_SLOWED = 0x8 | 0x40 | 0x80
"""Bits of nvmlClocksEventReasons: hardware slowdown, by heat, by the power brake."""
_SLOWED_WORDS = (
    "clocks_event_reason_hw_slowdown",
    "clocks_event_reason_hw_thermal_slowdown",
    "clocks_event_reason_hw_power_brake_slowdown",
)
_GONE = ("GPU is lost", "GPU requires reset")


def judge_gpu_rows(rows: Iterable[GpuRow], *, under_load: bool | None = None, idle: bool = False) -> Verdict:
    """
    Judge what NVML reports of some GPUs; the worst of them decides.

    Args:
        rows: GPUs.
        under_load: Whether they worked while they were asked: only then is the link's speed judged.
            None if nobody knows.
        idle: Whether they must have nothing to do: no program on them, no activity.
    """
    verdicts = [_judge(row, under_load, idle) for row in rows]
    order: Sequence[Ending] = ("wrong", "error", "skip", "ok")
    if not verdicts:
        return _verdict("error", "no GPU is listed", ())
    warnings = tuple(warning for verdict in verdicts for warning in verdict.warnings)
    worst = min(verdicts, key=lambda verdict: order.index(verdict.ending))
    observed = worst.observed if worst.ending != "ok" else "; ".join(verdict.observed for verdict in verdicts)
    return _verdict(worst.ending, observed, warnings)


def _judge(row: GpuRow, under_load: bool | None, idle: bool) -> Verdict:
    gone = [error for error in row.errors if error.partition(": ")[2] in _GONE]
    if gone:
        return _verdict("wrong", f"the driver says: {', '.join(gone)}", ())
    if row.errors:
        return _verdict("error", f"the driver failed to read {', '.join(row.errors)}", ())
    faults = _faults(row) + (_busy(row) if idle else [])
    slow, notes = _link(row, under_load)
    notes += _notes(row)
    if faults or slow:
        return _verdict("wrong", "; ".join([*faults, *slow]), notes)
    asked = [name for name in _ACTIVITY if name in row]
    if asked and not any(row[name].known for name in asked):
        return _verdict("skip", f"this board reports no {', '.join(asked)}", notes)
    known = [f"{name} {value}" for name, value in row.values.items() if value.known]
    if not known:
        return _verdict("skip", "this board reports none of the values", notes)
    return _verdict("ok", ", ".join(known[:8]), notes)


def _faults(row: GpuRow) -> list[str]:
    found = [f"{name} is {row[name]}" for name in _MUST_BE_ZERO if name in row and (row[name].number or 0) > 0]
    found += [f"{name} is {row[name]}" for name in _MUST_BE_NO if name in row and row[name].text == "Yes"]
    action = row.values.get("gpu_recovery_action")
    if action and action.known and action.text != "None":
        found.append(f"the driver asks for {action}")
    mode = row.values.get("compute_mode")
    if mode and mode.text == "Prohibited":
        found.append("compute_mode is Prohibited: no CUDA program may run")
    state = row.values.get("fabric.state")
    if state and state.known and state.text != "Completed":
        found.append(f"the NVLink fabric is {state}")
    return found


def _busy(row: GpuRow) -> list[str]:
    found = [f"{process.name} (pid {process.pid}) is on it" for process in row.processes or ()]
    load = row.number("utilization.gpu") if "utilization.gpu" in row else None
    return found + ([f"utilization.gpu is {load:g} %"] if load else [])


def _notes(row: GpuRow) -> tuple[str, ...]:
    notes = []
    reasons = row.values.get("clocks_event_reasons.active")
    if reasons and _HEX.fullmatch(reasons.text) and int(reasons.text, 16) & _SLOWED:
        notes.append(f"the hardware slows the clocks down (clocks_event_reasons.active {reasons})")
    notes += [f"{name} is {row[name]}" for name in _SLOWED_WORDS if name in row and row[name].text == "Active"]
    now, later = row.values.get("mig.mode.current"), row.values.get("mig.mode.pending")
    if now and later and later.known and now.text != later.text:
        notes.append(f"MIG is {now} and will be {later} after a reset")
    return tuple(notes)


def _link(row: GpuRow, under_load: bool | None) -> tuple[list[str], tuple[str, ...]]:
    slow, notes = [], []
    width, width_max = _pair(row, _WIDTH, _WIDTH_MAX)
    if width is not None and width_max is not None and width < width_max:
        slow.append(f"link width x{width:g} of x{width_max:g}; a width does not change with load")
    gen, gen_max = _pair(row, _GEN, _GEN_MAX)
    if gen is not None and gen_max is not None and gen < gen_max:
        text = f"link generation {gen:g} of {gen_max:g}"
        if under_load:
            slow.append(f"{text} under load")
        else:
            notes.append(f"{text}, not under load: idle GPUs lower it, so it is not judged")
    return slow, tuple(notes)


def _pair(row: GpuRow, now: str, most: str) -> tuple[float | None, float | None]:
    return (row.number(now), row.number(most)) if now in row and most in row else (None, None)


def _verdict(ending: Ending, observed: str, warnings: tuple[str, ...]) -> Verdict:
    return Verdict(
        ending=ending,
        subject="GPU state",
        observed=observed,
        expected="readable, without memory errors, no action asked for, full link",
        why="a card that asks for a reset or counts memory errors fails under the first real load",
        action="read the kernel log for NVRM and Xid, then do what the driver asks for",
        warnings=warnings,
    )
