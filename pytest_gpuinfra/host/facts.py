"""Facts of one host: typed, parsed on first use from its capture, each with the evidence behind it."""

from __future__ import annotations

from functools import cached_property

from pytest_gpuinfra.capture.capture import (
    Capture,
    Request,
    command,
    file,
    hexadecimal,
    kernel_log,
    link,
    listing,
    node,
    status,
    tree,
)
from pytest_gpuinfra.capture.reading import Node, Reading
from pytest_gpuinfra.connection.container import Container, entered_by
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.inventory.inventory import Expectation, HostSpec, KernelLogExpectation, container_of
from pytest_gpuinfra.subjects.boot.boot import parse_boot_id, parse_kernel_release, parse_uptime_s
from pytest_gpuinfra.subjects.boot.command_line import KernelCommandLine, parse_kernel_command_line
from pytest_gpuinfra.subjects.boot.confidential import ConfidentialComputing, parse_confidential
from pytest_gpuinfra.subjects.container.facts import ContainerFacts, parse_failed_units
from pytest_gpuinfra.subjects.gpu.driver import (
    DriverParameters,
    DriverVersion,
    parse_driver_parameters,
    parse_driver_version,
    parse_module_parameter,
)
from pytest_gpuinfra.subjects.gpu.smi_xml import parse_gpu_xml
from pytest_gpuinfra.subjects.gpu.table import GpuTable
from pytest_gpuinfra.subjects.kernel_log.faults import KernelFaults
from pytest_gpuinfra.subjects.kernel_log.log import KernelLog, parse_kernel_log
from pytest_gpuinfra.subjects.pci.functions import PciFunctions, parse_pci_functions
from pytest_gpuinfra.subjects.pci.iommu import IommuGroups, parse_iommu_groups
from pytest_gpuinfra.subjects.service.facts import ServiceFacts
from pytest_gpuinfra.subjects.service.unit import UnitState, parse_unit_state

_PCI = "/sys/bus/pci/devices"
_ANOTHER = "correct its name in the inventory, or take a new recording: what was seen of one is not seen of another"
_DISPLAY_BRIDGE_ACCELERATOR = ["0x03", "0x0604", "0x12"]

UNIT_PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,UnitFileState,Result,NRestarts,ActiveEnterTimestampMonotonic,"
    "InactiveEnterTimestampMonotonic,ExecMainStartTimestampMonotonic,ConditionResult"
)


def requests_for(expect: Expectation) -> list[Request]:
    """Give what the checks of a host need, for one round trip."""
    declared = [address for device in expect.devices for address in device.pci]
    requests = [
        node(
            "boot",
            file("boot_id", "/proc/sys/kernel/random/boot_id"),
            file("uptime", "/proc/uptime"),
            file("osrelease", "/proc/sys/kernel/osrelease"),
            file("cmdline", "/proc/cmdline"),
        ),
        tree("iommu_groups", "/sys/kernel/iommu_groups", file("type", "type"), listing("devices/", "devices")),
        tree(
            "pci",
            _PCI,
            *(file(name, name) for name in ("vendor", "device", "class", "resource")),
            link("driver", "driver"),
            link("iommu_group", "iommu_group"),
        ),
        tree(
            "pci_detail",
            _PCI,
            link(".", "."),
            *(
                file(name, name)
                for name in (
                    "subsystem_vendor",
                    "subsystem_device",
                    "numa_node",
                    "driver_override",
                    "current_link_speed",
                    "current_link_width",
                    "max_link_speed",
                    "max_link_width",
                )
            ),
            hexadecimal("config", "config"),
            where={"file": "class", "prefixes": _DISPLAY_BRIDGE_ACCELERATOR, "or": declared},
        ),
        kernel_log("kernel_log"),
        node("nvidia_smi", command("xml", "nvidia-smi", "-q", "-x", timeout_s=20.0)),
        node(
            "nvidia",
            file("params", "/proc/driver/nvidia/params"),
            file("version", "/proc/driver/nvidia/version"),
            file("module_version", "/sys/module/nvidia/version"),
        ),
        node(
            "confidential",
            file("sev", "/sys/module/kvm_amd/parameters/sev"),
            file("sev_es", "/sys/module/kvm_amd/parameters/sev_es"),
            file("sev_snp", "/sys/module/kvm_amd/parameters/sev_snp"),
            file("tdx", "/sys/module/kvm_intel/parameters/tdx"),
            status("dev_sev", "/dev/sev"),
        ),
    ]
    if expect.module_parameters:
        items = (
            file(name, "/sys/module/{}/parameters/{}".format(*name.split(".", 1)))
            for name in expect.module_parameters
            if "." in name
        )
        requests.append(node("module_parameters", *items))
    if expect.units:
        requests.append(
            node(
                "units",
                *(
                    command(unit, "systemctl", "show", "--no-pager", "-p", UNIT_PROPERTIES, "--", unit)
                    for unit in expect.units
                ),
            )
        )
    if expect.files_absent:
        requests.append(node("files", *(status(path, path) for path in expect.files_absent)))
    return requests


