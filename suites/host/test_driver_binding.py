"""Which PCI functions are there, and which driver each is bound to."""

from contextlib import suppress

import pytest

from pytest_gpuinfra import Expectation, FactUnavailable, GpuDevice, GpuHost, GpuInfraError, explain
from pytest_gpuinfra.subjects.pci.binding import companion_functions, misbound, unexpected_gpus
from pytest_gpuinfra.subjects.pci.functions import PciFunction, PciFunctions
from pytest_gpuinfra.subjects.pci.iommu import IommuGroups


@pytest.fixture
def unexpected(gpu_expect: Expectation, gpu_pci_functions: PciFunctions) -> tuple[str, ...]:
    """Give the GPUs of the host that no row of the inventory names."""
    found = unexpected_gpus(gpu_expect.devices, gpu_pci_functions)
    if not found and gpu_pci_functions.unread:
        raise gpu_pci_functions.unread[0]
    return found


@pytest.fixture
def supposed(gpu_host: GpuHost, gpu_expect: Expectation) -> tuple[str, ...]:
    """Give what supposes GPUs on the nvidia driver: keys of the inventory, and the driver itself where it is loaded."""
    rows = [(address, row.driver) for row in gpu_expect.devices for address in row.pci]
    keys = {
        "devices": any(not gpu_host.elsewhere(address, driver) for address, driver in rows),
        "gpu": gpu_expect.gpu != type(gpu_expect.gpu)(),
        f"peer_access = {gpu_expect.peer_access!r}": gpu_expect.peer_access in ("correct", "blocked"),
        "model.participation.gpus": bool(gpu_expect.model.participation.gpus),
        "driver_version": gpu_expect.driver_version is not None,
        "driver_parameters": bool(gpu_expect.driver_parameters),
    }
    found = [f"the inventory's {name}" for name, given in keys.items() if given]
    with suppress(GpuInfraError):  # no file tells of a driver that is not loaded
        found.append(f"the loaded NVIDIA driver {gpu_host.facts.driver_version.version}")
    return tuple(found)


@pytest.fixture
def seen(gpu_host: GpuHost, gpu_pci_functions: PciFunctions, supposed: tuple[str, ...]) -> tuple[str, ...]:
    """Give the GPUs on the bus: those that CUDA is to use, where something supposes such; every one else."""
    gpus = {gpu.address for gpu in gpu_pci_functions.gpus}
    if supposed:
        gpus &= set(gpu_host.computing_gpus)
    if gpu_pci_functions.unread:
        first = gpu_pci_functions.unread[0]
        more = len(gpu_pci_functions.unread) - 1
        raise FactUnavailable(
            f"PCI functions of {gpu_host.alias}",
            f"{first.reason}{f', and {more} more' if more else ''}: whether a GPU is hidden there cannot be said",
            remedy=first.remedy or "read the file on the target as root",
        )
    if not gpus and not supposed:
        pytest.skip(f"no GPU is expected of {gpu_host.alias}, and none was seen there")
    return tuple(sorted(gpus))


@pytest.fixture
def companions(
    gpu_device: GpuDevice, gpu_pci_functions: PciFunctions, gpu_iommu_groups: IommuGroups
) -> tuple[PciFunction, ...]:
    """Give the card's other functions and the GPU's group-mates, bridges left out."""
    found = companion_functions(gpu_device.pci_address, gpu_pci_functions, gpu_iommu_groups)
    if not found:
        pytest.skip(f"{gpu_device} has no other function and no group-mate")
    return found


@pytest.fixture
def binding(gpu_pci_function: PciFunction) -> str:
    """Give the driver's name; "none" where the function is bound to none."""
    return gpu_pci_function.driver or "none"


def test_gpus_are_seen(gpu_host: GpuHost, seen: tuple[str, ...], supposed: tuple[str, ...]) -> None:
    """
    The host shows its GPUs, as far as anything supposes some, and nothing on its PCI bus hides whether it is one.

    A host that has lost all of its GPUs has nothing left that could fail.
    """
    assert seen, explain(
        f"{gpu_host.alias}: GPUs for the nvidia driver",
        observed="none on the PCI bus",
        expected=f"one or more, by {', '.join(supposed)}",
        why="nothing else is checked of GPUs that are not there",
        action="see the kernel log for link and power events and lspci, reseat the cards, or correct the inventory",
    )


@pytest.mark.gpu_expects("devices")
def test_device_is_present(gpu_device: GpuDevice, gpu_pci_functions: PciFunctions) -> None:
    """
    The GPU is on the PCI bus at its address.

    A card that fell off the bus, lost power or moved to another slot is absent without any error message.
    """
    assert gpu_device.pci_address in gpu_pci_functions, explain(
        f"{gpu_device}: presence on the PCI bus",
        observed="no function at this address",
        expected="present",
        why="everything that counts on this GPU fails, or runs on fewer GPUs than it should",
        action="see the kernel log for link and power events, reseat the card, or correct the address in the inventory",
    )


@pytest.mark.gpu_expects("devices")
def test_every_gpu_of_the_host_is_expected(gpu_host: GpuHost, unexpected: tuple[str, ...]) -> None:
    """
    The host has no GPU that the inventory does not name.

    A GPU that nobody declared is judged by nobody.
    """
    assert unexpected == (), explain(
        f"{gpu_host.alias}: GPUs that no row of the inventory names",
        observed=", ".join(unexpected),
        expected="none",
        why="nothing is checked of them, and addresses may have moved",
        action="add them to the inventory, or find out why the addresses changed",
    )


@pytest.mark.gpu_expects("device.driver")
def test_device_is_bound_to_the_expected_driver(gpu_device: GpuDevice, binding: str) -> None:
    """
    The GPU is bound to the declared driver.

    One host can serve models on some GPUs and give others to a VM; which is which is decided here.
    """
    assert binding == gpu_device.expect.driver, explain(
        f"{gpu_device}: driver",
        observed=binding,
        expected=gpu_device.expect.driver,
        why="the service sees the wrong set of GPUs, or the VM does not start",
        action="see driver_override and modprobe.d (an override set by hand is lost at a reboot), "
        "then unbind and probe again, or reboot",
    )


@pytest.mark.gpu_expects("device.driver")
@pytest.mark.gpu_judges("device.companion_driver")
def test_companion_functions_follow(gpu_device: GpuDevice, companions: tuple[PciFunction, ...]) -> None:
    """
    The card's other functions and its group-mates are bound so that the GPU can be used as declared.

    The audio function of a card given to a VM must leave its host driver too, or the whole group cannot go.
    """
    wrong = misbound(companions, gpu_device.expect.driver, gpu_device.expect.companion_driver)
    assert wrong.observed == "", explain(
        f"{gpu_device}: other functions of the card and of its IOMMU group",
        observed=wrong.observed,
        expected=wrong.expected,
        why="VFIO refuses a group of which one function is still with a host driver",
        action="bind them with the GPU, or keep their driver away (softdep or driver_override)",
    )
