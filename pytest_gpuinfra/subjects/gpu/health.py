"""
What the driver reports of one GPU judged: errors, repairs, fabric, clocks, power, link, and the action it asks for.

Source: health_table.toml beside this file, which names its own sources and date.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

from pytest_gpuinfra.subjects.gpu.gpu_value import GpuValue
from pytest_gpuinfra.subjects.gpu.table import GpuRow, GpuTable
from pytest_gpuinfra.subjects.pci.link_judge import judge_link_width
from pytest_gpuinfra.subjects.verdict import Ending, Verdict

_ACTIVITY = ("utilization.gpu", "power.draw", "memory.used", "memory.total", "memory.free")
_TOLD = ("gpu_recovery_action", "ecc.mode.current", "fabric.state", "pstate", "temperature.gpu", "memory.used")
_GONE = ("gpu is lost", "gpu requires reset", "gpu is inaccessible")
_MOST = 12


@dataclass(frozen=True, slots=True)
class LeafRule:
    """
    How the leaves with one of some paths are judged.

    Attributes:
        paths: Patterns of paths below <gpu>; "*" is anything.
        reason: Why, for a person.
        fault: Words that are a fault; ">0" for a number above 0, "number" for any, "*" for any other word.
        note: Words that deserve a line.
        fine: Words that are right.
        less_than: Name of the leaf beside it below which a number deserves a line; "" for none.
        unlike: Path of a leaf from which it should not differ; "" for none.
        since: First driver branch that is known to print it; "" for every one of the table.
    """

    paths: tuple[str, ...]
    reason: str
    fault: tuple[str, ...] = ()
    note: tuple[str, ...] = ()
    fine: tuple[str, ...] = ()
    less_than: str = ""
    unlike: str = ""
    since: str = ""


@dataclass(frozen=True, slots=True)
class ShownRule:
    """
    What a driver must show.

    Attributes:
        any: Paths of which one must be in the document.
        since: First driver branch that must; "" for every one.
        newer: Whether older architectures are left out.
        with_ecc: Whether it must be a number where ECC is on.
    """

    any: tuple[str, ...]
    since: str = ""
    newer: bool = False
    with_ecc: bool = False


@dataclass(frozen=True, slots=True)
class HealthTable:
    """
    All that is classified.

    Attributes:
        date: Day on which the sources were read, ISO 8601.
        leaves: In order: the first that fits a path decides.
        shown: What must be shown.
        watched: Fits the paths that have to be classified unless their value is neutral.
        neutral: Words, lower case, that mean nothing to tell.
        older: Architectures that print another set of counters.
    """

    date: str
    leaves: tuple[LeafRule, ...]
    shown: tuple[ShownRule, ...]
    watched: re.Pattern[str]
    neutral: frozenset[str]
    older: frozenset[str]

    def rule(self, path: str) -> LeafRule | None:
        """Give the rule of a path; None if nobody classified it."""
        return next((rule for rule in self.leaves if any(fnmatchcase(path, one) for one in rule.paths)), None)


@cache
def read_health_table() -> HealthTable:
    """Give the table that ships with this version."""
    data = tomllib.loads(resources.files(__package__).joinpath("health_table.toml").read_text(encoding="utf-8"))
    return HealthTable(
        data["date"],
        tuple(LeafRule(**_row(row)) for row in data["leaf"]),
        tuple(ShownRule(**_row(row)) for row in data["shown"]),
        re.compile(data["watched"]),
        frozenset(data["neutral"]),
        frozenset(data["older"]),
    )


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


@dataclass(slots=True)
class _Found:
    """What was found of one GPU, by what it means, and whether any value that could be a fault is known."""

    faults: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    judged: bool = False


def judge_gpu_state(
    subject: str, row: GpuRow, table: GpuTable, *, link_width: int | None = None, slot_width: int | None = None
) -> Verdict:
    """
    Judge what the driver reports of one GPU.

    A fault that is seen decides, whatever else cannot be read; then what cannot be read, is not classified, or is
    missing though this driver shows it for such a board.

    Args:
        subject: The GPU, for messages.
        row: What the driver reports of it.
        table: All that the driver reported.
        link_width: Lanes that the inventory expects; None for as many as both ends are capable of.
        slot_width: Lanes that the port above is capable of; None if nobody knows.
    """
    gone = {value.bare: path for path, value in row.leaves.items() if value.bare.lower() in _GONE}
    if gone:
        said = "; ".join(f"{path} says {word}" for word, path in gone.items())
        return _verdict(subject, "wrong", f"the driver no longer reaches it: {said}", ())
    found = _Found()
    for path, value in row.leaves.items():
        _judge_leaf(row, path, value, found)
    found.unknown += _missing(row, table.driver_version or "")
    if table.failure:
        found.unknown.append(f"nvidia-smi also says: {table.failure}")
    most = (_number(row, "pcie.link.width.max"), slot_width)
    width = judge_link_width("PCIe link", _number(row, "pcie.link.width.current"), link_width, *most)
    found.judged = found.judged or width.ending == "ok"
    if width.ending == "wrong":
        found.faults.append(f"link width {width.observed}, expected {width.expected}")
    elif link_width is not None and width.ending == "error":
        found.unknown.append(f"link width: {width.observed}")
    unknown = tuple(dict.fromkeys(found.unknown))
    if found.faults:
        return _verdict(subject, "wrong", _few(found.faults), (*unknown[:_MOST], *found.notes))
    if unknown:
        return _verdict(subject, "error", _few(unknown), tuple(found.notes))
    if not found.judged and not any(row[name].known for name in _ACTIVITY if name in row):
        return _verdict(subject, "skip", "this board reports nothing that could be judged", tuple(found.notes))
    told = [f"{name} {row[name]}" for name in _TOLD if name in row and row[name].known]
    counted = any(path.startswith("ecc_errors/") and value.number is not None for path, value in row.leaves.items())
    told.append("no memory error is counted" if counted else "this board counts no memory errors")
    return _verdict(subject, "ok", ", ".join(told), tuple(found.notes))


def judge_idle(subject: str, row: GpuRow) -> Verdict:
    """Judge whether nothing is on a GPU and nothing happens on it."""
    busy = [f"{process.name} (pid {process.pid}) is on it" for process in row.processes or ()]
    load = _number(row, "utilization.gpu")
    if load:
        busy.append(f"utilization.gpu is {load:g} %")
    if row.processes is None and load is None:
        ending, observed = "error", "neither its processes nor its utilization are reported"
    else:
        ending, observed = ("wrong", _few(busy)) if busy else ("ok", "no process on it, and no activity")
    return Verdict(
        ending=ending,  # type: ignore[arg-type]
        subject=subject,
        observed=observed,
        expected="no process on it, and no activity",
        why="what is left over takes memory and time from the service that is to start",
        action="see who it is: nvidia-smi, also in the containers",
    )


def _judge_leaf(row: GpuRow, path: str, value: GpuValue, found: _Found) -> None:
    table = read_health_table()
    rule = table.rule(path)
    if rule is None:
        watched = table.watched.search(path)
        if value.error and (watched or value.text == value.bare):  # in brackets, it is a name that somebody took out
            found.unknown.append(f"{path}: {value.error} (not readable)")
        elif watched and not value.error and not _neutral(value, table):
            found.unknown.append(f"{path} is {value}: nobody has classified it")
        return
    found.judged = found.judged or (value.known and bool(rule.fault))
    if value.absent or _fits(value, rule.fine, exact=True):
        pass
    elif _fits(value, rule.fault, exact=True):
        found.faults.append(f"{path} is {value}: {rule.reason}")
    elif _fits(value, rule.note, exact=True):
        found.notes.append(f"{path} is {value}: {rule.reason}")
    elif value.error is not None:
        found.unknown.append(f"{path}: {value.error} (not readable)")
    elif _neutral(value, table) or _fits(value, rule.fine):
        pass
    elif _fits(value, rule.fault):
        found.faults.append(f"{path} is {value}: {rule.reason}")
    elif _fits(value, rule.note):
        found.notes.append(f"{path} is {value}: {rule.reason}")
    else:
        found.unknown.append(f"{path} is {value}: a value that nobody has classified")
    beside = row.leaves.get(f"{path.rpartition('/')[0]}/{rule.less_than}") if rule.less_than else None
    if beside and beside.number is not None and value.number is not None and value.number < beside.number:
        found.notes.append(f"{path} is {value} of {beside}: {rule.reason}")
    later = row.leaves.get(rule.unlike) if rule.unlike else None
    if later and later.known and value.known and later.text != value.text:
        found.notes.append(f"{path} is {value}, and will be {later} after a reset")


def _fits(value: GpuValue, words: Sequence[str], *, exact: bool = False) -> bool:
    """Tell whether a value is one of a rule's words; `exact` leaves the wildcard out."""
    for word in words:
        if word == ">0":
            fits = (value.number or 0) > 0
        elif word == "number":
            fits = value.number is not None
        elif word == "*":
            fits = not exact
        else:
            fits = word.lower() == value.bare.lower()
        if fits:
            return True
    return False