class HostFacts:
    """
    Every fact of one host. An attribute raises what kept it from being known, and nothing else.

    Attributes may raise UnreachableError or ProbeError (the host gave no answer), FactUnavailable (this source
    could not be read), ParseError (it has a shape that nobody knows).
    """

    def __init__(self, capture: Capture, spec: HostSpec | None = None) -> None:
        self.capture = capture
        self._spec = spec or HostSpec()
        self._faults: KernelFaults | None = None

    @cached_property
    def boot_id(self) -> str:
        """Id that the kernel drew at this boot."""
        return parse_boot_id(self._one("boot", "boot_id"))

    @cached_property
    def uptime_s(self) -> float:
        """Seconds since boot when the capture was taken."""
        return parse_uptime_s(self._one("boot", "uptime"))

    @cached_property
    def kernel_release(self) -> str:
        """Release of the running kernel, as `uname -r`."""
        return parse_kernel_release(self._one("boot", "osrelease"))

    @cached_property
    def kernel_command_line(self) -> KernelCommandLine:
        """Command line of this boot."""
        return parse_kernel_command_line(self._one("boot", "cmdline"))

    @cached_property
    def iommu_groups(self) -> IommuGroups:
        """IOMMU groups by number."""
        return parse_iommu_groups(self.capture.tree("iommu_groups"))

    @cached_property
    def pci_functions(self) -> PciFunctions:
        """PCI functions by address."""
        basic = self.capture.tree("pci")
        detail = self.capture.tree("pci_detail")
        if not basic:
            raise FactUnavailable(_PCI, "it lists no PCI function", remedy="is /sys mounted on the target?")
        return parse_pci_functions({address: {**node, **detail.get(address, {})} for address, node in basic.items()})

    @cached_property
    def kernel_log(self) -> KernelLog:
        """Kernel's log of this boot."""
        return parse_kernel_log(self.capture.node("kernel_log"))

    def kernel_faults(self, expect: KernelLogExpectation) -> KernelFaults:
        """Give the faults in the kernel's log, weighed by what the inventory says; parsed once."""
        if self._faults is None or self._faults.expect != expect:
            self._faults = self.faults_in(self.kernel_log, expect)
        return self._faults

    def faults_in(self, log: KernelLog, expect: KernelLogExpectation) -> KernelFaults:
        """Give the faults in a log of this boot; the GPUs are those that have checks: the expected, else the seen."""
        gpus = tuple(address for device in self._spec.expect.devices for address in device.pci)
        container = container_of(self._spec)
        scope = {"docker": "docker-", "podman": "libpod-"}
        service = (self._spec.service, scope.get(container.kind, container.name) if container else None)
        return KernelFaults(
            log,
            self.pci_functions,
            expect,
            gpus or tuple(gpu.address for gpu in self.pci_functions.gpus),
            tuple(name for name in service if name),
        )

    @cached_property
    def driver_parameters(self) -> DriverParameters:
        """Parameters of the loaded NVIDIA driver."""
        return parse_driver_parameters(self._one("nvidia", "params"))

    @cached_property
    def driver_version(self) -> DriverVersion:
        """Version of the loaded NVIDIA driver."""
        return parse_driver_version(self._one("nvidia", "version"))

    @cached_property
    def gpu_table(self) -> GpuTable:
        """What the driver reports of each GPU, by NVML."""
        return parse_gpu_xml(self._one("nvidia_smi", "xml"))

    @cached_property
    def confidential(self) -> ConfidentialComputing:
        """State of confidential computing, by the modules' parameters, the kernel's log, and /dev/sev."""
        node = self.capture.node("confidential")
        try:
            return parse_confidential(node, self.kernel_log.entries)
        except (FactUnavailable, ParseError) as error:
            return parse_confidential(node, log_error=error)

    def module_parameter(self, name: str) -> str:
        """Give the value in effect of "module.parameter"; the inventory must expect it, or nobody asked."""
        return parse_module_parameter(self._one("module_parameters", name))

    def unit(self, name: str) -> UnitState:
        """Give the state of a systemd unit; the inventory must name it, or nobody asked."""
        return parse_unit_state(name, self._one("units", name))

    def file_exists(self, path: str) -> bool:
        """
        Tell whether a file exists; the inventory must name it, or nobody asked.

        Raises:
            FactUnavailable: The target does not let us look (permissions, a dead mount).
        """
        reading = self._one("files", path)
        if reading.missing:
            return False
        reading.require(remedy="look as root, or by --gpu-sudo")
        return True

    @cached_property
    def service(self) -> ServiceFacts:
        """The service; the inventory must name its unit, or nobody asked."""
        if self._spec.service is None:
            raise FactUnavailable("service", "the inventory names no service", remedy='service = "UNIT"')
        self._check_place(container_of(self._spec))
        asked = self.capture.request("service")
        if asked is not None and asked["unit"] != self._spec.service:
            raise FactUnavailable(
                self._spec.service, f"the recording is of another unit, {asked['unit']}", remedy=_ANOTHER
            )
        return ServiceFacts(self.capture, self._spec.service)

    @cached_property
    def container(self) -> ContainerFacts:
        """The container; the inventory must name it, or nobody asked."""
        container = container_of(self._spec)
        if container is None:
            raise FactUnavailable("container", "the inventory names no container", remedy='container = "KIND:NAME"')
        self._check_place(container)
        return ContainerFacts(self.capture, container)

    def _check_place(self, container: Container | None) -> None:
        """
        Hold the place that was asked, a container or the host itself, against the one that the inventory names.

        Raises:
            FactUnavailable: They are not the same.
        """
        request = self.capture.request("inside")
        asked = entered_by(request["enter"][:-3]) if request is not None else None
        if self.capture.error is None and asked != container:
            raise FactUnavailable(
                str(container or "the host itself"),
                f"the recording is of another place, {asked or 'the host itself'}",
                remedy=_ANOTHER,
            )

    def failed_units(self, where: str) -> tuple[str, ...]:
        """Give the failed units of the "host", or of the container ("inside")."""
        if where == "inside":
            self._check_place(container_of(self._spec))
        return parse_failed_units(self._one(f"{where}_failed_units", "list"))

    def answer(self, request_id: str) -> Node:
        """
        Give the readings of any request, such as one added by the hook `pytest_gpuinfra_requests`.

        Raises:
            FactUnavailable: Nobody asked for it.
        """
        return self.capture.node(request_id)

    def _one(self, request_id: str, name: str) -> Reading:
        return self.capture.node(request_id).get(name) or Reading(name, None, "not asked for")
