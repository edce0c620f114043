"""Ordered pairs of GPUs, and chains through a third."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuinfra.pci_address import short_address


@dataclass(frozen=True, slots=True)
class DirectedPair:
    """
    An ordered pair of GPUs of one host.

    Attributes:
        host: Alias.
        src: PCI address that bytes come from.
        dst: PCI address that they go to.
        via: PCI address of a GPU between them, for a chain of three; None for a pair.
    """

    host: str
    src: str
    dst: str
    via: str | None = None

    def __str__(self) -> str:
        ends = [self.src, *([self.via] if self.via else []), self.dst]
        return f"{self.host}: GPU {' to '.join(short_address(address) for address in ends)}"
