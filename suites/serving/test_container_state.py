"""The container that serves: does it run, was it started with the host, and is it given what it needs?"""

from collections.abc import Mapping

import pytest

from pytest_gpuinfra import Expectation, GpuHost, explain
from pytest_gpuinfra.host.container import GpuContainer
from pytest_gpuinfra.pci_address import short_address
from pytest_gpuinfra.session.items_service import ExpectedSpace
from pytest_gpuinfra.subjects.container.device_node import DeviceNode
from pytest_gpuinfra.subjects.container.state import ContainerState
from pytest_gpuinfra.subjects.gpu.driver import DriverVersion
from pytest_gpuinfra.subjects.gpu.table import GpuTable
from pytest_gpuinfra.subjects.service.filesystem import Mount, Space
from pytest_gpuinfra.subjects.verdict import Verdict


def test_container_runs(gpu_container: GpuContainer, gpu_container_state: ContainerState) -> None:
    """
    The container that serves is running.

    Its state is asked of what started it: the host's own units do not tell it.
    """
    assert gpu_container_state.running, explain(
        f"{gpu_container.alias}: container {gpu_container.container}",
        observed=gpu_container_state.word,
        expected="running",
        why="the service lives in it",
        action=gpu_container.container.remedy,
    )


@pytest.mark.gpu_expects("container.autostart")
def test_container_starts_at_boot(
    gpu_container: GpuContainer,
    gpu_container_state: ContainerState,
    gpu_container_autostart: bool,
    gpu_expect: Expectation,
) -> None:
    """
    The container starts at boot, or does not, as declared.

    One that was started by hand is gone after the next reboot of its host.
    """
    assert gpu_container_autostart == gpu_expect.container.autostart, explain(
        f"{gpu_container.alias}: start of container {gpu_container.container} at boot",
        observed=f"{gpu_container_autostart} ({gpu_container_state.autostart_from})",
        expected=gpu_expect.container.autostart,
        why="after a reboot the host comes up and nothing serves",
        action=f"set {gpu_container_state.autostart_from}",
    )


@pytest.mark.gpu_expects("container.starts_within_s")
def test_container_was_started_with_its_host(
    gpu_container: GpuContainer, gpu_container_started_s: float, gpu_expect: Expectation
) -> None:
    """
    The container was started soon after its host's boot, and not again since.

    A container that restarted by itself may have lost device nodes, mounts or its place in the order.
    """
    limit = gpu_expect.container.starts_within_s or 0.0

    assert gpu_container_started_s <= limit, explain(
        f"{gpu_container.alias}: start of container {gpu_container.container}",
        observed=f"{gpu_container_started_s:.0f} s after the host's boot",
        expected=f"within {limit:g} s",
        why="it was restarted since, by hand or by a failure, and what was proven before may not hold",
        action="see the host's journal for the restart; prove the container anew",
    )


def test_container_has_the_device_node(
    gpu_container: GpuContainer, gpu_container_node: str, gpu_container_nodes: Mapping[str, DeviceNode]
) -> None:
    """
    The container has a device node that CUDA needs.

    nvidia-uvm and nvidia-uvm-tools appear on the host when the module is first used, often after the container started.
    """
    assert gpu_container_node in gpu_container_nodes, explain(
        f"{gpu_container.alias}: {gpu_container_node} in container {gpu_container.container}",
        observed=f"missing; there are {', '.join(gpu_container_nodes) or 'none'}",
        expected="present",
        why="nvidia-smi may work without it, and CUDA does not start",
        action="make it on the host (nvidia-modprobe -u -c 0), then restart the container",
    )


def test_device_node_has_its_drivers_major(
    gpu_container: GpuContainer,
    gpu_container_node: str,
    gpu_container_node_found: DeviceNode,
    gpu_container_majors: int,
) -> None:
    """
    A device node in the container has the major that the host's kernel gave to its driver.

    The major of nvidia-uvm is given out at module load, and changes after an update or a reboot.
    """
    assert gpu_container_node_found.major == gpu_container_majors, explain(
        f"{gpu_container.alias}: major of {gpu_container_node} in container {gpu_container.container}",
        observed=gpu_container_node_found.major,
        expected=f"{gpu_container_majors} (/proc/devices of the host)",
        why="the node leads to no driver, or to another one",
        action="restart the container; in its configuration use entries that follow the major (Proxmox: devN)",
    )


def test_container_may_open_the_device_node(
    gpu_container: GpuContainer, gpu_container_node: str, gpu_container_rule: Verdict
) -> None:
    """
    The container's device cgroup lets it open a device node that it is given.

    A bind mount brings the node and no rights; a rule by number is wrong once the driver has another major.
    """
    assert gpu_container_rule.ok, explain(
        f"{gpu_container.alias}: rights on {gpu_container_node} in container {gpu_container.container}",
        observed=gpu_container_rule.observed,
        expected=gpu_container_rule.expected,
        why=gpu_container_rule.why,
        action=gpu_container_rule.action,
    )


