"""Facts of the container that serves, from outside and from inside; parsed on first use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.connection.container import Container
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.boot.boot import parse_boot_id
from pytest_gpuinfra.subjects.container.config import ContainerConfig, parse_container_config
from pytest_gpuinfra.subjects.container.device_node import DeviceNode, driver_of_node, parse_device_tree, parse_majors
from pytest_gpuinfra.subjects.container.state import ContainerState, parse_container_state
from pytest_gpuinfra.subjects.gpu.driver_library import LIBRARIES, parse_library_versions
from pytest_gpuinfra.subjects.gpu.smi_query import SMI_FIELDS, parse_gpu_query
from pytest_gpuinfra.subjects.gpu.table import GpuTable
from pytest_gpuinfra.subjects.service.filesystem import Mount, Space, mount_of, parse_mounts, parse_sample, parse_space
from pytest_gpuinfra.subjects.service.process import fields_of, parse_limits
from pytest_gpuinfra.wire import integer, text_lines

_DRIVER = "is the nvidia driver loaded on the host? (lsmod, nvidia-modprobe -u)"


class ContainerFacts:
    """
    The container of a host. Attributes raise FactUnavailable or ParseError where they could not be observed.

    Attributes:
        container: Which it is.
    """

    def __init__(self, capture: Capture, container: Container) -> None:
        self.container = container
        self._capture = capture

    @cached_property
    def state(self) -> ContainerState:
        """Its state as the host sees it; one with an address of its own runs if it answers."""
        if not self.container.tell:
            parse_boot_id(self._inside("boot_id"))
            return ContainerState("running", None, "")
        node = self._capture.node("container")
        return parse_container_state(self.container.kind, self.container.name, node)

    @cached_property
    def config(self) -> ContainerConfig | None:
        """Its configuration on the host; None for a kind that has no such file."""
        if self.container.kind not in ("pct", "lxc"):
            return None
        return parse_container_config(self._one("container", "config"))

    @cached_property
    def boot_id(self) -> str:
        """Boot id inside; LXC gives a container its own, other kinds show the host's."""
        return parse_boot_id(self._inside("boot_id"))

    @cached_property
    def started_s(self) -> float:
        """Seconds from the host's boot to the start of its init."""
        reading = self._inside("init")
        fields = reading.require(remedy="is /proc mounted in the container?").rpartition(")")[2].split()
        ticks = integer(fields[19]) if len(fields) > 19 else None
        if ticks is None:
            raise ParseError(reading.source, 1, reading.text or "", "not the status of a process")
        return ticks / fields_of(self._inside("clock")).positive("ticks_a_second")

    @cached_property
    def mounts(self) -> tuple[Mount, ...]:
        """Mounts as its programs see them."""
        return parse_mounts(self._inside("mounts"))

    def mount_of(self, path: str) -> Mount | None:
        """Give the mount that a path lies on; None if it lies on the container's root."""
        return mount_of(path, self.mounts)

    @cached_property
    def limits(self) -> Mapping[str, int | None]:
        """Limits of its init, which its services start from."""
        return parse_limits(self._inside("limits"))

    def space(self, path: str) -> Space:
        """Give the size of the file system that a path lies on; the inventory must name the path."""
        return parse_space(path, self._one("inside_space", path))

    def sample(self, path: str) -> Mapping[str, int | str]:
        """Give what became of reading some files of a path; the inventory must name it as mounted."""
        return parse_sample(self._one("inside_mounted", path))

    @cached_property
    def nodes(self) -> Mapping[str, DeviceNode]:
        """NVIDIA's device nodes inside, by path."""
        return {node.path: node for node in parse_device_tree(self._capture.tree("inside_dev"))}

    @cached_property
    def majors(self) -> Mapping[str, int]:
        """Majors that the host's kernel gave to drivers."""
        return parse_majors(self._one("host_majors", "devices"))

    def major_of(self, path: str) -> int:
        """
        Give the major that a node must have now.

        Raises:
            FactUnavailable: The host's kernel lists no driver for it.
        """
        driver = driver_of_node(path, self.majors)
        if driver is None:
            raise FactUnavailable("/proc/devices", f"the host's kernel lists no driver for {path}", remedy=_DRIVER)
        return self.majors[driver]

    def node_of_gpu(self, address: str) -> str:
        """
        Give the device node of a GPU by its PCI address.

        Raises:
            FactUnavailable: The host's driver does not handle this GPU, or does not tell its minor.
        """
        tree = self._capture.tree("host_gpus")
        found = {normalise_pci_address(entry): node["information"] for entry, node in tree.items()}
        reading = found.get(address)
        if reading is None:
            raise FactUnavailable(
                "/proc/driver/nvidia/gpus", f"the host's driver does not handle {address}", remedy=_DRIVER
            )
        for line in text_lines(reading.require()):
            key, _, value = line.partition(":")
            if key.strip() == "Device Minor" and integer(value.strip()) is not None:
                return f"/dev/nvidia{value.strip()}"
        raise FactUnavailable(reading.source, "it tells no Device Minor")

    @cached_property
    def gpus(self) -> GpuTable:
        """GPUs that nvidia-smi sees inside, in its order."""
        return parse_gpu_query(self._one("inside_driver", "smi"), SMI_FIELDS)

    @cached_property
    def host_gpus(self) -> GpuTable:
        """GPUs that nvidia-smi sees on the host, in its order."""
        return parse_gpu_query(self._one("host_smi", "smi"), SMI_FIELDS)

    @cached_property
    def library_versions(self) -> tuple[str, ...]:
        """Versions of the driver's libraries inside."""
        readings = [self._one("inside_driver", path) for path in LIBRARIES]
        listed = [f"{reading.source}/{name}" for reading in readings for name in text_lines(reading.text or "")]
        refused = [reading for reading in readings if reading.text is None and not reading.missing]
        if refused and not listed:
            refused[0].require()
        return parse_library_versions(Reading(", ".join(LIBRARIES), "\n".join(listed)))

    def _inside(self, name: str) -> Reading:
        return self._one("inside_boot", name)

    def _one(self, request_id: str, name: str) -> Reading:
        return self._capture.node(request_id).get(name) or Reading(name, None, "not asked for")


def parse_failed_units(reading: Reading) -> tuple[str, ...]:
    """
    Read `systemctl list-units --failed --plain --no-legend`.

    Raises:
        FactUnavailable: systemd does not run there.
        ParseError: A line is no unit.
    """
    text = reading.require_success(remedy="is systemd the init there?")
    units = []
    for number, line in enumerate(text_lines(text), 1):
        words = line.lstrip("\u25cf* ").split()
        if len(words) < 4 or "." not in words[0]:
            raise ParseError(reading.source, number, line, "not a unit")
        units.append(words[0])
    return tuple(units)
