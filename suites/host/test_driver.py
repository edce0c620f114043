"""The NVIDIA kernel driver and the kernel modules: versions and parameters in effect."""

from fnmatch import fnmatchcase

import pytest

from pytest_gpuinfra import Expectation, ExpectedValue, GpuHost, explain
from pytest_gpuinfra.subjects.gpu.driver import DriverParameters, DriverVersion, same_parameter_value


@pytest.mark.gpu_expects("driver_version")
def test_driver_version_is_the_expected_one(
    gpu_host: GpuHost, gpu_expect: Expectation, gpu_driver_version: DriverVersion
) -> None:
    """
    The loaded NVIDIA kernel driver is the declared one.

    A package upgrade takes effect at the next reboot, and then the container's libraries no longer match.
    """
    assert fnmatchcase(gpu_driver_version.version, gpu_expect.driver_version or ""), explain(
        f"{gpu_host.alias}: NVIDIA kernel driver",
        observed=gpu_driver_version.version,
        expected=gpu_expect.driver_version,
        why="user-space libraries of another version refuse to start (driver/library version mismatch)",
        action="load the expected driver, or bring host and container to the same version and change the inventory",
    )


@pytest.mark.gpu_judges("driver_parameters")
def test_driver_parameter_has_the_expected_value(
    gpu_host: GpuHost, gpu_driver_parameter: ExpectedValue, gpu_driver_parameters: DriverParameters
) -> None:
    """
    A parameter of the NVIDIA driver is in effect with the declared value.

    DmaRemapPeerMmio, for one, decides whether peer copies under translation are attempted at all.
    """
    observed = str(gpu_driver_parameters[gpu_driver_parameter.name])

    assert same_parameter_value(observed, gpu_driver_parameter.value), explain(
        f"{gpu_host.alias}: NVIDIA driver parameter {gpu_driver_parameter.name}",
        observed=observed,
        expected=gpu_driver_parameter.value,
        why="what was proven on this host was proven with the expected value",
        action="set NVreg_... in modprobe.d, rebuild the initramfs, and load the driver again or reboot",
    )


@pytest.mark.gpu_judges("module_parameters")
def test_module_parameter_has_the_expected_value(
    gpu_host: GpuHost, gpu_module_parameter: ExpectedValue, gpu_module_parameter_value: str
) -> None:
    """
    A kernel module's parameter is in effect with the declared value.

    What stands in modprobe.d and what the loaded module uses are two facts.
    """
    assert same_parameter_value(gpu_module_parameter_value, gpu_module_parameter.value), explain(
        f"{gpu_host.alias}: module parameter {gpu_module_parameter.name}",
        observed=gpu_module_parameter_value,
        expected=gpu_module_parameter.value,
        why="the module does something else than what this host was set up for",
        action="correct modprobe.d or the kernel command line, and load the module again or reboot",
    )
