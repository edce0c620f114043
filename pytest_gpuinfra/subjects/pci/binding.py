"""Driver bindings: who else is on a card or in its group, and whether that fits the GPU's use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_gpuinfra.inventory.inventory import DeviceExpectation
from pytest_gpuinfra.pci_address import short_address
from pytest_gpuinfra.subjects.pci.functions import PciFunction, PciFunctions
from pytest_gpuinfra.subjects.pci.iommu import IommuGroups

_BRIDGE = 0x0604
_VFIO = ("vfio-pci", "pci-stub", "none")
"""Bindings that leave an IOMMU group usable for VFIO (Linux Documentation/driver-api/vfio.rst)."""


@dataclass(frozen=True, slots=True)
class Misbound:
    """
    Functions whose binding does not fit.

    Attributes:
        observed: The functions and their drivers; "" if all fit.
        expected: What would fit.
    """

    observed: str
    expected: str


def unexpected_gpus(rows: Iterable[DeviceExpectation], functions: PciFunctions) -> tuple[str, ...]:
    """Give the addresses of GPUs that no row names, sorted, short. Shape (n,)."""
    named = {address for row in rows for address in row.pci}
    return tuple(short_address(gpu.address) for gpu in functions.gpus if gpu.address not in named)


def companion_functions(address: str, functions: PciFunctions, groups: IommuGroups) -> tuple[PciFunction, ...]:
    """Give the other functions of the same card and of the same IOMMU group, bridges left out, by address."""
    group = groups.of(address)
    members = set(group.members) if group else set()
    card = address.rpartition(".")[0]
    return tuple(
        function
        for function in functions
        if function.address != address
        and (function.address.rpartition(".")[0] == card or function.address in members)
        and function.class_code >> 8 != _BRIDGE
    )


def misbound(companions: Iterable[PciFunction], driver: str | None, companion_driver: str | None) -> Misbound:
    """
    Tell which companions are bound to what does not fit.

    Args:
        companions: As `companion_functions` gives them.
        driver: Driver expected of the GPU itself.
        companion_driver: Driver expected of its companions; None for the rule that VFIO has.
    """
    if companion_driver is not None:
        legal: tuple[str, ...] = (companion_driver,)
    elif driver == "vfio-pci":
        legal = _VFIO
    else:
        legal = ()
    wrong = [
        f"{short_address(function.address)} on {function.driver or 'none'}"
        for function in companions
        if (legal and (function.driver or "none") not in legal) or (not legal and function.driver == "vfio-pci")
    ]
    return Misbound(", ".join(wrong), f"each on {' or '.join(legal)}" if legal else "none of them on vfio-pci")
