"""IOMMU groups of the GPUs: their type, and who shares them."""

import pytest

from pytest_gpuinfra import FactUnavailable, GpuDevice, GpuHost, GpuInfraError, explain
from pytest_gpuinfra.subjects.boot.dma_mode import judge_group_type
from pytest_gpuinfra.subjects.kernel_log.iommu_boot import parse_iommu_boot
from pytest_gpuinfra.subjects.pci.acs import bridges_above, judge_acs
from pytest_gpuinfra.subjects.pci.functions import PciFunctions
from pytest_gpuinfra.subjects.pci.iommu import IommuGroup
from pytest_gpuinfra.subjects.verdict import Verdict


@pytest.fixture
def group_type(gpu_host: GpuHost, gpu_device: GpuDevice, gpu_iommu_group: IommuGroup | None) -> Verdict:
    """
    Judge the type of the GPU's group; where this kernel shows none, by its log at boot and its command line.

    Raises:
        FactUnavailable: None of them tells.
    """
    boot = line = None
    if gpu_iommu_group is not None and not gpu_iommu_group.shows_type:
        boot = parse_iommu_boot(gpu_host.facts.kernel_log.entries)
        line = gpu_host.facts.kernel_command_line
    verdict = judge_group_type(gpu_iommu_group, gpu_device.expect.group_type or "", boot=boot, line=line).settled()
    if verdict.ending == "skip":
        pytest.skip(verdict.reason)
    return verdict


@pytest.fixture
def group_mates(
    gpu_device: GpuDevice, gpu_iommu_group: IommuGroup | None, gpu_pci_functions: PciFunctions
) -> tuple[str, ...]:
    """Give the other functions in the GPU's group, bridges left out."""
    if gpu_iommu_group is None:
        raise FactUnavailable(
            f"IOMMU group of {gpu_device}",
            "it is in no group",
            remedy="is the IOMMU on? (BIOS, kernel command line)",
        )
    others = [member for member in gpu_iommu_group.members if member != gpu_device.pci_address]
    return tuple(member for member in others if gpu_pci_functions[member].class_code >> 8 != 0x0604)


@pytest.fixture
def access_control(gpu_host: GpuHost, gpu_device: GpuDevice, gpu_pci_functions: PciFunctions) -> Verdict:
    """
    Judge the bridges above the GPU; skip where its peers need not reach it, or reach it by another way than PCIe.

    Raises:
        FactUnavailable: The registers of one cannot be read, or its place on the bus.
    """
    if gpu_host.expect.peer_access != "correct":
        pytest.skip(f"inventory does not expect peer_access = 'correct' of {gpu_host.alias}")
    if gpu_device.pci_address not in gpu_host.computing_gpus:
        pytest.skip(f"{gpu_device} is to be on another driver than nvidia")
    if fabric_joins(gpu_host, gpu_device):
        pytest.skip(f"{gpu_device} is joined to its peers by an NVLink fabric, which no bridge redirects")
    verdict = judge_acs(bridges_above(gpu_pci_functions[gpu_device.pci_address], gpu_pci_functions)).settled()
    if verdict.ending == "skip":
        pytest.skip(verdict.reason)
    return verdict


def fabric_joins(host: GpuHost, device: GpuDevice) -> bool:
    """Tell whether the driver says that the GPU is part of an NVLink fabric."""
    try:
        rows = [row for row in host.facts.gpu_table if row.pci_address == device.pci_address]
    except GpuInfraError:
        return False
    states = [row.values.get("fabric.state") for row in rows]
    return any(state is not None and state.text == "Completed" for state in states)


@pytest.mark.gpu_expects("device.group_type")
def test_iommu_group_type_is_the_expected_one(gpu_device: GpuDevice, group_type: Verdict) -> None:
    """
    The GPU's IOMMU group has the declared type.

    Under translation (DMA, DMA-FQ) peer copies between PCIe GPUs may be corrupt although CUDA offers them;
    under identity SEV-SNP cannot be had, and Blackwell's firmware fails to boot.
    """
    assert group_type.ok, explain(
        f"{gpu_device}: IOMMU group type",
        observed=group_type.observed,
        expected=group_type.expected,
        why=group_type.why,
        action=group_type.action,
    )


def test_no_bridge_above_redirects_peers(gpu_device: GpuDevice, access_control: Verdict) -> None:
    """
    No bridge above a GPU whose peers must reach it sends their traffic up to the root complex.

    What counts is the control register of access control services, which the kernel or a BIOS sets at each boot.
    """
    assert access_control.ok, explain(
        f"{gpu_device}: access control of the bridges above it",
        observed=access_control.observed,
        expected=access_control.expected,
        why=access_control.why,
        action=access_control.action,
    )


@pytest.mark.gpu_expects("device.group_mates")
def test_iommu_group_is_shared_only_as_expected(gpu_device: GpuDevice, group_mates: tuple[str, ...]) -> None:
    """
    The GPU shares its IOMMU group with the declared functions and with nothing else.

    A group is given to a VM as a whole: a mate that stays with the host keeps the GPU from being passed through.
    """
    assert group_mates == tuple(sorted(gpu_device.expect.group_mates or ())), explain(
        f"{gpu_device}: other functions in its IOMMU group",
        observed=", ".join(group_mates) or "none",
        expected=", ".join(gpu_device.expect.group_mates or ()) or "none",
        why="all functions of a group can reach each other, and go to a VM together or not at all",
        action="look at the ACS capabilities of the bridges above it, and at the slot it sits in",
    )
