"""Where the GPUs sit, and how their links have come up."""

from collections.abc import Callable

import pytest

from pytest_gpuinfra import FactUnavailable, GpuDevice, explain
from pytest_gpuinfra.subjects.pci.functions import PciFunction, PciFunctions
from pytest_gpuinfra.subjects.pci.link_judge import judge_link_width
from pytest_gpuinfra.subjects.verdict import Verdict

Judge = Callable[[Callable[[], Verdict]], Verdict]


@pytest.mark.gpu_expects("device.numa_node")
def test_numa_node_is_the_expected_one(gpu_device: GpuDevice, gpu_pci_function: PciFunction) -> None:
    """
    The GPU is attached to the declared NUMA node.

    Ranks and their host memory are pinned by it; a copy over the socket link costs bandwidth on every step.
    """
    assert gpu_pci_function.numa_node == gpu_device.expect.numa_node, explain(
        f"{gpu_device}: NUMA node",
        observed="the platform names none" if gpu_pci_function.numa_node is None else gpu_pci_function.numa_node,
        expected=gpu_device.expect.numa_node,
        why="SHM transport and host copies cross the socket link, and the container's CPU set is the wrong one",
        action="compare the slot with the board's manual, and NPS and SRAT settings in the BIOS",
    )


@pytest.fixture
def link_width(gpu_device: GpuDevice, gpu_pci_function: PciFunction, gpu_judge: Judge) -> Verdict:
    """Judge the lanes that the kernel reports."""
    return gpu_judge(
        lambda: judge_link_width(
            f"{gpu_device}: PCIe link width", gpu_pci_function.link_width, gpu_device.expect.link_width
        )
    )


@pytest.mark.gpu_expects("device.link_width")
def test_link_width_is_the_expected_one(link_width: Verdict) -> None:
    """
    The GPU's PCIe link came up with all of its lanes.

    A link that trained with fewer lanes works, and is slow; the width does not change with load.
    """
    assert link_width.ok, link_width.message


@pytest.fixture
def reachable_speed_gt_s(gpu_pci_function: PciFunction, gpu_pci_functions: PciFunctions) -> float:
    """Give the highest speed that both ends of the link are capable of, GT/s."""
    ends = [gpu_pci_function, *(gpu_pci_functions[address] for address in gpu_pci_function.upstream[-1:])]
    speeds = [end.max_link_speed_gt_s for end in ends]
    if None in speeds:
        raise FactUnavailable(
            f"max_link_speed of {' and '.join(end.address for end in ends)}", "the kernel does not know it"
        )
    return min(speed for speed in speeds if speed is not None)


@pytest.mark.gpu_expects("device.link_speed_gt_s")
def test_link_is_capable_of_the_expected_speed(gpu_device: GpuDevice, reachable_speed_gt_s: float) -> None:
    """
    The GPU and its slot can run the PCIe link at the declared speed.

    Idle GPUs lower the speed, so the speed of the moment proves nothing without load; what it can reach does.
    """
    assert reachable_speed_gt_s >= (gpu_device.expect.link_speed_gt_s or 0.0), explain(
        f"{gpu_device}: highest PCIe link speed",
        observed=f"{reachable_speed_gt_s:g} GT/s",
        expected=f"{gpu_device.expect.link_speed_gt_s:g} GT/s",
        why="host copies and SHM all-reduce lose bandwidth in proportion",
        action="see the slot's generation setting in the BIOS, and risers and retimers",
    )
