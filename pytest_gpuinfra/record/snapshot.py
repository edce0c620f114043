"""
A host as a flat list of facts and numbers, made of a recording: what two recordings are compared by.

Names are "area/thing" or "area/device/thing"; values are texts. What differs at every run without meaning anything
(uptime, process ids, memory in use, temperatures) is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.host.facts import HostFacts
from pytest_gpuinfra.inventory.inventory import HostSpec, parse_inventory
from pytest_gpuinfra.masking import mask_data, mask_text
from pytest_gpuinfra.pci_address import short_address
from pytest_gpuinfra.subjects.boot.command_line import parse_kernel_command_line
from pytest_gpuinfra.subjects.transfers.program import GpuProgramRun, parse_gpu_program_events

_GPU_FIELDS = {
    "name": "model",
    "uuid": "uuid",
    "persistence_mode": "persistence mode",
    "compute_mode": "compute mode",
    "mig.mode.current": "MIG",
    "ecc.mode.current": "ECC",
    "power.limit": "power limit",
    "vbios_version": "VBIOS",
    "gsp_firmware_version": "GSP firmware",
    "clocks.max.graphics": "highest clock",
    "clocks.max.memory": "highest memory clock",
    "clocks.applications.graphics": "clock of applications",
    "clocks.applications.memory": "memory clock of applications",
}
"""Settings of a GPU, by NVML's name; what is measured is no setting."""

_VARIABLES = ("NCCL_", "CUDA_", "SGLANG_", "VLLM_", "TORCH_", "OMP_")


@dataclass
class HostSnapshot:
    """
    One host at one time.

    Attributes:
        facts: Value by name.
        unknown: Why it could not be observed, by name; names of whole areas.
        numbers: By name, with the unit in it: GB/s, tokens/s; more is better.
    """

    facts: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)


def snapshot_of(alias: str, spec: Mapping[str, Any], capture: Capture, gathered: Mapping[str, Any]) -> HostSnapshot:
    """Make a host's snapshot; what cannot be read is told, never left out."""
    host = parse_inventory({"hosts": {alias: dict(spec)}}, f"expectation of {alias}").hosts[alias]
    facts = HostFacts(capture, host)
    found = HostSnapshot()
    readers: dict[str, Callable[[HostFacts, HostSpec], Iterable[tuple[str, object]]]] = {
        "boot": _boot,
        "command line": lambda facts, _: _command_line(facts),
        "driver": _driver,
        "driver parameter": lambda facts, _: ((n, facts.driver_parameters[n]) for n in facts.driver_parameters),
        "confidential": lambda facts, _: [("level", facts.confidential.level)],
        "pci": lambda facts, _: _pci(facts),
        "iommu": lambda facts, _: _iommu(facts),
        "gpu": lambda facts, _: _gpus(facts),
        "kernel faults": _faults,
    }
    if capture.request("module_parameters") is not None:
        readers["module parameter"] = lambda facts, host: (
            (name, facts.module_parameter(name)) for name in host.expect.module_parameters
        )
    if capture.request("units") is not None:
        readers["unit"] = lambda facts, host: (
            (f"{name}/{key}", getattr(facts.unit(name), key))
            for name in host.expect.units
            for key in ("active_state", "unit_file_state")
        )
    if capture.request("files") is not None:
        readers["file"] = lambda facts, host: ((path, facts.file_exists(path)) for path in host.expect.files_absent)
    if host.service is not None:
        readers |= {"service": _service, "service environment": _environment, "service process": _process}
    if host.container is not None:
        readers["container"] = lambda facts, _: [
            ("state", facts.container.state.word),
            ("autostart", facts.container.state.autostart),
        ]
    for area, read in readers.items():
        try:
            for name, value in read(facts, host):
                thing = name.rpartition("/")[2]  # "--password" of the command line tells what its value is
                found.facts[f"{area}/{name}"] = mask_data(_word(value), thing)
        except GpuInfraError as error:
            found.unknown[area] = error.reason
            if capture.error:
                found.unknown = {"host": error.reason}
                break
    _endpoint(gathered, found)
    _programs(gathered, found)
    return found


def _word(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list, frozenset)):
        return ", ".join(sorted(map(str, value))) or "none"
    return str(value)


def _boot(facts: HostFacts, _: HostSpec) -> Iterable[tuple[str, object]]:
    yield "boot id", facts.boot_id
    yield "kernel release", facts.kernel_release


def _command_line(facts: HostFacts) -> Iterable[tuple[str, object]]:
    whole = facts.kernel_command_line.text  # masked as a whole: a value may be a word of its own
    reading = Reading("/proc/cmdline", mask_text(whole))
    line = parse_kernel_command_line(reading)
    for name in dict.fromkeys(parameter.name for parameter in line.parameters):
        values = line.values(name)
        yield name, " then ".join("set" if value is None else value for value in values)


def _driver(facts: HostFacts, _: HostSpec) -> Iterable[tuple[str, object]]:
    yield "version", facts.driver_version.version
    yield "open kernel module", facts.driver_version.open


def _pci(facts: HostFacts) -> Iterable[tuple[str, object]]:
    for function in facts.pci_functions.gpus:
        name = short_address(function.address)
        yield f"{name}/present", True
        yield f"{name}/bound to", function.driver
        yield f"{name}/NUMA node", function.numa_node
        yield f"{name}/link width", function.link_width
        yield f"{name}/largest link width", function.max_link_width


