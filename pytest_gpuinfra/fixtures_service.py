"""
The fixtures of the container that serves, and of the systemd service in it.

This module is loaded in every pytest session: it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from pytest_gpuinfra.fixtures import value_fixture

if TYPE_CHECKING:
    from pytest_gpuinfra.container_facts import ContainerFacts
    from pytest_gpuinfra.container_host import GpuContainer
    from pytest_gpuinfra.facts.container_state import ContainerState
    from pytest_gpuinfra.facts.device_node import DeviceNode
    from pytest_gpuinfra.facts.filesystem import Mount, Space
    from pytest_gpuinfra.facts.gpu import GpuTable
    from pytest_gpuinfra.facts.process import ServiceProcess
    from pytest_gpuinfra.facts.python_start import PythonStart
    from pytest_gpuinfra.facts.unit import UnitState
    from pytest_gpuinfra.facts.unit_journal import UnitJournal
    from pytest_gpuinfra.host import GpuHost
    from pytest_gpuinfra.service_facts import ServiceFacts
    from pytest_gpuinfra.service_targets import ExpectedOrder, ExpectedSetting, ExpectedSpace
    from pytest_gpuinfra.verdict.service_drift import Drift
    from pytest_gpuinfra.verdict.service_environment import EffectiveVariable
    from pytest_gpuinfra.verdict.service_transport import SeenTransport


@pytest.fixture(scope="session")
def gpu_container(gpu_host: GpuHost) -> GpuContainer:
    """Give the host's container: `.run(...)`, `.testinfra`, `.facts`; skip where the inventory names none."""
    if gpu_host.container is None:
        pytest.skip(f"inventory names no container of {gpu_host.alias}")
    return gpu_host.container


@pytest.fixture(scope="session")
def gpu_container_facts(gpu_container: GpuContainer) -> ContainerFacts:
    """Give the whole view of the container's facts; an attribute raises what kept it from being known."""
    return gpu_container.facts


@pytest.fixture(scope="session")
def gpu_container_state(gpu_container_facts: ContainerFacts) -> ContainerState:
    """Give the container's state as its host sees it."""
    return gpu_container_facts.state


@pytest.fixture(scope="session")
def gpu_container_autostart(gpu_container_state: ContainerState) -> bool:
    """
    Tell whether the container starts at boot.

    Raises:
        FactUnavailable: The tool of its kind does not tell.
    """
    if gpu_container_state.autostart is None:
        from pytest_gpuinfra.errors import FactUnavailable

        raise FactUnavailable("autostart", "what starts this container at boot could not be read")
    return gpu_container_state.autostart


@pytest.fixture(scope="session")
def gpu_container_started_s(gpu_container_facts: ContainerFacts) -> float:
    """Give the seconds from the host's boot to the start of the container's init."""
    return gpu_container_facts.started_s


gpu_container_node: str = value_fixture(
    "gpu_container_node", "Give a device node that the container needs: one test for each."
)
gpu_container_gpu: str = value_fixture(
    "gpu_container_gpu", "Give the PCI address of a GPU that the container is given: one test for each."
)
gpu_container_mount: str = value_fixture(
    "gpu_container_mount", "Give a path that must be mounted in the container: one test for each."
)
gpu_container_disk: ExpectedSpace = value_fixture(
    "gpu_container_disk", "Give a path with the space that must be left there: one test for each."
)
gpu_system: str = value_fixture("gpu_system", 'Give "host" or "container": one test for each.')
gpu_service_variable: ExpectedSetting = value_fixture(
    "gpu_service_variable", "Give a variable and its expected value: one test for each."
)
gpu_service_argument: ExpectedSetting = value_fixture(
    "gpu_service_argument", "Give an argument and its expected value: one test for each."
)
gpu_service_order: ExpectedOrder = value_fixture(
    "gpu_service_order", "Give a unit that the service is ordered after or before: one test for each."
)


@pytest.fixture(scope="session")
def gpu_container_nodes(gpu_container_facts: ContainerFacts) -> Mapping[str, DeviceNode]:
    """Give NVIDIA's device nodes in the container, by path."""
    return gpu_container_facts.nodes


