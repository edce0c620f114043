"""What the kernel's log says against the GPUs of a host."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuinfra.masking import first_of
from pytest_gpuinfra.subjects.kernel_log.aer import AerError
from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.iommu_fault import IommuFault
from pytest_gpuinfra.subjects.kernel_log.kinds import parse_kernel_faults
from pytest_gpuinfra.subjects.kernel_log.log import KernelLog, KernelLogEntry
from pytest_gpuinfra.subjects.kernel_log.severity import root_xid, weigh
from pytest_gpuinfra.subjects.kernel_log.xid import Xid
from pytest_gpuinfra.subjects.verdict import Verdict

GPU_DRIVERS = frozenset({"nvidia", "nvidia-current", "nouveau", "amdgpu", "radeon", "i915", "xe", "habanalabs"})
_ALWAYS_GPU = frozenset({"xid", "sxid", "off-bus", "init", "ras", "mismatch"})
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class SortedFaults:
    """
    Faults of a log by what they mean for the GPUs.

    Attributes:
        against: Faults by a GPU that count. Shape (n,).
        mild: Faults by a GPU, or notices, that do not count.
        others: Faults by devices that are no GPU.
        nameless: IOMMU faults of which nobody can tell whose they are.
        unreadable: Lines that speak of a fault in an unknown form.
    """

    against: tuple[KernelFault, ...]
    mild: tuple[KernelFault, ...]
    others: tuple[KernelFault, ...]
    nameless: tuple[KernelFault, ...]
    unreadable: tuple[KernelFault, ...]


def sort_faults(
    faults: Sequence[KernelFault], gpus: Collection[str], overrides: Mapping[int, str] | None = None
) -> SortedFaults:
    """
    Sort a log's faults by whether they are a GPU's, and whether they count.

    Args:
        faults: In log order.
        gpus: PCI addresses of the devices under test; a fault by another function of the same card is theirs.
            A device bound to a GPU's driver is one of them without being named.
        overrides: The user's own verdict by Xid code.
    """
    cards = {address.rpartition(".")[0] for address in gpus}
    groups: dict[str, list[KernelFault]] = {
        "against": [],
        "mild": [],
        "others": [],
        "nameless": [],
        "unreadable": [],
    }
    for fault in faults:
        groups[_group(fault, cards, overrides or {})].append(fault)
    return SortedFaults(**{name: tuple(found) for name, found in groups.items()})


def judge_kernel_log(
    log: KernelLog,
    gpus: Collection[str],
    *,
    overrides: Mapping[int, str] | None = None,
    entries: Sequence[KernelLogEntry] | None = None,
) -> Verdict:
    """
    Judge a log, or some of its entries, by the faults of the devices under test.

    Args:
        log: The kernel's log of this boot.
        gpus: PCI addresses of the devices under test.
        overrides: The user's own verdict by Xid code: "ignore" or "fail".
        entries: Entries to judge instead of the whole log, such as those since a load began.
            Then what the log lacks elsewhere does not matter.
    """
    found = sort_faults(parse_kernel_faults(log if entries is None else entries), gpus, overrides)
    warnings = tuple(_words(fault) for fault in found.mild + found.others)
    ending, observed = "ok", f"{len(log if entries is None else entries)} entries, no fault of a GPU"
    if found.against:
        root = root_xid(found.against)
        ending = "wrong"
        shown = "; ".join(_words(fault) for fault in found.against[:_SHOWN])
        more = f"; and {len(found.against) - _SHOWN} more" if len(found.against) > _SHOWN else ""
        observed = shown + more + (f"; it began with Xid {root.number}" if root and _several_xids(found) else "")
    elif found.unreadable or found.nameless:
        ending = "error"
        doubtful = (*found.unreadable, *found.nameless)
        observed = f"cannot tell whether a GPU is at fault: {first_of(doubtful[0].message, 200)}"
    elif log.gap and entries is None:
        ending, observed = "error", f"no fault in what is left of the log, but {log.gap}"
    return Verdict(
        ending=ending,  # type: ignore[arg-type]
        subject="kernel log",
        observed=observed,
        expected="no fault of a GPU",
        why="a GPU that faulted since boot may be lost, slow, or wrong",
        action="do what the table says for the code; read the log attached to this test",
        warnings=warnings,
    )


def driver_loaded_at_s(log: KernelLog) -> float | None:
    """Give when the NVIDIA driver was loaded, seconds since boot; None if the log does not tell."""
    return next((entry.time_s for entry in log if "NVRM: loading NVIDIA" in entry.message), None)


def _group(fault: KernelFault, cards: Collection[str], overrides: Mapping[int, str]) -> str:
    if fault.kind == "unreadable":
        return "unreadable"
    by_gpu = fault.kind in _ALWAYS_GPU or (fault.device or "").rpartition(".")[0] in cards
    if isinstance(fault, IommuFault | AerError):
        by_gpu = by_gpu or fault.driver in GPU_DRIVERS
    if isinstance(fault, IommuFault) and fault.device is None:
        return "nameless"
    if not by_gpu and fault.kind != "notice":
        return "others"
    return "against" if weigh(fault, overrides).counts else "mild"


def _several_xids(found: SortedFaults) -> bool:
    return len({fault.code for fault in found.against + found.mild if isinstance(fault, Xid)}) > 1


def _words(fault: KernelFault) -> str:
    times = f"at least {fault.count} times: " if fault.count > 1 else ""
    return f"{times}{first_of(fault.message, 200)}"
