"""
Whose memory an IOMMU fault's address is: the PCI function and BAR that hold it.

Under translation a GPU that reaches for another one by its physical address faults at exactly that address,
so the address tells who tried to reach whom. An address that no BAR holds is an I/O virtual address.

Source: Linux Documentation/PCI/sysfs-pci.rst (`resource`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.subjects.pci.functions import PciFunction
from pytest_gpuinfra.subjects.pci.pci_bar import Bar

_PCI_BRIDGE = 0x0604
_ROM = 6
_NVIDIA = 0x10DE


@dataclass(frozen=True, slots=True)
class AddressOwner:
    """
    The function and region that hold an address.

    Attributes:
        address: Physical address that was looked up.
        function: PCI address of the owner.
        bar: Region of it.
        bar_name: Name that people use. NVIDIA counts the regions of a GPU, so its BAR1 is the second one,
            though a 64-bit BAR0 makes that BAR2 to the kernel; for others it is the kernel's number.
    """

    address: int
    function: str
    bar: Bar
    bar_name: str

    def __str__(self) -> str:
        return f"{self.bar_name} of {self.function} (+{self.address - self.bar.start:#x})"


def decode_address(address: int, functions: Iterable[PciFunction]) -> AddressOwner | None:
    """
    Find the function whose BAR holds a physical address.

    Args:
        address: Address of an IOMMU fault.
        functions: Functions of the same boot; bridges are passed over: their windows hold all that is below.

    Returns:
        Owner; None if no region of a function that is not a bridge holds it.

    Raises:
        FactUnavailable: No region holds it, and a function's class or regions could not be read.
    """
    unread: FactUnavailable | None = None
    for function in functions:
        try:
            owner = _owner(address, function)
        except FactUnavailable as error:
            unread = unread or error
            continue
        if owner:
            return owner
    if unread:
        raise unread
    return None


def _owner(address: int, function: PciFunction) -> AddressOwner | None:
    if function.class_code >> 8 == _PCI_BRIDGE:
        return None
    bars = [bar for bar in function.bars if bar.index <= _ROM]
    for place, bar in enumerate(bars):
        if bar.holds(address):
            number = place if function.vendor_id == _NVIDIA else bar.index
            name = "ROM" if bar.index == _ROM else f"BAR{number}"
            return AddressOwner(address, function.address, bar, name)
    return None
