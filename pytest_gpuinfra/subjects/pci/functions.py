"""
All PCI functions of a host.

Source: Linux Documentation/ABI/testing/sysfs-bus-pci: one directory a function under /sys/bus/pci/devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Tree
from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError, ParseError
from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.pci.function import PciFunction

__all__ = ["PciFunction", "PciFunctions", "normalise_pci_address", "parse_pci_functions"]

_DEVICES = "/sys/bus/pci/devices"


@dataclass(frozen=True, slots=True)
class PciFunctions:
    """
    All PCI functions of a host.

    Attributes:
        functions: By address. Shape (n,).
    """

    functions: tuple[PciFunction, ...]

    def __iter__(self) -> Iterator[PciFunction]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)

    def __contains__(self, address: object) -> bool:
        return any(function.address == address for function in self.functions)

    def __getitem__(self, address: str) -> PciFunction:
        """
        Give one function by address, any spelling.

        Raises:
            FactUnavailable: The host has no such function.
        """
        wanted = normalise_pci_address(address)
        for function in self.functions:
            if function.address == wanted:
                return function
        raise FactUnavailable(
            f"{_DEVICES}/{wanted}",
            "no such PCI function",
            remedy="is the card seated, powered and seen by the BIOS?",
        )

    @property
    def gpus(self) -> tuple[PciFunction, ...]:
        """GPUs, by address; those left out that do not tell (`unread`). Shape (n,)."""
        return tuple(function for function in self.functions if _is_gpu(function))

    @property
    def unread(self) -> tuple[GpuInfraError, ...]:
        """Why functions do not tell whether they are GPUs, and GPUs what they are bound to. Shape (n,)."""
        found = []
        for function in self.functions:
            try:
                _ = function.is_gpu and function.driver
            except GpuInfraError as error:
                found.append(error)
        return tuple(found)


def _is_gpu(function: PciFunction) -> bool | None:
    """Tell whether a function is a GPU; None if it does not tell."""
    try:
        return function.is_gpu
    except GpuInfraError:
        return None


def parse_pci_functions(tree: Tree) -> PciFunctions:
    """
    Read /sys/bus/pci/devices.

    Args:
        tree: By PCI address: the files and links of the directory, and its own link's target under ".".

    Raises:
        ParseError: A directory's name is no PCI address.
    """
    functions = []
    for name, node in tree.items():
        try:
            functions.append(PciFunction(normalise_pci_address(name), node))
        except ValueError:
            raise ParseError(_DEVICES, 0, name, "not a PCI address") from None
    return PciFunctions(tuple(sorted(functions, key=lambda function: function.address)))
