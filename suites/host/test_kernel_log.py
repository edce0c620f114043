"""What the kernel has said about GPUs and the IOMMU since it booted."""

import pytest

from pytest_gpuinfra import GpuDevice, GpuHost, explain
from pytest_gpuinfra.subjects.kernel_log.faults import KernelFaults


@pytest.fixture
def iommu_faults(gpu_device: GpuDevice, gpu_kernel_faults: KernelFaults) -> str:
    """Describe the IOMMU faults by this GPU since boot; "" if the log is complete and holds none."""
    return gpu_kernel_faults.describe(("iommu",), gpu_device.pci_address)


@pytest.fixture
def driver_faults(gpu_device: GpuDevice, gpu_kernel_faults: KernelFaults) -> str:
    """Describe what the driver reported of this GPU since boot; "" if the log is complete and holds nothing."""
    return gpu_kernel_faults.describe(("xid", "sxid", "off-bus", "ras", "driver", "lockup"), gpu_device.pci_address)


@pytest.fixture
def initialisation_faults(gpu_device: GpuDevice, gpu_kernel_faults: KernelFaults) -> str:
    """Describe the failed initialisations of this GPU since boot; "" if the log is complete and holds none."""
    return gpu_kernel_faults.describe(("init", "bar", "mismatch"), gpu_device.pci_address)


@pytest.fixture
def bus_errors(gpu_device: GpuDevice, gpu_kernel_faults: KernelFaults) -> str:
    """Describe the errors of this GPU's PCIe links since boot; "" if the log is complete and holds none."""
    return gpu_kernel_faults.describe(("aer", "link", "machine"), gpu_device.pci_address)


@pytest.fixture
def nameless_faults(gpu_kernel_faults: KernelFaults) -> str:
    """Describe the faults since boot that name no device, or none that the host has."""
    return gpu_kernel_faults.describe_owned("nameless")


@pytest.fixture
def device_faults(gpu_kernel_faults: KernelFaults) -> str:
    """Describe the faults since boot by devices that are no GPU's; "" if the log is complete and holds none."""
    return gpu_kernel_faults.describe_owned("device")


@pytest.fixture
def memory_faults(gpu_kernel_faults: KernelFaults) -> str:
    """Describe the machine checks and out-of-memory kills since boot; "" if the log is complete and holds none."""
    return gpu_kernel_faults.describe_owned("memory")


@pytest.fixture
def other_faults(gpu_kernel_faults: KernelFaults) -> str:
    """Describe the faults since boot that no other check judges; "" if the log is complete and holds none."""
    return gpu_kernel_faults.describe_owned("host")


@pytest.fixture
def unknown_errors(gpu_kernel_faults: KernelFaults) -> str:
    """Give "" if the log is complete and every error by a driver in it is one that is known."""
    return gpu_kernel_faults.describe_unknown()


def test_no_iommu_fault_by_the_gpu(gpu_device: GpuDevice, iommu_faults: str) -> None:
    """
    The IOMMU has refused no access of this GPU since boot.

    A refused peer access is how the platform drops a copy that CUDA reports as done.
    """
    assert iommu_faults == "", explain(
        f"{gpu_device}: IOMMU faults since boot",
        observed=iommu_faults,
        expected="none",
        why="its DMA was dropped: peer copies and everything built on them are corrupt or hang",
        action="run the peer suite; if pairs are corrupt, set NCCL_P2P_DISABLE=1 for the service "
        "and switch the engine's own all-reduce off, or leave translation where nothing needs it",
    )


def test_no_xid_on_the_gpu(gpu_device: GpuDevice, driver_faults: str) -> None:
    """
    The driver has reported no fault of this GPU since boot.

    Xid codes of the application class are left out; one that nobody has classified counts, and so does distress
    without a code: a reset that is asked for, firmware that halted, an error that memory could not correct.
    """
    assert driver_faults == "", explain(
        f"{gpu_device}: driver faults since boot",
        observed=driver_faults,
        expected="none",
        why="the GPU has failed since this boot, and may be lost, slow, or wrong",
        action="do what the vendor's table says for the code; judge codes otherwise by expect.kernel_log.xid_class",
    )


