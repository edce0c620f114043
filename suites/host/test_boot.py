"""The kernel that runs, and what it was told at boot."""

from fnmatch import fnmatchcase

import pytest

from pytest_gpuinfra import Expectation, GpuHost, explain
from pytest_gpuinfra.subjects.boot.command_line import KernelCommandLine


@pytest.mark.gpu_expects("kernel_release")
def test_kernel_release_is_the_expected_one(
    gpu_host: GpuHost, gpu_expect: Expectation, gpu_kernel_release: str
) -> None:
    """
    The running kernel is the one that this host was proven with.

    IOMMU, SNP and driver behaviour change from kernel to kernel, and a reboot can start another one.
    """
    assert fnmatchcase(gpu_kernel_release, gpu_expect.kernel_release or ""), explain(
        f"{gpu_host.alias}: kernel release",
        observed=gpu_kernel_release,
        expected=gpu_expect.kernel_release,
        why="what was proven on this host was proven with another kernel",
        action="boot the expected kernel, or prove the host anew and change kernel_release in the inventory",
    )


@pytest.mark.gpu_judges("kernel_command_line.has")
def test_kernel_command_line_has_the_parameter(
    gpu_host: GpuHost, gpu_required_parameter: str, gpu_kernel_command_line: KernelCommandLine
) -> None:
    """
    A kernel parameter that the host needs is in effect.

    Of repeated parameters the kernel takes the last, and it reads nothing after `--`.
    """
    assert gpu_kernel_command_line.has(gpu_required_parameter), explain(
        f"{gpu_host.alias}: kernel parameter {gpu_required_parameter}",
        observed=f"not in effect on {gpu_kernel_command_line.text!r}",
        expected="in effect",
        why="the IOMMU and confidential computing are set up at boot by these parameters alone",
        action="add it to the boot loader's configuration, write that out, and reboot",
    )


@pytest.mark.gpu_judges("kernel_command_line.lacks")
def test_kernel_command_line_lacks_the_parameter(
    gpu_host: GpuHost, gpu_forbidden_parameter: str, gpu_kernel_command_line: KernelCommandLine
) -> None:
    """
    A kernel parameter that the host must not have is not in effect.

    One word left over from an experiment, such as iommu=pt, switches SNP off without any error.
    """
    assert not gpu_kernel_command_line.has(gpu_forbidden_parameter), explain(
        f"{gpu_host.alias}: kernel parameter {gpu_forbidden_parameter}",
        observed=f"in effect on {gpu_kernel_command_line.text!r}",
        expected="not in effect",
        why="it changes how every device's DMA is handled",
        action="remove it from the boot loader's configuration (and look for a later alias of it), and reboot",
    )
