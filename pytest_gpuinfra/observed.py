"""The raw text behind each fact fixture, cut down to what an item is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pytest_gpuinfra.evidence import Evidence, evidence, readings_as_text
from pytest_gpuinfra.host import GpuHost
from pytest_gpuinfra.observed_service import SERVICE_EVIDENCE
from pytest_gpuinfra.targets import GpuDevice, Target


def _readings(*request_ids: str) -> Callable[[GpuHost, Target], Iterable[Evidence]]:
    def give(host: GpuHost, _: Target) -> Iterable[Evidence]:
        for request_id in request_ids:
            yield evidence(request_id, readings_as_text(host.facts.answer(request_id).values()))

    return give


def _labelled(request_id: str) -> Callable[[GpuHost, Target], Iterable[Evidence]]:
    def give(host: GpuHost, target: Target) -> Iterable[Evidence]:
        reading = host.facts.answer(request_id).get(target.label)
        if reading is not None:
            yield evidence(reading.source, readings_as_text([reading]))

    return give


def _device(host: GpuHost, target: Target) -> Iterable[Evidence]:
    if not isinstance(target.value, GpuDevice):
        addresses = [function.address for function in host.facts.pci_functions]
        yield evidence("PCI functions", "\n".join(addresses))
        return
    address = target.value.pci_address
    node = {**host.capture.entry("pci", address), **host.capture.entry("pci_detail", address)}
    shown = [reading for name, reading in node.items() if name != "config"]
    yield evidence(f"PCI function {address}", readings_as_text(shown) or f"/sys/bus/pci/devices has no entry {address}")


def _group(host: GpuHost, target: Target) -> Iterable[Evidence]:
    group = host.facts.iommu_groups.of(target.value.pci_address) if isinstance(target.value, GpuDevice) else None
    if group is not None:
        node = host.capture.entry("iommu_groups", str(group.number))
        yield evidence(f"IOMMU group {group.number}", readings_as_text(node.values()))
        return
    tree = host.capture.tree("iommu_groups")
    lines = [readings_as_text([node["type"]]) for node in tree.values() if "type" in node]
    yield evidence("IOMMU groups", "\n".join(lines) or "/sys/kernel/iommu_groups holds no group")


def _log(host: GpuHost, target: Target) -> Iterable[Evidence]:
    address = target.value.pci_address if isinstance(target.value, GpuDevice) else None
    yield evidence("kernel log", host.facts.kernel_faults(host.expect.kernel_log).as_text(address))


def _row(host: GpuHost, target: Target) -> Iterable[Evidence]:
    for row in host.facts.gpu_table:
        if not isinstance(target.value, GpuDevice) or row.pci_address == target.value.pci_address:
            lines = [f"{name}: {value}" for name, value in row.values.items()]
            yield evidence(f"nvidia-smi -q -x of {row.pci_address}", "\n".join(lines))


EVIDENCE: dict[str, Callable[[GpuHost, Target], Iterable[Evidence]]] = {
    "gpu_kernel_command_line": _readings("boot"),
    "gpu_kernel_release": _readings("boot"),
    "gpu_iommu_groups": _group,
    "gpu_pci_functions": _device,
    "gpu_kernel_log": _log,
    "gpu_kernel_faults": _log,
    "gpu_driver_parameters": _readings("nvidia"),
    "gpu_driver_version": _readings("nvidia"),
    "gpu_confidential": _readings("confidential"),
    "gpu_table": _row,
    "gpu_module_parameter_value": _labelled("module_parameters"),
    "gpu_unit_state": _labelled("units"),
    "gpu_absent_file_exists": _labelled("files"),
    **SERVICE_EVIDENCE,
}
"""Raw text behind a fact, by the fixture that gives the fact."""


def shown_of(fixture: str, host: GpuHost, target: Target) -> tuple[Evidence, ...]:
    """
    Give the raw text behind a fact, made once for all items about one target.

    Args:
        fixture: The fixture that gives the fact; one of EVIDENCE.
        host: The host.
        target: What the item is about.

    Raises:
        GpuInfraError: What kept the fact from being known.
    """
    key = fixture, target.kind, target.label
    shown = host.shown.get(key)
    if shown is None:
        shown = host.shown[key] = tuple(EVIDENCE[fixture](host, target))
    return shown
