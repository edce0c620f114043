"""Faults in a host's kernel log, weighed by what the inventory says of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError
from pytest_gpuinfra.inventory.inventory import KernelLogExpectation
from pytest_gpuinfra.masking import first_of
from pytest_gpuinfra.pci_address import short_address
from pytest_gpuinfra.subjects.kernel_log.address import decode_address
from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.kinds import parse_kernel_faults
from pytest_gpuinfra.subjects.kernel_log.log import KernelLog
from pytest_gpuinfra.subjects.kernel_log.severity import weigh
from pytest_gpuinfra.subjects.pci.functions import PciFunctions

GPU_KINDS = ("iommu", "xid", "sxid", "off-bus", "init", "ras")
_SHOWN = 3


@dataclass(frozen=True)
class KernelFaults:
    """
    What the kernel logged about GPUs, the IOMMU, PCIe and memory since boot.

    Attributes:
        log: The log.
        functions: PCI functions of the host, to tell whose address a fault is about.
        expect: What the inventory says of the log.
        all: Every fault, in log order, those included that do not count.
    """

    log: KernelLog
    functions: PciFunctions
    expect: KernelLogExpectation
    all: tuple[KernelFault, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "all", parse_kernel_faults(self.log))

    @cached_property
    def counting(self) -> tuple[KernelFault, ...]:
        """The faults that count against the host: not of a harmless class, not allowed by the inventory."""
        allowed = [re.compile(pattern) for pattern in self.expect.allow]
        overrides = {int(code): verdict for code, verdict in self.expect.xid_class.items()}
        return tuple(
            fault
            for fault in self.all
            if weigh(fault, overrides).counts and not any(pattern.search(fault.message) for pattern in allowed)
        )

    def of(self, kinds: Sequence[str], device: str | None) -> tuple[KernelFault, ...]:
        """
        Give the faults that count, by kind and device.

        Args:
            kinds: As in KernelFault.kind.
            device: PCI address of a function; faults by any function of the same card count. None for any device.
        """
        return tuple(
            fault
            for fault in self.counting
            if fault.kind in kinds and (device is None or _card(fault.device) == _card(device))
        )

    def describe(self, kinds: Sequence[str], device: str | None) -> str:
        """
        Put the faults of a device into words; "" if there are none.

        Raises:
            FactUnavailable: There are none in what is left of the log, and its beginning or a piece is missing;
                or a line speaks of such a fault in a form that this version does not know.
        """
        return self._words(self.of(kinds, device))

    def describe_nameless(self) -> str:
        """
        Put into words the GPU faults that name no device, or one that the host does not have (any more).

        Raises:
            FactUnavailable: As `describe`.
        """
        known = {_card(function.address) for function in self.functions}
        faults = [
            fault
            for fault in self.counting
            if fault.kind in GPU_KINDS and (fault.device is None or _card(fault.device) not in known)
        ]
        return self._words(faults)

    def as_text(self, device: str | None) -> str:
        """Give the evidence: what was read, and the faults found in it, those that do not count marked."""
        first = self.log.entries[0]
        lines = [
            f"{len(self.log)} entries of {self.log.source}"
            + (f"; incomplete: {self.log.gap}" if self.log.gap else ", complete since boot"),
            f"first: {first_of(first.message, 100)}",
        ]
        shown = [f for f in self.all if device is None or f.device is None or _card(f.device) == _card(device)]
        lines.append(
            f"{len(shown)} reports of faults" + (f" by {short_address(device)} or by no named device" if device else "")
        )
        counting = set(map(id, self.counting))
        lines += [("  " if id(f) in counting else "  (does not count) ") + f.message for f in shown]
        return "\n".join(lines)

    def _words(self, faults: Sequence[KernelFault]) -> str:
        if faults:
            total = sum(fault.count for fault in faults)
            shown = "; ".join(self._one(fault) for fault in faults[:_SHOWN])
            more = f"; and {len(faults) - _SHOWN} more reports" if len(faults) > _SHOWN else ""
            return f"{total}: {shown}{more}"
        unreadable = [fault for fault in self.all if fault.kind == "unreadable"]
        if unreadable:
            raise FactUnavailable(
                self.log.source,
                f"a line speaks of a fault in a form that is not known here: {first_of(unreadable[0].message, 160)!r}",
                remedy="judge it by hand; expect.kernel_log.allow takes a pattern for it; and report it",
            )
        if self.log.gap:
            raise FactUnavailable(
                self.log.source,
                f"no such fault in what is left of it, but {self.log.gap}",
                remedy="keep the journal (Storage=persistent) or enlarge the ring buffer (log_buf_len=), then reboot",
            )
        return ""

    def _one(self, fault: KernelFault) -> str:
        target = self._reached(fault)
        return f"{first_of(fault.message, 200)}{f' [{target}]' if target else ''}"

    def _reached(self, fault: KernelFault) -> str:
        """Say whose memory a refused access was for; "" if no device of the host holds the address."""
        if fault.kind != "iommu" or fault.address is None:
            return ""
        try:
            owner = decode_address(fault.address, self.functions)
        except GpuInfraError:
            return ""
        if owner is None:
            return ""
        who = short_address(fault.device) if fault.device else "a device"
        return f"{who} tried to reach {owner.bar_name} of {short_address(owner.function)}"


def _card(address: str | None) -> str | None:
    return None if address is None else address.rpartition(".")[0]
