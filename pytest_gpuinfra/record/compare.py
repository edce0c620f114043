"""
Two recordings compared, host by host: facts, endings, numbers; each change expected or not, better or worse.

Pure: recordings in, changes out. A change that nobody allowed is a regression, unless it is for the better;
so is a fact that cannot be observed any more, and a check that is not judged any more.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pytest_gpuinfra.masking import first_of
from pytest_gpuinfra.on_target.probe.probe_names import MASK
from pytest_gpuinfra.record.recording import RecordedHost, Recording
from pytest_gpuinfra.record.snapshot import HostSnapshot, snapshot_of

Kind: TypeAlias = Literal["fact", "ending", "number", "host"]
Weight: TypeAlias = Literal["regression", "expected", "better"]
NOISE = 0.10
"""Share of a number that may come and go."""

ALWAYS_ALLOWED = ("boot/boot id", "container/boot id")
"""What differs after every boot; whether it must differ is another question (`boot_changed`)."""

GATHERED = ("pair", "all-reduce", "endpoint")
"""Areas that only a run of level active looks at, and not one that leaves these checks out."""

_RANK = {"passed": 0, "skipped": 1, "error": 2, "failed": 3}


@dataclass(frozen=True, slots=True)
class Change:
    """
    One difference.

    Attributes:
        host: Alias.
        kind: What differs: a fact, an item's ending, a number, or the host as such.
        name: "iommu/01:00.0/group type", or the item "host/test_boot.py::test_x[01:00.0]".
        before: Value in the first recording; None if there was none.
        after: The same in the second.
        weight: "regression", "expected" (somebody allowed it), or "better".
        note: What a reader should know beside it.
    """

    host: str
    kind: Kind
    name: str
    before: str | None
    after: str | None
    weight: Weight
    note: str = ""

    @property
    def text(self) -> str:
        """The change in one line."""
        before = "absent" if self.before is None else self.before
        after = "absent" if self.after is None else self.after
        return f"{self.name}: {before} -> {after}{f' ({self.note})' if self.note else ''}"


@dataclass(frozen=True, slots=True)
class HostComparison:
    """
    One host in both recordings.

    Attributes:
        host: Alias.
        changes: Regressions first, then by kind and name.
        same: Facts, endings and numbers that are the same.
        boot_changed: Whether the boot id differs; None if it is not known from both.
        masked: How many of the same facts hold masked values, which were not compared.
    """

    host: str
    changes: tuple[Change, ...]
    same: int
    boot_changed: bool | None
    masked: int = 0

    def of(self, weight: Weight) -> tuple[Change, ...]:
        """Give the changes of one weight."""
        return tuple(change for change in self.changes if change.weight == weight)


@dataclass(frozen=True, slots=True)
class Comparison:
    """
    Two recordings.

    Attributes:
        hosts: Hosts of either, in the first one's order.
        before: When the first was begun. after: When the second was.
        unused: Patterns that allowed nothing.
    """

    hosts: tuple[HostComparison, ...]
    before: str
    after: str
    unused: tuple[str, ...] = ()

    @property
    def regressions(self) -> tuple[Change, ...]:
        """All changes for the worse that nobody allowed."""
        return tuple(change for host in self.hosts for change in host.of("regression"))


class _Allowed:
    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self.used: set[str] = set()

    def __call__(self, host: str, name: str, after: str | None) -> bool:
        for pattern in self._patterns:
            wanted, sign, value = pattern.partition("=")
            own = any(fnmatch.fnmatchcase(word, wanted) for word in (name, f"{host}:{name}"))
            whole = any(fnmatch.fnmatchcase(word, pattern) for word in (name, f"{host}:{name}"))
            if whole or (own and (not sign or fnmatch.fnmatchcase(after or "absent", value))):
                self.used.add(pattern)
                return True
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in ALWAYS_ALLOWED)


def compare(before: Recording, after: Recording, *, allow: Sequence[str] = (), noise: float = NOISE) -> Comparison:
    """
    Compare two recordings.

    Args:
        before: The baseline.
        after: What is judged by it.
        allow: Changes that were meant: globs over names, "iommu/*", "node-a:driver/version",
            with the new value behind an equals sign if only that one was meant: "command line/iommu=pt".
        noise: Share of a number that may come and go.
    """
    allowed = _Allowed(allow)
    aliases = list(dict.fromkeys([*before.hosts, *after.hosts]))
    hosts = [_host(alias, before, after, allowed, noise) for alias in aliases]
    return Comparison(
        tuple(hosts),
        before.started_at,
        after.started_at,
        tuple(pattern for pattern in allow if pattern not in allowed.used),
    )


def item_key(node_id: str, alias: str) -> str:
    """Name an item by its file and target, so that directory, checkout and wheel make no difference."""
    path, _, rest = node_id.partition("::")
    name = "/".join(path.replace("\\", "/").split("/")[-2:])
    return f"{name}::{rest}".replace(f"[{alias}-", "[").replace(f"[{alias}~", "[").replace(f"[{alias}]", "")


def _host(alias: str, before: Recording, after: Recording, allowed: _Allowed, noise: float) -> HostComparison:
    if alias not in after.hosts or alias not in before.hosts:
        gone = alias not in after.hosts
        weight: Weight = "expected" if allowed(alias, "host", None) or not gone else "regression"
        words: tuple[str | None, str | None] = ("recorded", None) if gone else (None, "recorded")
        return HostComparison(alias, (Change(alias, "host", "host", words[0], words[1], weight),), 0, None)
    old, new = (
        snapshot_of(alias, recording.hosts[alias].spec, recording.hosts[alias].capture, recording.hosts[alias].gathered)
        for recording in (before, after)
    )
    changes, same = _facts(alias, old, new, allowed)
    more, also = _endings(alias, _results(before, alias), _results(after, alias), allowed)
    numbers, equal = _numbers(alias, old.numbers, new.numbers, allowed, noise)
    ids = [snapshot.facts.get("boot/boot id") for snapshot in (old, new)]
    order = {"regression": 0, "expected": 1, "better": 2}
    ordered = sorted([*changes, *more, *numbers], key=lambda change: (order[change.weight], change.kind != "fact"))
    masked = len([name for name, value in new.facts.items() if MASK in value and old.facts.get(name) == value])
    changed = ids[0] != ids[1] if all(ids) else None
    return HostComparison(alias, tuple(ordered), same + also + equal, changed, masked)


def _facts(alias: str, old: HostSnapshot, new: HostSnapshot, allowed: _Allowed) -> tuple[list[Change], int]:
    changes = []
    same = 0
    lost = set(new.unknown)
    for area, reason in new.unknown.items():
        if area in old.unknown:
            same += 1
            continue
        weight: Weight = "expected" if allowed(alias, area, None) else "regression"
        changes.append(Change(alias, "fact", area, "observed", "could not be observed", weight, reason))
    changes += [
        Change(alias, "fact", area, "could not be observed", "observed", "better")
        for area in old.unknown
        if area not in lost and "host" not in lost
    ]
    asked = [{name.partition("/")[0] for name in snapshot.facts} for snapshot in (old, new)]
    for name in dict.fromkeys([*old.facts, *new.facts]):
        area = name.partition("/")[0]
        if not {area, "host"}.isdisjoint({*lost, *old.unknown}):
            continue  # said once, above
        before, after = old.facts.get(name), new.facts.get(name)
        if area in GATHERED and not (area in asked[0] and area in asked[1]):
            continue  # not run by one of them: the endings tell
        if area == "pair" or area == "all-reduce":
            if after is None or before is None:
                continue  # of other GPUs, or by another program
            weight = "better" if after == "right" else _weigh(alias, name, after, allowed)
        elif area == "kernel faults":
            fewer = int(after or 0) < int(before or 0)
            weight = "better" if fewer else _weigh(alias, name, after, allowed)
        else:
            weight = _weigh(alias, name, after, allowed)
        if before == after:
            same += 1
        else:
            changes.append(Change(alias, "fact", name, *_told(before, after), weight, _difference(before, after)))
    return changes, same


def _told(before: str | None, after: str | None) -> tuple[str | None, str | None]:
    """Give two values as they are shown: of a whole file, its number of lines."""
    first, second = (
        f"{len(value.splitlines())} lines" if value is not None and "\n" in value else value
        for value in (before, after)
    )
    return first, second


def _difference(before: str | None, after: str | None) -> str:
    """Tell which lines of a file differ; "" for other values."""
    if "\n" not in f"{before}{after}":
        return ""
    lines = difflib.unified_diff((before or "").splitlines(), (after or "").splitlines(), lineterm="", n=0)
    found = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return "; ".join(found[:8]) + (f"; and {len(found) - 8} more lines" if len(found) > 8 else "")


def _weigh(alias: str, name: str, after: str | None, allowed: _Allowed) -> Weight:
    return "expected" if allowed(alias, name, after) else "regression"


def _results(recording: Recording, alias: str) -> Mapping[str, tuple[str, str]]:
    return {
        item_key(str(result["id"]), alias): (str(result["outcome"]), str(result["message"]))
        for result in recording.results
        if result["host"] == alias
    }


def _endings(
    alias: str, old: Mapping[str, tuple[str, str]], new: Mapping[str, tuple[str, str]], allowed: _Allowed
) -> tuple[list[Change], int]:
    changes = []
    same = 0
    if not old or not new:
        return [], 0  # a recording that was made without judging
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key, (None, ""))[0], new.get(key, (None, ""))[0]
        if before == after or {before, after} == {None, "skipped"}:
            same += 1
            continue
        note = next(iter(new.get(key, ("", ""))[1].splitlines()), "")
        worse = after is None or (before is not None and _RANK[after] > _RANK[before]) or after in ("failed", "error")
        if after is None:
            note = "not judged any more"
        weight: Weight = "better"
        if worse:
            weight = "expected" if allowed(alias, key, after) else "regression"
        changes.append(Change(alias, "ending", key, before, after, weight, first_of(note, 200)))
    return changes, same


def _numbers(
    alias: str, old: Mapping[str, float], new: Mapping[str, float], allowed: _Allowed, noise: float
) -> tuple[list[Change], int]:
    changes = []
    same = 0
    for name in old:
        if name not in new:
            continue  # the fact or the ending tells why there is none
        ratio = new[name] / old[name] if old[name] else 1.0
        if abs(ratio - 1) <= noise:
            same += 1
            continue
        weight: Weight = "better"
        if ratio < 1:
            weight = "expected" if allowed(alias, name, f"{new[name]:g}") else "regression"
        changes.append(
            Change(alias, "number", name, f"{old[name]:g}", f"{new[name]:g}", weight, f"{100 * (ratio - 1):+.0f} %")
        )
    return changes, same


def join(recordings: Iterable[Recording]) -> Recording:
    """Join the recordings of a folder: of each host the newest."""
    hosts: dict[str, RecordedHost] = {}
    results: list[Mapping[str, Any]] = []
    started = plugin = ""
    for recording in sorted(recordings, key=lambda recording: recording.started_at):
        hosts.update(recording.hosts)
        results = [result for result in results if result["host"] not in recording.hosts]
        results += list(recording.results)
        started, plugin = recording.started_at, recording.plugin
    return Recording(hosts, results, started, plugin)