def test_container_has_the_node_of_its_gpu(
    gpu_container: GpuContainer,
    gpu_container_gpu: str,
    gpu_container_node_path: str,
    gpu_container_nodes: Mapping[str, DeviceNode],
) -> None:
    """
    The container has the device node of a GPU that it is given.

    Which node is whose is told by the host's driver; the numbers move when a card is lost.
    """
    assert gpu_container_node_path in gpu_container_nodes, explain(
        f"{gpu_container.alias}: GPU {short_address(gpu_container_gpu)} in container {gpu_container.container}",
        observed=f"{gpu_container_node_path} is missing; there are {', '.join(gpu_container_nodes) or 'none'}",
        expected=f"{gpu_container_node_path}",
        why="the model has one GPU less than it was sized for",
        action="pass the node to the container and restart it",
    )


@pytest.mark.gpu_expects("container.devices")
def test_container_sees_exactly_its_gpus(
    gpu_container: GpuContainer, gpu_container_smi: tuple[GpuTable, GpuTable], gpu_expect: Expectation
) -> None:
    """
    The container sees the GPUs that it is given, no other, in the declared order.

    Ranks take GPUs by index; a changed order moves them away from their memory and their neighbours.
    """
    observed = tuple(row.pci_address or "?" for row in gpu_container_smi[0])

    assert observed == gpu_expect.container.devices, explain(
        f"{gpu_container.alias}: GPUs in container {gpu_container.container}",
        observed=", ".join(map(short_address, observed)),
        expected=", ".join(map(short_address, gpu_expect.container.devices)),
        why="the service loads other GPUs than those that were proven, or another guest's",
        action="correct the container's device entries and restart it",
    )


@pytest.mark.gpu_expects("container.devices")
def test_gpus_have_the_same_order_on_both_sides(
    gpu_container: GpuContainer, gpu_container_smi: tuple[GpuTable, GpuTable]
) -> None:
    """
    The container's GPUs come in the same order as on the host.

    Indices in logs and tools of both sides then speak of the same cards in the same order.
    """
    inside = tuple(row.pci_address or "?" for row in gpu_container_smi[0])
    outside = tuple(row.pci_address or "?" for row in gpu_container_smi[1] if row.pci_address in inside)

    assert inside == outside, explain(
        f"{gpu_container.alias}: order of GPUs in container {gpu_container.container}",
        observed=", ".join(map(short_address, inside)),
        expected=", ".join(map(short_address, outside)),
        why="GPU 0 here is another card than GPU 0 there",
        action="restart the container; see CUDA_DEVICE_ORDER and the order of its device entries",
    )


@pytest.mark.gpu_expects("container.devices")
def test_driver_version_is_the_same_on_both_sides(
    gpu_container: GpuContainer, gpu_container_smi: tuple[GpuTable, GpuTable]
) -> None:
    """
    Container and host report the same driver version.

    Both speak to one kernel module; two versions mean that one side's tools are of another package.
    """
    assert gpu_container_smi[0].driver_version == gpu_container_smi[1].driver_version, explain(
        f"{gpu_container.alias}: driver version in container {gpu_container.container}",
        observed=gpu_container_smi[0].driver_version,
        expected=f"{gpu_container_smi[1].driver_version} as on the host",
        why="programs of the other version refuse to start",
        action="bring the container's packages to the host's driver version",
    )


@pytest.mark.gpu_expects("container.devices")
def test_driver_libraries_fit_the_kernel_module(
    gpu_container: GpuContainer, gpu_container_libraries: tuple[str, ...], gpu_driver_version: DriverVersion
) -> None:
    """
    The container has the driver's libraries in the version of the loaded kernel module.

    After an upgrade on the host only, the next process ends with a driver/library version mismatch.
    """
    assert gpu_driver_version.version in gpu_container_libraries, explain(
        f"{gpu_container.alias}: libcuda and libnvidia-ml in container {gpu_container.container}",
        observed=", ".join(gpu_container_libraries),
        expected=f"{gpu_driver_version.version}, as the kernel module",
        why="a running service goes on, and its next start fails (driver/library version mismatch)",
        action="install the user-space part of the host's driver version in the container",
    )