def _neutral(value: GpuValue, table: HealthTable) -> bool:
    return value.absent or value.number == 0 or value.bare.lower() in table.neutral


def _missing(row: GpuRow, driver: str) -> Iterator[str]:
    """Say what this driver shows for such a board, and did not."""
    table = read_health_table()
    text = row.leaves.get("product_architecture")
    older = text is None or not text.known or text.text.split(" ")[0] in table.older
    ecc = row.leaves.get("ecc_mode/current_ecc")
    for rule in table.shown:
        if _branch(driver) < _branch(rule.since) or (rule.newer and older):
            continue
        shown = [value for path in rule.any if (value := _shown(row.leaves, path)) is not None]
        if not shown:
            yield f"{rule.any[0]} is not shown"
        elif rule.with_ecc and ecc and ecc.text == "Enabled" and all(value.absent for value in shown):
            yield f"{rule.any[0]} is {shown[0]}, though ECC is on"


def _shown(leaves: Mapping[str, GpuValue], path: str) -> GpuValue | None:
    """Give a leaf, or the group around it that says that this board has none."""
    while path:
        if path in leaves:
            return leaves[path]
        path = path.rpartition("/")[0]
    return None


def _branch(version: str) -> tuple[int, ...]:
    """Give a driver's version as numbers; of one that is not told, the oldest of all."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version)[:3])


def _number(row: GpuRow, name: str) -> int | None:
    value = row.values.get(name)
    return int(value.number) if value is not None and value.number is not None else None


def _few(said: Sequence[str]) -> str:
    more = f"; and {len(said) - _MOST} more" if len(said) > _MOST else ""
    return "; ".join(said[:_MOST]) + more


def _verdict(subject: str, ending: Ending, observed: str, warnings: tuple[str, ...]) -> Verdict:
    return Verdict(
        ending=ending,
        subject=subject,
        observed=observed,
        expected="readable, without memory errors, no action asked for, full link, not slowed down by the hardware",
        why="a card that asks for a reset, counts memory errors or is slowed down fails under the first real load",
        action="read the kernel log for NVRM and Xid, then do what the driver asks for",
        warnings=warnings,
    )
