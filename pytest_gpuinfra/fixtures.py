"""
The fixtures, for the suites that come along and for users' own tests.

All of them derive from one private parameter, so a test that takes several speaks of one host.
A fixture that cannot give its fact raises a GpuInfraError, and the test ends in ERROR.
This module is loaded in every pytest session: it imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_gpuinfra.session import OBSERVED, RUN

if TYPE_CHECKING:
    from pytest_gpuinfra.evidence import Evidence
    from pytest_gpuinfra.facts.confidential import ConfidentialComputing
    from pytest_gpuinfra.facts.driver import DriverParameters, DriverVersion
    from pytest_gpuinfra.facts.iommu import IommuGroup, IommuGroups
    from pytest_gpuinfra.facts.kernel_command_line import KernelCommandLine
    from pytest_gpuinfra.facts.kernel_log import KernelLog
    from pytest_gpuinfra.facts.pci import PciFunction, PciFunctions
    from pytest_gpuinfra.facts.unit import UnitState
    from pytest_gpuinfra.host import GpuHost
    from pytest_gpuinfra.host_facts import HostFacts
    from pytest_gpuinfra.inventory import Expectation
    from pytest_gpuinfra.kernel_faults import KernelFaults
    from pytest_gpuinfra.targets import ExpectedValue, GpuDevice, Target


class Aim(NamedTuple):
    """What an item is about, and the host that it is on; fixtures take both from here, since `request` costs time."""

    target: Target
    host: GpuHost


@pytest.fixture(scope="session")
def _gpu_target(request: pytest.FixtureRequest) -> Aim:
    if RUN not in request.config.stash:
        pytest.skip("no host: name one with --gpu-host")
    host = request.config.stash[RUN].hosts[request.param.host]
    host.capture.check_reached()
    return Aim(request.param, host)


@pytest.fixture(scope="session")
def gpu_host(_gpu_target: Aim) -> GpuHost:
    """
    Give the host that the test is about: one test for each host of the run.

    Raises:
        UnreachableError, ProbeError: The host gave no answer.
    """
    return _gpu_target.host


@pytest.fixture(scope="session")
def gpu_facts(gpu_host: GpuHost) -> HostFacts:
    """Give the whole view of the host's facts; an attribute raises what kept it from being known."""
    return gpu_host.facts


@pytest.fixture(scope="session")
def gpu_expect(gpu_host: GpuHost) -> Expectation:
    """Give what the inventory declares of the host; empty if it declares nothing."""
    return gpu_host.expect


def value_fixture(name: str, doc: str) -> Any:
    @pytest.fixture(scope="session", name=name)
    def give(_gpu_target: Aim) -> object:
        target = _gpu_target.target
        if target.nothing:
            pytest.skip(target.nothing)
        return target.value

    give.__doc__ = doc
    return give


gpu_device: GpuDevice = value_fixture(
    "gpu_device",
    "Give a GPU of the host: one test for each that is expected, or seen where none is expected.",
)
gpu_required_parameter: str = value_fixture(
    "gpu_required_parameter", "Give a kernel parameter that must be in effect: one test for each."
)
gpu_forbidden_parameter: str = value_fixture(
    "gpu_forbidden_parameter", "Give a kernel parameter that must not be in effect: one test for each."
)


gpu_driver_parameter: ExpectedValue = value_fixture(
    "gpu_driver_parameter", "Give a parameter of the NVIDIA driver and its expected value: one test for each."
)
gpu_module_parameter: ExpectedValue = value_fixture(
    "gpu_module_parameter", "Give a kernel module's parameter and its expected value: one test for each."
)
gpu_expected_unit: ExpectedValue = value_fixture(
    "gpu_expected_unit", "Give a systemd unit and the state expected of it: one test for each."
)
gpu_absent_file: str = value_fixture("gpu_absent_file", "Give a file that must not exist: one test for each.")


@pytest.fixture(scope="session")
def gpu_kernel_command_line(gpu_host: GpuHost) -> KernelCommandLine:
    """Give the command line of the running kernel, read by the kernel's own rules."""
    return gpu_host.facts.kernel_command_line


