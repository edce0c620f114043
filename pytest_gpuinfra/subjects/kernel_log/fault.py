"""What every fault in the kernel log has in common, whoever logged it."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFault:
    """
    One fault that the kernel or a driver logged.

    Attributes:
        kind: "iommu", "xid", "sxid", "off-bus", "init", "mismatch" (driver and library), "bar" (memory region without a
            place), "aer", "link" (of a slot), "mce", "oom", "ras", "driver" (its words of distress), "lockup" (in a
            driver's code), "machine" (IOMMU, confidential computing), "notice";
            "unreadable" for a line that speaks of a fault in a form that this version does not know, its family in
            `code`; "unknown" for an error by a driver that nothing recognises.
        entry: Log entry that it stands in.
        device: PCI address of the device that it is about; None if the entry does not tell.
        code: Xid or SXid number, or event or signature by the logger's own name; None without one.
        address: Address that was to be reached, as the device saw it; None without one.
        access: "read", "write", or another word of the logger's; None if it does not tell.
        count: How many of it there were at least, those included that the kernel's rate limit held back.
    """

    kind: str
    entry: KernelLogEntry
    device: str | None = None
    code: int | str | None = None
    address: int | None = None
    access: str | None = None
    count: int = 1

    @property
    def message(self) -> str:
        """Text of the log entry, in one line."""
        return " ".join(self.entry.message.split())

    @property
    def line(self) -> int:
        """Line of the source that the entry begins at, from 1."""
        return self.entry.line
