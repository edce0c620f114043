"""
All faults of a kernel log, in log order.

Each family of faults has a parser and its own kind of value; this puts them together.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_gpuinfra.subjects.kernel_log.aer import parse_aer_errors
from pytest_gpuinfra.subjects.kernel_log.amdgpu import parse_amd_gpu_faults
from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.gpu_init import parse_gpu_init_faults
from pytest_gpuinfra.subjects.kernel_log.iommu_faults import parse_iommu_faults
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry
from pytest_gpuinfra.subjects.kernel_log.machine import parse_machine_faults
from pytest_gpuinfra.subjects.kernel_log.sxid import parse_sxids
from pytest_gpuinfra.subjects.kernel_log.xid import parse_xids

_PARSERS = (
    parse_iommu_faults,
    parse_xids,
    parse_sxids,
    parse_gpu_init_faults,
    parse_aer_errors,
    parse_amd_gpu_faults,
    parse_machine_faults,
)


def parse_kernel_faults(entries: Iterable[KernelLogEntry]) -> tuple[KernelFault, ...]:
    """
    Pick every fault that an inference host cares about out of the kernel log.

    Args:
        entries: Entries in log order: a KernelLog, or its entries after some record.

    Returns:
        Faults in log order; () if there are none, which says nothing unless the log was readable. Shape (n,).
    """
    entries = tuple(entries)
    place = {id(entry): index for index, entry in enumerate(entries)}
    faults = [fault for parse in _PARSERS for fault in parse(entries)]
    return tuple(sorted(faults, key=lambda fault: place[id(fault.entry)]))
