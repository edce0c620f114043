"""Facts in which some hosts are not like most of their kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.host.facts import HostFacts
from pytest_gpuinfra.record.recording import RecordedHost
from pytest_gpuinfra.record.snapshot import HostSnapshot, snapshot_of

_OWN_VALUE = ("/boot id", "/uuid", "endpoint/address")
"""Endings of the names of facts that no two hosts share."""

_FEWEST = 3
"""Hosts of a kind that make a majority possible."""

_KNOWN_ELSEWHERE = "\0"
"""Value of a fact of an area that could not be observed: told once, for the area."""


@dataclass(frozen=True, slots=True)
class Difference:
    """
    A fact in which some hosts are not like most.

    Attributes:
        fact: Its name, "driver/version".
        usual: Value of the majority. of: Hosts that have it.
        value: Value of these hosts. hosts: Who they are.
    """

    fact: str
    usual: str
    of: int
    value: str
    hosts: tuple[str, ...]


def find_differences(hosts: Mapping[str, RecordedHost]) -> tuple[Difference, ...]:
    """Find the facts in which some hosts of a kind are not like most; hosts that were not reached have none."""
    kinds: dict[str, dict[str, HostSnapshot]] = {}
    for alias, host in hosts.items():
        if host.capture.error is None:
            found = snapshot_of(alias, host.spec, host.capture, host.gathered)
            kinds.setdefault(_models(HostFacts(host.capture)), {})[alias] = found
    unnamed = kinds.pop("", {})
    if unnamed:  # no GPU that could be named: nobody else to be like
        largest = max(kinds.values(), key=len, default=None)
        if largest is None:
            kinds[""] = unnamed
        else:
            largest.update(unnamed)
    found_all = [one for snapshots in kinds.values() if len(snapshots) >= _FEWEST for one in _unlike(snapshots)]
    return tuple(sorted(found_all, key=lambda one: (one.hosts, one.fact)))


def _models(facts: HostFacts) -> str:
    """Name the models of a host's GPUs, however many of each are seen; "" if none is."""
    try:
        return ", ".join(sorted({f"{gpu.vendor_id:04x}:{gpu.device_id:04x}" for gpu in facts.pci_functions.gpus}))
    except GpuInfraError:
        return ""


def _unlike(snapshots: Mapping[str, HostSnapshot]) -> list[Difference]:
    names = dict.fromkeys(name for snapshot in snapshots.values() for name in [*snapshot.facts, *snapshot.unknown])
    found = []
    for name in names:
        if name.endswith(_OWN_VALUE):
            continue
        values = {alias: _value(snapshot, name) for alias, snapshot in snapshots.items()}
        usual, of = Counter(values.values()).most_common(1)[0]
        if 2 * of <= len(values) or of == len(values) or usual == _KNOWN_ELSEWHERE:
            continue
        others: dict[str, list[str]] = {}
        for alias, value in values.items():
            if value not in (usual, _KNOWN_ELSEWHERE):
                others.setdefault(value, []).append(alias)
        found += [Difference(name, _shown(usual), of, _shown(value), tuple(who)) for value, who in others.items()]
    return found


def _shown(value: str) -> str:
    return f"a text of {len(value.splitlines())} lines" if "\n" in value else value


def _value(snapshot: HostSnapshot, name: str) -> str:
    area = name.partition("/")[0]
    if name in snapshot.unknown:
        return f"not observed: {snapshot.unknown[name]}"
    if "/" not in name:
        return "observed"
    if area in snapshot.unknown:
        return _KNOWN_ELSEWHERE
    return snapshot.facts.get(name, "absent")
