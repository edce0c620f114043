"""Do one row of the fault table to a host, judge the host before and after, and compare item by item."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from .faults import ALL, FAULTS, LOG, Fault, do, matches
from .judge import LabOutcomes, judge
from .proofs import HOST, wait_until_held

PROPERTY = "lab_fault"
"""Name under which a test's report carries what a row has shown; text of JSON, so that xdist passes it on."""

ENDED = {"failed": "FAILED", "error": "ERROR", "skipped": "skipped"}


@dataclass(frozen=True, slots=True)
class Seen:
    """
    What a row has shown.

    Attributes:
        expected: How each item that should differ from the healthy host should end.
        observed: How each item that did not end as on the healthy host ended.
        problems: What is not as the row says, in words. Shape (n,).
    """

    expected: Mapping[str, str]
    observed: Mapping[str, str]
    problems: tuple[str, ...]

    def to_json(self, fault: Fault) -> str:
        """Give what the report needs of it."""
        return json.dumps({"fault": fault.name, "expected": self.expected, "observed": self.observed})


class Healthy:
    """The healthy hosts' outcomes, each judged once a run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[tuple[str, str], LabOutcomes] = {}

    def judge(self, host: Any, tier: str, expect: str) -> LabOutcomes:
        """
        Give a healthy host's outcomes by some expectations.

        Raises:
            AssertionError: Something was wrong or unknown.
        """
        key = (tier, expect)
        if key not in self._known:
            self._known[key] = judge(host, tier, self.directory, expect=expect)
        healthy = self._known[key]
        assert healthy.ended("failed", "error") == [], healthy.output
        return healthy


def run_fault(fault: Fault, host: Any, healthy: Healthy) -> Seen:
    """
    Do a row's fault to a host that is as after its start, judge it, and take the fault back.

    Args:
        fault: The row.
        host: Of the row's tier.
        healthy: The outcomes to compare with.
    """
    before = healthy.judge(host, fault.tier, "") if not fault.expect else None
    do(fault.prepare, host)
    if before is None:
        before = healthy.judge(host, fault.tier, fault.expect)
    try:
        do(fault.inject, host)
        wait_until_held(fault.name, HOST[fault.name], host)
        after = judge(
            host, fault.tier, healthy.directory, expect=fault.expect, user=fault.user, arguments=fault.arguments
        )
    finally:
        do(fault.undo, host)
    return compare(fault, before, after)


def compare(fault: Fault, before: LabOutcomes, after: LabOutcomes) -> Seen:
    """Compare a host with itself while it was healthy."""
    expected: dict[str, str] = {}
    problems: list[str] = []
    for kind, rows in (("skipped", fault.skips), ("error", fault.errors), ("failed", fault.fails)):
        for pattern, words in rows.items():
            items = [item for item in before.outcomes if matches(pattern, item)]
            passed = [item for item in items if before.outcomes[item] == "passed"]
            # Where nothing was to be judged, a host that cannot be reached may show either.
            skipped = [item for item in items if item not in passed and after.outcomes.get(item) == kind]
            if not passed:
                problems.append(f"no item that passes on the healthy host is {pattern!r}")
            expected.update(dict.fromkeys((*passed, *skipped), kind))
            for item in items:
                # Where a row names an item twice, the later words are meant.
                if after.outcomes.get(item) == kind and (kind == "failed" or not _named(fault.fails, item)):
                    problems += _missing(item, after.messages[item], (words,) if isinstance(words, str) else words)
    observed = {
        item: after.outcomes.get(item, "absent")
        for item in {**before.outcomes, **after.outcomes}
        if after.outcomes.get(item) != before.outcomes.get(item)
    }
    for item in sorted({**expected, **observed}):
        want, got = expected.get(item, before.outcomes.get(item, "absent")), after.outcomes.get(item, "absent")
        if want != got:
            problems.append(f"{item}: {got}, expected {want}: {after.messages.get(item, '')}")
    status = 1 if "failed" in expected.values() else 6 if "error" in expected.values() else 0
    if after.exit_status != status:
        problems.append(f"exit status {after.exit_status}, expected {status}:\n{after.output[-3000:]}")
    return Seen(expected, observed, tuple(problems))


def report_lines(seen: Iterable[str]) -> list[str]:
    """
    Give the whole table: fault, items expected to end otherwise than on the healthy host, items that did.

    Args:
        seen: `Seen.to_json` of each row that ran.
    """
    ran = {row["fault"]: row for row in map(json.loads, seen)}
    lines: list[str] = []
    for fault in FAULTS:
        lines.append(f"{fault.tier}: {fault.name}")
        if fault.name in ran:
            row = ran[fault.name]
            lines.append(f"    expected  {_in_words(row['expected'])}")
            lines.append(f"    observed  {_in_words(row['observed'])}")
        else:
            named = [f"FAILED {item}" for item in fault.fails] + [f"ERROR {item}" for item in fault.errors]
            named += [f"skipped {item}" for item in fault.skips]
            lines.append(f"    expected  {'; '.join(named).replace(ALL, 'every item') if named else _in_words({})}")
            lines.append("    observed  not run")
    known = {fault.name for fault in FAULTS}
    more = {name: row for name, row in ran.items() if name not in known}  # those of service_faults.py
    for name, row in more.items():
        lines += [f"container: {name}", f"    expected  {_in_words(row['expected'])}"]
        lines.append(f"    observed  {_in_words(row['observed'])}")
    differ = [name for name, row in ran.items() if row["expected"] != row["observed"]]
    lines.append(
        f"{len(FAULTS) + len(more)} faults, {len(ran)} run, {len(ran) - len(differ)} seen exactly as expected"
        + (f"; not so: {', '.join(differ)}" if differ else "")
    )
    return lines


def _named(rows: Mapping[str, Any], item: str) -> bool:
    return any(matches(pattern, item) for pattern in rows)


def _missing(item: str, message: str, words: tuple[str, ...]) -> list[str]:
    return [f"{item}: the message does not say {word!r}: {message}" for word in words if word not in message]


def _in_words(items: Mapping[str, str]) -> str:
    if not items:
        return "nothing: as on the healthy host"
    parts = []
    for kind, name in ENDED.items():
        mine = sorted(item for item, ended in items.items() if ended == kind)
        if mine and len(mine) > 12 and all(matches(LOG, item) for item in mine):
            parts.append(f"{name} {len(mine)} items, all on the kernel log")
        elif len(mine) > 12:
            parts.append(f"{name} {len(mine)} items")
        elif mine:
            grouped = groupby(mine, key=lambda item: item.partition("[")[0])
            shown = (f"{test}[{', '.join(item.partition('[')[2][:-1] for item in some)}]" for test, some in grouped)
            parts.append(f"{name} {', '.join(shown)}")
    others = sorted(item for item, ended in items.items() if ended not in ENDED)
    parts += [f"{items[item]} {item}" for item in others]
    return "; ".join(parts)
