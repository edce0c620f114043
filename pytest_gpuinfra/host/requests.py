"""What the checks of a container and of the service in it ask of the target, in the host's one round trip."""

from __future__ import annotations

from pytest_gpuinfra.capture.capture import (
    Request,
    clock,
    command,
    file,
    filesystem,
    inside,
    listing,
    node,
    sample,
    service,
    status,
    tree,
)
from pytest_gpuinfra.inventory.inventory import HostSpec, container_of
from pytest_gpuinfra.subjects.gpu.driver_library import LIBRARIES
from pytest_gpuinfra.subjects.gpu.smi_query import SMI_FIELDS

SERVICE_PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,Result,UnitFileState,NRestarts,MainPID,ControlGroup,InvocationID,"
    "FragmentPath,DropInPaths,NeedDaemonReload,ExecStart,Environment,EnvironmentFiles,After,Before,User,Type,"
    "ActiveEnterTimestampMonotonic,InactiveEnterTimestampMonotonic,ExecMainStartTimestampMonotonic,ConditionResult,"
    "WantedBy,RequiredBy,UpheldBy,TriggeredBy,FreezerState"
)
OPENED = ("/dev/shm/", "/dev/nvidia", "*/libnccl.so")
_SMI = ("nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader")
_FAILED = ("systemctl", "list-units", "--failed", "--plain", "--no-legend", "--no-pager")
_NODES = ("nvidia*",)


def requests_on_host(spec: HostSpec, *, deadline_s: float = 60.0) -> list[Request]:
    """Give what to ask on the host: of the container from outside, and from inside through it."""
    container = container_of(spec)
    if container is None:
        return requests_of_service(spec) + (
            [node("host_failed_units", command("list", *_FAILED))] if spec.service else []
        )
    requests = [node("host_failed_units", command("list", *_FAILED))]
    if container.tell:
        requests.append(
            node(
                "container",
                *(command(name, *argv, timeout_s=20.0) for name, argv in container.tell.items()),
                *(file(name, path) for name, path in container.files.items()),
            )
        )
    if spec.expect.container.nodes or spec.expect.container.devices:
        requests.append(node("host_majors", file("devices", "/proc/devices")))
    if spec.expect.container.devices:
        requests.append(tree("host_gpus", "/proc/driver/nvidia/gpus", file("information", "information")))
        requests.append(node("host_smi", command("smi", *_SMI, timeout_s=20.0)))
    if container.enter:
        requests.append(inside("inside", container.enter, requests_inside(spec), deadline_s=0.7 * deadline_s))
    return requests


def requests_inside(spec: HostSpec) -> list[Request]:
    """Give what to ask inside the container."""
    expect = spec.expect.container
    requests = [
        node(
            "inside_boot",
            file("boot_id", "/proc/sys/kernel/random/boot_id"),
            file("init", "/proc/1/stat"),
            file("mounts", "/proc/self/mounts"),
            file("limits", "/proc/1/limits"),
            clock("clock"),
        ),
        node("inside_failed_units", command("list", *_FAILED)),
        node(
            "inside_space",
            *(filesystem(path, path) for path in dict.fromkeys(("/dev/shm", *expect.disk_free_gib))),
        ),
    ]
    if expect.mounted:
        requests.append(node("inside_mounted", *(sample(path, path) for path in expect.mounted)))
    if expect.nodes or expect.devices:
        requests.append(tree("inside_dev", "/dev", status(".", "."), match=_NODES))
    if expect.devices:
        requests.append(
            node(
                "inside_driver",
                command("smi", *_SMI, timeout_s=20.0),
                *(listing(path, path, "libcuda.so.*", "libnvidia-ml.so.*") for path in LIBRARIES),
            )
        )
    return requests + requests_of_service(spec)


def requests_of_service(spec: HostSpec) -> list[Request]:
    """Give what to ask where the service runs; [] if the inventory names none."""
    if not spec.service:
        return []
    names = tuple(dict.fromkeys(spec.expect.service.names))
    return [service("service", spec.service, SERVICE_PROPERTIES, names, OPENED)]
