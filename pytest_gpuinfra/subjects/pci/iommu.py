"""
IOMMU groups of the running kernel: number, type of the default domain, members.

Source: Linux Documentation/ABI/testing/sysfs-kernel-iommu_groups, and iommu_group_show_type() in
drivers/iommu/iommu.c for the words that can be read (kernel 6.12; the file is there since 5.11).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_gpuinfra.capture.reading import Node, Reading, Tree
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.wire import integer

_TRANSLATED = {"identity": False, "DMA": True, "DMA-FQ": True}
_KNOWN = frozenset({*_TRANSLATED, "blocked", "unmanaged", "unknown"})


@dataclass(frozen=True, slots=True)
class IommuGroup:
    """
    One IOMMU group and the type of its default domain.

    Attributes:
        number: Kernel's group number; differs from boot to boot.
        members: PCI addresses (other buses: device names) of its devices, sorted. Shape (n,).
    """

    number: int
    members: tuple[str, ...]
    _type: Reading = field(repr=False)

    @property
    def type(self) -> str:
        """
        Kernel's own word, kept verbatim ("identity", "DMA", "DMA-FQ", "blocked", "unmanaged", ...).

        Raises:
            FactUnavailable: There is no such file (kernel before 5.11), or it could not be read.
            ParseError: The text is no single word, or is "auto", which the kernel takes and never gives.
        """
        return parse_group_type(self._type)

    @property
    def shows_type(self) -> bool:
        """Whether this kernel shows it at all (5.11 and later)."""
        return not self._type.missing

    @property
    def type_known(self) -> bool:
        """Whether the word is one that this version knows; judge nothing by a word that it does not."""
        return self.type in _KNOWN

    @property
    def translated(self) -> bool:
        """
        Whether the addresses that the kernel hands to the members' drivers go through a page table.

        Raises:
            FactUnavailable: The type says nothing of that ("unmanaged" is another owner's table, such as
                vfio's or an iommufd's; "blocked" lets nothing through; "unknown" or a new word).
        """
        return translates(self.type, self._type.source)

    @property
    def strict(self) -> bool | None:
        """Whether unmapping flushes at once (DMA) or lazily (DMA-FQ); None if nothing is translated."""
        return {"DMA": True, "DMA-FQ": False}.get(self.type)


@dataclass(frozen=True, slots=True)
class IommuGroups:
    """
    All IOMMU groups of a host.

    Attributes:
        groups: By number. Shape (n,); () is a state of its own: the IOMMU is off, absent,
            or not shown to this guest, and nothing translates.
    """

    groups: tuple[IommuGroup, ...]

    @property
    def present(self) -> bool:
        """Whether the kernel has any group at all."""
        return bool(self.groups)

    def __iter__(self) -> Iterator[IommuGroup]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def of(self, pci_address: str) -> IommuGroup | None:
        """Give the group that holds a PCI function; None if none does."""
        wanted = normalise_pci_address(pci_address)
        return next((group for group in self.groups if wanted in group.members), None)


def parse_iommu_groups(tree: Tree) -> IommuGroups:
    """
    Read /sys/kernel/iommu_groups.

    Args:
        tree: By group number: "type" (file) and "devices/" (listing, one name a line).

    Raises:
        FactUnavailable: A group's listing could not be read.
        ParseError: A directory's name is no number.
    """
    return IommuGroups(tuple(sorted((_group(name, node) for name, node in tree.items()), key=_number)))


def parse_group_type(reading: Reading) -> str:
    """
    Read one /sys/kernel/iommu_groups/N/type.

    Raises:
        FactUnavailable: The file is not there or could not be read.
        ParseError: The text is no single word, or "auto", which can only be written.
    """
    text = reading.require(remedy="group types need kernel 5.11 or later")
    word = text.strip()
    if not word or len(word.split()) != 1:
        raise ParseError(reading.source, 1, text, "not a group type")
    if word == "auto":
        raise ParseError(reading.source, 1, word, "a value to write, which the kernel never shows")
    return word


def translates(group_type: str, source: str) -> bool:
    """
    Tell whether a group of this type translates DMA.

    Raises:
        FactUnavailable: The word does not decide it.
    """
    if group_type not in _TRANSLATED:
        raise FactUnavailable(
            source,
            f"group type {group_type!r} does not say whether DMA is translated",
            remedy="see which driver the members are bound to: under vfio-pci their owner decides",
        )
    return _TRANSLATED[group_type]


def _group(name: str, node: Node) -> IommuGroup:
    number = integer(name)
    if number is None:
        raise ParseError("/sys/kernel/iommu_groups", 0, name, "not a group number")
    path = f"/sys/kernel/iommu_groups/{name}"
    listing = node.get("devices/") or Reading(f"{path}/devices", None, "not asked for")
    members = tuple(sorted(_member(line) for line in listing.require().split()))
    return IommuGroup(number, members, node.get("type") or Reading(f"{path}/type", None, "not asked for"))


def _member(name: str) -> str:
    try:
        return normalise_pci_address(name)
    except ValueError:
        return name  # a platform device


def _number(group: IommuGroup) -> int:
    return group.number