@pytest.fixture(scope="session")
def gpu_container_node_path(gpu_container_gpu: str, gpu_container_facts: ContainerFacts) -> str:
    """Give the device node of the test's GPU, by the minor that the host's driver gave it."""
    return gpu_container_facts.node_of_gpu(gpu_container_gpu)


@pytest.fixture(scope="session")
def gpu_container_node_found(gpu_container_node: str, gpu_container_nodes: Mapping[str, DeviceNode]) -> DeviceNode:
    """
    Give the test's device node.

    Raises:
        FactUnavailable: The container has no such node.
    """
    if gpu_container_node not in gpu_container_nodes:
        from pytest_gpuinfra.errors import FactUnavailable

        raise FactUnavailable(gpu_container_node, "the container has no such device node")
    return gpu_container_nodes[gpu_container_node]


@pytest.fixture(scope="session")
def gpu_container_majors(gpu_container_node: str, gpu_container_facts: ContainerFacts) -> int:
    """Give the major that the test's device node must have, by the host's /proc/devices."""
    return gpu_container_facts.major_of(gpu_container_node)


@pytest.fixture(scope="session")
def gpu_container_smi(gpu_container_facts: ContainerFacts) -> tuple[GpuTable, GpuTable]:
    """Give the GPUs as nvidia-smi sees them in the container, and on the host."""
    return gpu_container_facts.gpus, gpu_container_facts.host_gpus


@pytest.fixture(scope="session")
def gpu_container_libraries(gpu_container_facts: ContainerFacts) -> tuple[str, ...]:
    """Give the versions of the driver's libraries in the container."""
    return gpu_container_facts.library_versions


@pytest.fixture(scope="session")
def gpu_container_shm(gpu_container_facts: ContainerFacts) -> Space:
    """Give the size of /dev/shm in the container."""
    return gpu_container_facts.space("/dev/shm")


@pytest.fixture(scope="session")
def gpu_container_space(gpu_container_disk: ExpectedSpace, gpu_container_facts: ContainerFacts) -> Space:
    """Give the space that is left at the test's path."""
    return gpu_container_facts.space(gpu_container_disk.path)


@pytest.fixture(scope="session")
def gpu_container_mounts(gpu_container_mount: str, gpu_container_facts: ContainerFacts) -> Mount | None:
    """Give the mount that the test's path lies on; None if it lies on the container's root."""
    return gpu_container_facts.mount_of(gpu_container_mount)


@pytest.fixture(scope="session")
def gpu_container_sample(gpu_container_mount: str, gpu_container_facts: ContainerFacts) -> Mapping[str, int | str]:
    """
    Give what became of reading up to three files at the test's path: bytes read, or the error.

    Raises:
        FactUnavailable: The path cannot be listed, or holds no file.
    """
    sample = gpu_container_facts.sample(gpu_container_mount)
    if not sample:
        from pytest_gpuinfra.errors import FactUnavailable

        raise FactUnavailable(gpu_container_mount, "it holds no file", remedy="is the right file system mounted there?")
    return sample


@pytest.fixture(scope="session")
def gpu_serving_limits(gpu_host: GpuHost, gpu_container_facts: ContainerFacts) -> Mapping[str, int | None]:
    """Give the limits of the service's main process; of the container's init where no service is named."""
    return gpu_host.facts.service.limits if gpu_host.selected.spec.service else gpu_container_facts.limits


@pytest.fixture(scope="session")
def gpu_failed_units(gpu_system: str, gpu_host: GpuHost) -> tuple[str, ...]:
    """Give the failed units of the host, or of the container."""
    return gpu_host.facts.failed_units("host" if gpu_system == "host" else "inside")


@pytest.fixture(scope="session")
def gpu_service(gpu_host: GpuHost) -> ServiceFacts:
    """Give the service's facts: unit, files, processes, environment; skip where the inventory names none."""
    if gpu_host.selected.spec.service is None:
        pytest.skip(f"inventory names no service of {gpu_host.alias}")
    return gpu_host.facts.service


@pytest.fixture(scope="session")
def gpu_service_state(gpu_service: ServiceFacts) -> UnitState:
    """
    Give the service's unit as systemd holds it.

    Raises:
        FactUnavailable: There is no unit of that name, which is not a stopped one.
    """
    return gpu_service.state


@pytest.fixture(scope="session")
def gpu_service_journal(gpu_service: ServiceFacts) -> UnitJournal:
    """Give what the service logged since it was last started."""
    return gpu_service.journal


