"""
What was measured on a host, as numbers that can be compared with those of other hosts of its kind.

Parts are named by their place, not by their address: "GPU 0 to GPU 1" is the same question on every host of a kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.host.facts import HostFacts
from pytest_gpuinfra.record.recording import RecordedHost
from pytest_gpuinfra.subjects.outliers import Comparison, Measure, Number, compare_hosts
from pytest_gpuinfra.subjects.transfers.program import GpuProgramRun, parse_gpu_program_events

READY = Measure("time to ready", "s", "less", share=0.25, least=10.0)
HEAD_ROOM = Measure("temperature head-room", "degrees C", "more", share=0.0, least=8.0)
_MEASURES = 4
"""Measures of one host that are told in full."""

HEAT = Measure("temperature", "degrees C", "less", share=0.0, least=8.0)


def compare_recorded(hosts: Mapping[str, RecordedHost]) -> Comparison:
    """Compare hosts with each other; one that was not reached has no number. One host at a time is in memory."""
    return compare_hosts(
        number for alias, host in hosts.items() for number in numbers_of(alias, HostFacts(host.capture), host.gathered)
    )


def numbers_of(alias: str, facts: HostFacts, gathered: Mapping[str, Any]) -> tuple[Number, ...]:
    """
    Give everything that was measured on a host; (): nothing was, or nobody knows what kind of host it is.

    Returns:
        One number for each measure and part. Shape (n,).
    """
    kind = "" if facts.capture.error else kind_of(facts)
    if not kind:
        return ()
    found: dict[tuple[str, str], Number] = {}
    for measure, about, value in (*_programs(gathered), *_serving(gathered), *_heat(facts)):
        if math.isfinite(value):
            found.setdefault((measure.name, about), Number(alias, kind, measure, about, value))
    return tuple(found.values())


def kind_of(facts: HostFacts) -> str:
    """Name the kind of a host by its GPUs: "8 x NVIDIA H200"; by their PCI ids without the driver's names; "": none."""
    names = _names(facts)
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(sorted(names)))


def _names(facts: HostFacts) -> list[str]:
    try:
        names = [row.text("name") or "" for row in facts.gpu_table]
        if names and all(names):
            return names
    except GpuInfraError:
        pass
    try:
        return [f"GPU {gpu.vendor_id:04x}:{gpu.device_id:04x}" for gpu in facts.pci_functions.gpus]
    except GpuInfraError:
        return []


def _programs(gathered: Mapping[str, Any]) -> Iterator[tuple[Measure, str, float]]:
    """Give bandwidths of pairs and all-reduces, GB/s, 10^9 bytes; those of a program that broke off are as good."""
    for name in ("cuda", "torch"):
        lines = (gathered.get("gpu") or {}).get(name, {}).get("lines")
        try:
            run = parse_gpu_program_events(lines or ())
        except GpuInfraError:
            continue
        yield from _pairs(run)
        for arm in run.runs:
            if arm.speed is not None:
                size = f"{len(arm.devices)} GPUs"
                yield (
                    Measure(f"all-reduce {arm.arm} ({arm.program}), busbw", "GB/s", "more"),
                    size,
                    arm.speed.busbw_gb_s,
                )


def _pairs(run: GpuProgramRun) -> Iterator[tuple[Measure, str, float]]:
    places = {address: place for place, address in enumerate(run.plan.devices)} if run.plan else {}
    for transfer in run.transfers:
        if transfer.gb_s is None or not {transfer.src, transfer.dst} <= set(places):
            continue
        both = "both ways at once" if transfer.simultaneous else "one way"
        about = f"GPU {places[transfer.src]} to GPU {places[transfer.dst]}"
        yield Measure(f"{transfer.mechanism.replace('_', ' ')}, {both}", "GB/s", "more"), about, transfer.gb_s


def _serving(gathered: Mapping[str, Any]) -> Iterator[tuple[Measure, str, float]]:
    """Give what was measured of the endpoint, by the models that it serves: others are another question."""
    endpoint = gathered.get("endpoint") or {}
    readiness = endpoint.get("readiness") or {}
    models = ", ".join(map(str, readiness.get("models") or ()))
    reached = [rung.get("reached_s") for rung in readiness.get("rungs") or ()]
    if reached and None not in reached:
        yield READY, models, float(reached[-1])
    for measured in endpoint.get("throughput") or ():
        streams = f"{measured['streams']} stream{'s' if measured['streams'] > 1 else ''}"
        if measured["wall_s"] and measured["tokens"]:
            speed = Measure(f"tokens/s, {streams}", "tokens/s", "more", share=0.15)
            yield speed, models, measured["tokens"] / measured["wall_s"]
        if measured["first_token_s"]:
            first = Measure(f"time to first token, {streams}", "s", "less", share=0.25, least=0.02)
            yield first, models, median(measured["first_token_s"])


def _heat(facts: HostFacts) -> Iterator[tuple[Measure, str, float]]:
    """Give what is left until each GPU slows down; where the driver does not tell, how hot it is."""
    try:
        rows = list(facts.gpu_table)
    except GpuInfraError:
        return
    for place, row in enumerate(rows):
        for name, measure in (("temperature.gpu.tlimit", HEAD_ROOM), ("temperature.gpu", HEAT)):
            value = row.values.get(name)
            if value is not None and value.known and value.number is not None:
                yield measure, f"GPU {place}", value.number
                break


def straggler_lines(found: Comparison, host: str) -> tuple[str, ...]:
    """
    Say what is slow or hot on a host, one line for each measure, the worst part first.

    Example:
        copy engine, one way: GPU 3 to GPU 5 21.3 GB/s, its group 51.2 (± 0.4) GB/s; 2 of 56 parts
    """
    by_measure: dict[str, list[tuple[float, str]]] = {}
    parts: dict[str, int] = {}
    for group in found.groups:
        if host not in group.values:
            continue
        parts[group.measure.name] = parts.get(group.measure.name, 0) + 1
        if host in group.stragglers:
            value, unit = group.values[host], group.measure.unit
            about = f"{group.about} " if group.about else ""
            line = f"{about}{value:.4g} {unit}, its group {group.median:.4g} (± {group.spread:.2g}) {unit}"
            far = abs(value - group.median) / abs(group.median or 1)
            by_measure.setdefault(group.measure.name, []).append((far, line))
    lines = []
    for name, told in by_measure.items():
        worst = max(told, key=lambda entry: entry[0])[1]
        count = f"; {len(told)} of {parts[name]} parts" if parts[name] > 1 else ""
        lines.append(f"{name}: {worst}{count}")
    more = (f"and {len(lines) - _MEASURES} more measures",) if len(lines) > _MEASURES else ()
    return (*lines[:_MEASURES], *more)


def hosts_ahead(found: Comparison) -> Mapping[str, tuple[str, ...]]:
    """Give the measures in which hosts are better than their group, by host."""
    ahead: dict[str, dict[str, None]] = {}
    for group in found.groups:
        for host in group.ahead:
            ahead.setdefault(host, {})[group.measure.name] = None
    return {host: tuple(names) for host, names in ahead.items()}
