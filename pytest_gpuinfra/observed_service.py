"""The raw text behind the facts of a container and its service, cut down to what an item is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from pytest_gpuinfra.evidence import Evidence, evidence, readings_as_text
from pytest_gpuinfra.service_targets import ExpectedSetting

if TYPE_CHECKING:
    from pytest_gpuinfra.host import GpuHost
    from pytest_gpuinfra.targets import Target

Give: TypeAlias = Callable[["GpuHost", "Target"], Iterable[Evidence]]


def _nodes(*names: tuple[str, str]) -> Give:
    def give(host: GpuHost, _: Target) -> Iterable[Evidence]:
        for request_id, name in names:
            reading = host.facts.answer(request_id).get(name)
            if reading is not None:
                yield evidence(reading.source, readings_as_text([reading]))

    return give


def _state(host: GpuHost, _: Target) -> Iterable[Evidence]:
    if host.capture.request("container") is None:  # it has an address of its own
        yield from _nodes(("inside_boot", "boot_id"))(host, _)
        return
    for reading in host.facts.answer("container").values():
        yield evidence(reading.source, readings_as_text([reading]))


def _device_nodes(host: GpuHost, _: Target) -> Iterable[Evidence]:
    lines = [f"{n.path} {n.major}, {n.minor} {n.mode}" for n in host.facts.container.nodes.values()]
    yield evidence("/dev/nvidia* in the container", "\n".join(lines) or "there is none")


def _tables(host: GpuHost, _: Target) -> Iterable[Evidence]:
    for request_id, where in (("host_smi", "on the host"), ("inside_driver", "in the container")):
        yield evidence(f"nvidia-smi {where}", readings_as_text([host.facts.answer(request_id)["smi"]]))


def _libraries(host: GpuHost, _: Target) -> Iterable[Evidence]:
    readings = [reading for name, reading in host.facts.answer("inside_driver").items() if name != "smi"]
    yield evidence("driver libraries in the container", readings_as_text(readings))


def _labelled(request_id: str) -> Give:
    def give(host: GpuHost, target: Target) -> Iterable[Evidence]:
        reading = host.facts.answer(request_id).get(target.label)
        if reading is not None:
            yield evidence(reading.source, readings_as_text([reading]))

    return give


def _failed(host: GpuHost, target: Target) -> Iterable[Evidence]:
    where = "host" if target.label == "host" else "inside"
    yield evidence(
        f"failed units of the {target.label}",
        readings_as_text(host.facts.answer(f"{where}_failed_units").values()) or "none",
    )


def _unit(*names: str) -> Give:
    def give(host: GpuHost, _: Target) -> Iterable[Evidence]:
        node = host.facts.service.tree[""]
        for name in names:
            yield evidence(node[name].source, readings_as_text([node[name]]))

    return give


def _files(host: GpuHost, _: Target) -> Iterable[Evidence]:
    for file in host.facts.service.files:
        known = "" if file.loaded else " (not read by systemd)"
        yield evidence(f"{file.path}{known}", file.text)


def _processes(host: GpuHost, target: Target) -> Iterable[Evidence]:
    service = host.facts.service
    lines = [f"{process.pid} parent {process.parent}: {process.title}" for process in service.processes]
    yield evidence(f"processes of {service.unit_name}", "\n".join(lines))
    if isinstance(target.value, ExpectedSetting) and target.kind == "gpu_service_variable":
        variable = service.variable(target.value.name)
        text = "\n".join([*map(str, variable.values), f"set by {variable.layer or 'nothing'}"])
        yield evidence(f"{variable.name} in {service.unit_name}", text)


def _opened(host: GpuHost, _: Target) -> Iterable[Evidence]:
    for process in host.facts.service.ranks:
        yield evidence(f"open files of {process}", "\n".join(process.opened or ("cannot be read",)))


SERVICE_EVIDENCE: dict[str, Give] = {
    "gpu_container_state": _state,
    "gpu_container_started_s": _nodes(("inside_boot", "init"), ("inside_boot", "boot_id")),
    "gpu_container_nodes": _device_nodes,
    "gpu_container_majors": _nodes(("host_majors", "devices")),
    "gpu_container_smi": _tables,
    "gpu_container_libraries": _libraries,
    "gpu_container_shm": _nodes(("inside_space", "/dev/shm")),
    "gpu_container_space": _labelled("inside_space"),
    "gpu_container_mounts": _nodes(("inside_boot", "mounts")),
    "gpu_container_sample": _labelled("inside_mounted"),
    "gpu_serving_limits": _nodes(("inside_boot", "limits")),
    "gpu_failed_units": _failed,
    "gpu_service_state": _unit("show"),
    "gpu_service_journal": _unit("journal"),
    "gpu_service_complaints": _unit("verify"),
    "gpu_unit_file_drift": _files,
    "gpu_drop_in_drift": _files,
    "gpu_reload_drift": _files,
    "gpu_process_drift": _files,
    "gpu_service_variable_seen": _processes,
    "gpu_service_argument_seen": _processes,
    "gpu_service_processes": _processes,
    "gpu_service_ranks": _processes,
    "gpu_service_python": lambda host, _: [
        evidence(r.source, readings_as_text([r])) for r in [host.facts.service.tree["python"]["startup"]]
    ],
    "gpu_service_transport": _opened,
}
"""Raw text behind a fact, by the fixture that gives the fact."""