def test_gpu_initialised_without_failure(gpu_device: GpuDevice, initialisation_faults: str) -> None:
    """
    The driver has brought this GPU up without a failed attempt.

    On Blackwell a failed FSP boot (0x177) means an identity domain; nothing short of a reboot clears it.
    """
    assert initialisation_faults == "", explain(
        f"{gpu_device}: failed initialisation since boot",
        observed=initialisation_faults,
        expected="none",
        why="the driver cannot use this GPU until the cause is gone and the machine was rebooted",
        action="if it names FSP status 0x177: take the identity domain back and reboot; "
        "else see the lines around it in the kernel log",
    )


def test_no_pcie_error_by_the_gpu(gpu_device: GpuDevice, bus_errors: str) -> None:
    """
    No PCIe port from this GPU up to its root has reported an uncorrected error or a lost link since boot.

    Such errors precede a card that falls off the bus.
    """
    assert bus_errors == "", explain(
        f"{gpu_device}: PCIe errors since boot",
        observed=bus_errors,
        expected="none",
        why="the link loses data or is about to fail",
        action="reseat the card and its riser, look at its power, then watch the counters",
    )


def test_no_gpu_fault_without_a_known_device(gpu_host: GpuHost, nameless_faults: str) -> None:
    """
    The kernel log holds no fault that cannot be laid to one of the host's devices.

    Some lines name no device, and some a device that has gone.
    """
    assert nameless_faults == "", explain(
        f"{gpu_host.alias}: GPU faults since boot without a known device",
        observed=nameless_faults,
        expected="none",
        why="a GPU failed, and the log does not say which",
        action="read the kernel log around these lines",
    )


def test_no_fault_by_another_device(gpu_host: GpuHost, device_faults: str) -> None:
    """
    The kernel has reported no fault since boot by a device that is no GPU: an NVSwitch, a NIC, a disk.

    What stands above a GPU, and what is on its card, is judged with the GPU.
    """
    assert device_faults == "", explain(
        f"{gpu_host.alias}: faults since boot by devices other than its GPUs",
        observed=device_faults,
        expected="none",
        why="GPUs reach each other, the network and the weights through such devices",
        action="see what the device is (lspci -s ADDRESS); what the host can do without goes into "
        "expect.kernel_log.allow",
    )


def test_no_machine_check_and_no_memory_kill(gpu_host: GpuHost, memory_faults: str) -> None:
    """
    The kernel has logged no machine check and killed no process of the service for want of memory since boot.

    A rank that was killed leaves a service that hangs in its next collective. A kill by the limit of a control group
    that is not the service's does not count; one for want of the machine's memory does.
    """
    assert memory_faults == "", explain(
        f"{gpu_host.alias}: machine checks and out-of-memory kills since boot",
        observed=memory_faults,
        expected="none",
        why="the hardware is failing, or the service is larger than the host",
        action="for a machine check see the board's event log; for a kill see the service's memory and the log's lines",
    )


def test_no_fault_that_no_other_check_judges(gpu_host: GpuHost, other_faults: str) -> None:
    """
    The kernel log holds no fault of the platform itself: the IOMMU, a slot, confidential computing.

    It names no device that a check of its own could be about.
    """
    assert other_faults == "", explain(
        f"{gpu_host.alias}: faults of the platform since boot",
        observed=other_faults,
        expected="none",
        why="what the GPUs depend on has failed since this boot",
        action="read the kernel log around these lines; what is harmless here goes into expect.kernel_log.allow",
    )


def test_every_error_by_a_driver_is_known(gpu_host: GpuHost, unknown_errors: str) -> None:
    """
    The kernel log holds no error by a driver of the GPUs, the IOMMU, PCIe or memory that nothing here recognises.

    A line that nobody has classified may be a GPU's last word: it ends in an error, and names the line.
    """
    assert unknown_errors == "", explain(
        f"{gpu_host.alias}: unknown errors by drivers since boot",
        observed=unknown_errors,
        expected="none",
        why="nobody knows what they mean",
        action="judge each by hand; expect.kernel_log.allow takes a pattern for what is harmless",
    )
