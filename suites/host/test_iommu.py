"""IOMMU groups of the GPUs: their type, and who shares them."""

import pytest

from pytest_gpuinfra import FactUnavailable, GpuDevice, GpuHost, explain
from pytest_gpuinfra.subjects.boot.dma_mode import judge_group_type
from pytest_gpuinfra.subjects.kernel_log.iommu_boot import parse_iommu_boot
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