@pytest.mark.gpu_expects("container.shm_min_gib")
def test_shared_memory_is_large_enough(
    gpu_container: GpuContainer, gpu_container_shm: Space, gpu_expect: Expectation
) -> None:
    """
    /dev/shm in the container is as large as declared.

    NCCL's SHM transport and the engine's message queues live there; containers often get 64 MiB.
    """
    least = gpu_expect.container.shm_min_gib or 0.0

    assert gpu_container_shm.size_gib >= least, explain(
        f"{gpu_container.alias}: /dev/shm in container {gpu_container.container}",
        observed=f"{gpu_container_shm.size_gib:.2f} GiB",
        expected=f"{least:g} GiB at least",
        why="NCCL cannot make its shared files, and the service does not start or stops with a bus error",
        action="raise it (docker run --shm-size, lxc.mount.entry of a tmpfs) and restart the container",
    )


@pytest.mark.gpu_expects("container.memlock")
def test_locked_memory_limit_is_high_enough(
    gpu_container: GpuContainer, gpu_serving_limits: Mapping[str, int | None], gpu_expect: Expectation
) -> None:
    """
    The service may lock as much memory as declared.

    Pinned buffers for copies to the GPU, and RDMA, are locked memory.
    """
    limit = gpu_serving_limits["Max locked memory"]
    wanted = gpu_expect.container.memlock
    enough = limit is None or (isinstance(wanted, int) and limit >= wanted)

    assert enough, explain(
        f"{gpu_container.alias}: limit of locked memory",
        observed=f"{limit} bytes",
        expected=wanted,
        why="pinned memory is refused, and the service stops or copies slowly",
        action="LimitMEMLOCK=infinity in the unit; ulimit of the container",
    )


@pytest.mark.gpu_expects("container.open_files")
def test_open_file_limit_is_high_enough(
    gpu_container: GpuContainer, gpu_serving_limits: Mapping[str, int | None], gpu_expect: Expectation
) -> None:
    """
    The service may open as many files as declared.

    Each request, each shared segment and each weight file takes one.
    """
    limit = gpu_serving_limits["Max open files"]
    wanted = gpu_expect.container.open_files or 0

    assert limit is None or limit >= wanted, explain(
        f"{gpu_container.alias}: limit of open files",
        observed=limit,
        expected=f"{wanted} at least",
        why="under load new connections are refused while everything looks healthy",
        action="LimitNOFILE in the unit",
    )


def test_path_is_mounted(
    gpu_container: GpuContainer, gpu_container_mount: str, gpu_container_mounts: Mount | None
) -> None:
    """
    A path that lies on a file system of its own is mounted in the container.

    An empty directory in place of the mount looks like an empty model folder.
    """
    assert gpu_container_mounts is not None, explain(
        f"{gpu_container.alias}: {gpu_container_mount} in container {gpu_container.container}",
        observed="on the container's root file system",
        expected="on a mount",
        why="the model is not there, or is written into the container until its disk is full",
        action="mount it on the host, then restart the container",
    )


def test_files_of_the_path_are_readable(
    gpu_container: GpuContainer, gpu_container_mount: str, gpu_container_sample: Mapping[str, int | str]
) -> None:
    """
    Files at a path that must be mounted can be read.

    A dead network file system lists names and gives no content.
    """
    refused = [f"{name}: {error}" for name, error in gpu_container_sample.items() if isinstance(error, str)]

    assert refused == [], explain(
        f"{gpu_container.alias}: files in {gpu_container_mount}",
        observed="; ".join(refused),
        expected="readable",
        why="the service cannot load its model at the next start",
        action="see owner and mode there, and the server of the file system",
    )


def test_disk_has_space_left(
    gpu_container: GpuContainer, gpu_container_disk: ExpectedSpace, gpu_container_space: Space
) -> None:
    """
    A file system has as much space left as declared.

    Compiled kernels, caches and logs are written while the service runs.
    """
    assert gpu_container_space.available_gib >= gpu_container_disk.free_gib, explain(
        f"{gpu_container.alias}: space at {gpu_container_disk.path} in container {gpu_container.container}",
        observed=f"{gpu_container_space.available_gib:.1f} GiB",
        expected=f"{gpu_container_disk.free_gib:g} GiB at least",
        why="the next compilation or log line fails, and the service with it",
        action="make room there",
    )


def test_no_unit_has_failed(
    gpu_host: GpuHost, gpu_system: str, gpu_failed_units: tuple[str, ...], gpu_expect: Expectation
) -> None:
    """
    No systemd unit of the host, or of the container, has failed.

    What failed at boot (a mount, a module, a hook) is missed by whoever needs it later.
    """
    failed = [unit for unit in gpu_failed_units if unit not in gpu_expect.container.failed_units]

    assert failed == [], explain(
        f"{gpu_host.alias}: failed units of the {gpu_system}",
        observed=", ".join(failed),
        expected="none",
        why="the service may lack what they provide, now or after the next restart",
        action=f"systemctl status {' '.join(failed)}",
    )