@pytest.fixture(scope="session")
def gpu_service_complaints(gpu_service: ServiceFacts) -> tuple[str, ...]:
    """Give what `systemd-analyze verify` says of the service's unit."""
    return gpu_service.complaints


@pytest.fixture(scope="session")
def gpu_unit_file_drift(gpu_service: ServiceFacts, gpu_host: GpuHost) -> Drift:
    """Give the difference between the deployed unit file and the user's copy."""
    from pytest_gpuinfra.service_comparison import compare_unit_file

    return compare_unit_file(gpu_service, gpu_host.expect.service)


@pytest.fixture(scope="session")
def gpu_drop_in_drift(gpu_service: ServiceFacts, gpu_host: GpuHost) -> Drift:
    """Give the difference between the drop-ins on disk and the user's copies; skip where there are no copies at all."""
    from pytest_gpuinfra.service_comparison import compare_drop_ins

    expect = gpu_host.expect.service
    if expect.unit_file_text is None and not expect.drop_ins:
        pytest.skip(f"inventory expects no service.unit_file and no service.drop_ins of {gpu_host.alias}")
    return compare_drop_ins(gpu_service, expect)


@pytest.fixture(scope="session")
def gpu_reload_drift(gpu_service: ServiceFacts) -> Drift:
    """Give the difference between what systemd holds and the files on disk."""
    from pytest_gpuinfra.service_comparison import compare_with_systemd

    return compare_with_systemd(gpu_service)


@pytest.fixture(scope="session")
def gpu_process_drift(gpu_service: ServiceFacts) -> Drift:
    """Give what was changed after the running process was started."""
    from pytest_gpuinfra.service_comparison import compare_with_process

    return compare_with_process(gpu_service)


@pytest.fixture(scope="session")
def gpu_service_processes(gpu_service: ServiceFacts) -> tuple[ServiceProcess, ...]:
    """
    Give the service's processes.

    Raises:
        FactUnavailable: It has none.
    """
    return gpu_service.processes


@pytest.fixture(scope="session")
def gpu_service_variable_seen(gpu_service_variable: ExpectedSetting, gpu_service: ServiceFacts) -> EffectiveVariable:
    """
    Give the test's variable in every process of the service: value, witness, and the layer that set it.

    Raises:
        FactUnavailable: It is not seen to be wrong anywhere, and in some process nobody can say.
    """
    seen = gpu_service.variable(gpu_service_variable.name)
    expected = None if gpu_service_variable.value is False else str(gpu_service_variable.value)
    if seen.unknown and not seen.wrong(expected):
        from pytest_gpuinfra.errors import FactUnavailable

        raise FactUnavailable(
            f"{seen.name} in {gpu_service.unit_name}",
            "; ".join(map(str, seen.unknown)),
            remedy="read as root; NCCL's own log and the transport in use are other witnesses",
        )
    return seen


@pytest.fixture(scope="session")
def gpu_service_argument_seen(
    gpu_service_argument: ExpectedSetting, gpu_service: ServiceFacts
) -> tuple[str | bool, ServiceProcess]:
    """Give the value of the test's argument (True without one, False if it is not there), and the process."""
    from pytest_gpuinfra.service_comparison import seen_argument

    return seen_argument(gpu_service, gpu_service_argument.name)


@pytest.fixture(scope="session")
def gpu_service_engine(gpu_service: ServiceFacts) -> str:
    """Give the engine that serves, by its processes."""
    return gpu_service.engine


@pytest.fixture(scope="session")
def gpu_service_python(gpu_service: ServiceFacts) -> PythonStart:
    """Give the Python that the service runs in, and what it starts with."""
    return gpu_service.python


@pytest.fixture(scope="session")
def gpu_service_ranks(gpu_service: ServiceFacts) -> tuple[ServiceProcess, ...]:
    """Give the service's ranks, by their titles or by the shared files that they have open."""
    return gpu_service.ranks


@pytest.fixture(scope="session")
def gpu_service_transport(gpu_service: ServiceFacts) -> SeenTransport:
    """
    Give the transport that the running ranks are seen to use.

    Raises:
        FactUnavailable: It cannot be judged.
    """
    return gpu_service.transport