@pytest.fixture(scope="session")
def gpu_kernel_release(gpu_host: GpuHost) -> str:
    """Give the release of the running kernel."""
    return gpu_host.facts.kernel_release


@pytest.fixture(scope="session")
def gpu_iommu_groups(gpu_host: GpuHost) -> IommuGroups:
    """Give the IOMMU groups; none at all is a state of its own (`.present`)."""
    return gpu_host.facts.iommu_groups


@pytest.fixture(scope="session")
def gpu_pci_functions(gpu_host: GpuHost) -> PciFunctions:
    """Give all PCI functions of the host."""
    return gpu_host.facts.pci_functions


@pytest.fixture(scope="session")
def gpu_pci_function(gpu_device: GpuDevice, gpu_pci_functions: PciFunctions) -> PciFunction:
    """
    Give the PCI function of the test's GPU.

    Raises:
        FactUnavailable: The host has no such function.
    """
    return gpu_pci_functions[gpu_device.pci_address]


@pytest.fixture(scope="session")
def gpu_iommu_group(gpu_pci_function: PciFunction, gpu_iommu_groups: IommuGroups) -> IommuGroup | None:
    """Give the IOMMU group of the test's GPU; None if it is in no group, so that no IOMMU handles it."""
    return gpu_iommu_groups.of(gpu_pci_function.address)


@pytest.fixture(scope="session")
def gpu_kernel_log(gpu_host: GpuHost) -> KernelLog:
    """Give the kernel's log of this boot; it may have a `.gap`."""
    return gpu_host.facts.kernel_log


@pytest.fixture(scope="session")
def gpu_kernel_faults(gpu_host: GpuHost) -> KernelFaults:
    """Give the faults in the kernel's log of this boot: by device, kind and class."""
    return gpu_host.facts.kernel_faults(gpu_host.expect.kernel_log)


@pytest.fixture(scope="session")
def gpu_driver_parameters(gpu_host: GpuHost) -> DriverParameters:
    """Give the parameters of the loaded NVIDIA driver."""
    return gpu_host.facts.driver_parameters


@pytest.fixture(scope="session")
def gpu_driver_version(gpu_host: GpuHost) -> DriverVersion:
    """Give the version of the loaded NVIDIA kernel driver."""
    return gpu_host.facts.driver_version


@pytest.fixture(scope="session")
def gpu_confidential(gpu_host: GpuHost) -> ConfidentialComputing:
    """Give the state of confidential computing on the host."""
    return gpu_host.facts.confidential


@pytest.fixture(scope="session")
def gpu_module_parameter_value(gpu_module_parameter: ExpectedValue, gpu_host: GpuHost) -> str:
    """Give the value in effect of the test's module parameter."""
    return gpu_host.facts.module_parameter(gpu_module_parameter.name)


@pytest.fixture(scope="session")
def gpu_unit_state(gpu_expected_unit: ExpectedValue, gpu_host: GpuHost) -> UnitState:
    """Give the state of the test's systemd unit."""
    return gpu_host.facts.unit(gpu_expected_unit.name)


@pytest.fixture(scope="session")
def gpu_absent_file_exists(gpu_absent_file: str, gpu_host: GpuHost) -> bool:
    """Tell whether the test's file exists after all."""
    return gpu_host.facts.file_exists(gpu_absent_file)


@pytest.fixture
def gpu_evidence(request: pytest.FixtureRequest) -> GpuEvidence:
    """Take evidence of a user's own test into its report."""
    return GpuEvidence(request.node.stash.setdefault(OBSERVED, []))


class GpuEvidence:
    """Takes raw text behind a test into its report: Allure attachments, JUnit properties."""

    def __init__(self, observed: list[Evidence]) -> None:
        self._observed = observed

    def attach(self, name: str, text: str) -> None:
        """Attach a text; it counts as an observation, without which no test about a host may pass."""
        from pytest_gpuinfra.evidence import evidence

        self._observed.append(evidence(name, text))