def _iommu(facts: HostFacts) -> Iterable[tuple[str, object]]:
    groups = facts.iommu_groups
    yield "present", groups.present
    for function in facts.pci_functions.gpus:
        group = groups.of(function.address)
        name = short_address(function.address)
        yield f"{name}/group type", group.type if group else "no group"
        others = [] if group is None else [short_address(a) for a in group.members if a != function.address]
        yield f"{name}/group mates", others


def _gpus(facts: HostFacts) -> Iterable[tuple[str, object]]:
    yield "CUDA", facts.gpu_table.cuda_version
    for row in facts.gpu_table:
        name = short_address(row.pci_address) if row.pci_address else "?"
        for key, word in _GPU_FIELDS.items():
            if key in row:
                yield f"{name}/{word}", row.text(key)


def _faults(facts: HostFacts, host: HostSpec) -> Iterable[tuple[str, object]]:
    counts: dict[str, int] = {}
    for fault in facts.kernel_faults(host.expect.kernel_log).counting:
        where = f" of {short_address(fault.device)}" if fault.device and ":" in fault.device else ""
        name = f"{fault.kind}{where}"
        counts[name] = counts.get(name, 0) + fault.count
    for name, count in sorted(counts.items()):
        yield name, count


def _service(facts: HostFacts, _: HostSpec) -> Iterable[tuple[str, object]]:
    service = facts.service
    yield "state", f"{service.state.active_state} ({service.state.sub_state})"
    yield "enabled", service.state.unit_file_state
    for file in service.files:
        yield f"text of {file.path}", file.text.rstrip() + "\n"
        yield f"loaded {file.path}", file.loaded


def _environment(facts: HostFacts, _: HostSpec) -> Iterable[tuple[str, object]]:
    service = facts.service
    names = {name for process in service.processes if process.environment for name in process.environment.values}
    names |= {name for layer in service.layers for name in layer.values}
    for name in sorted(name for name in names if name.startswith(_VARIABLES)):
        seen = service.variable(name)
        values = [("?" if not one.known else "unset" if one.value is None else one.value) for one in seen.values]
        yield name, " or ".join(dict.fromkeys(values)) or "unset"


def _process(facts: HostFacts, _: HostSpec) -> Iterable[tuple[str, object]]:
    main = facts.service.main
    yield "arguments", " ".join(mask_data(list(main.argv)))
    yield "executable", main.executable
    yield "engine", facts.service.engine


def _endpoint(gathered: Mapping[str, Any], found: HostSnapshot) -> None:
    endpoint = gathered.get("endpoint")
    if not endpoint:
        return
    readiness = endpoint.get("readiness") or {}
    embedded = endpoint.get("embedded")  # its port is another in each run
    found.facts["endpoint/address"] = "embedded" if embedded else mask_text(str(endpoint.get("address")))
    found.facts["endpoint/models"] = _word(readiness.get("models", ()))
    reached = [str(rung["name"]) for rung in readiness.get("rungs", ()) if rung.get("reached_s") is not None]
    found.facts["endpoint/reached"] = reached[-1] if reached else "nothing"
    for measured in endpoint.get("throughput", ()):
        streams, wall_s = int(measured["streams"]), float(measured["wall_s"])
        if wall_s > 0:
            name = f"endpoint/{streams} stream{'s' * (streams > 1)} tokens/s"
            found.numbers[name] = float(measured["tokens"]) / wall_s


def _programs(gathered: Mapping[str, Any], found: HostSnapshot) -> None:
    for name in ("cuda", "torch"):
        said = (gathered.get("gpu") or {}).get(name)
        if not said:
            continue
        if said.get("error"):
            found.unknown[f"{name} program"] = str(said["error"])
            continue
        try:
            run = parse_gpu_program_events(said["lines"])
        except GpuInfraError as error:
            found.unknown[f"{name} program"] = error.reason
            continue
        _program(run, found)
        if run.incomplete_reason and not run.skipped_reason:
            found.unknown[f"{name} program"] = run.incomplete_reason


def _program(run: GpuProgramRun, found: HostSnapshot) -> None:
    for transfer in (*run.transfers, *run.chains):
        ends = [transfer.src, *([transfer.via] if transfer.via else []), transfer.dst]
        both = ", both ways at once" if transfer.simultaneous else ""
        name = f"pair/{' to '.join(map(short_address, ends))}/{transfer.mechanism.replace('_', ' ')}{both}"
        word = transfer.corruption.replace("_", " ") if transfer.corruption else ""
        found.facts[name] = f"{transfer.outcome.replace('_', ' ')}{f' ({word})' if word else ''}"
        if transfer.gb_s is not None:
            found.numbers[f"{name} GB/s"] = transfer.gb_s
    for arm in run.runs:
        name = f"all-reduce/{arm.arm} ({arm.program})"
        found.facts[name] = arm.ending
        found.facts[f"{name} transport"] = _word(arm.transports)
        if arm.library is not None:
            found.facts[f"{name} NCCL"] = arm.library.version
        if arm.speed is not None:
            found.numbers[f"{name} busbw GB/s"] = arm.speed.busbw_gb_s
