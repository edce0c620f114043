"""
One PCI function: identity, driver binding, NUMA node, link, BARs, the bridges above, access control.

Source: Linux Documentation/ABI/testing/sysfs-bus-pci and Documentation/PCI/sysfs-pci.rst (kernel 6.12).
No lspci is needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pytest_gpuinfra.capture.reading import Node, Reading
from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.pci.config_space import AcsControl, ConfigSpace, parse_config_space
from pytest_gpuinfra.subjects.pci.pci_bar import Bar, parse_bars
from pytest_gpuinfra.subjects.pci.pci_link import parse_link_speed_gt_s, parse_link_width

NVIDIA = 0x10DE
_GPU_VENDORS = frozenset({NVIDIA, 0x1002, 0x8086})
_DEVICES = "/sys/bus/pci/devices"
_DIRECTORY = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


@dataclass(frozen=True, slots=True)
class PciFunction:
    """
    One PCI function; each property raises for itself if its own source could not be read.

    Attributes:
        address: "0000:01:00.0", lower case.
    """

    address: str
    _node: Node = field(repr=False, hash=False)

    @property
    def vendor_id(self) -> int:
        """Vendor, 0x10de for NVIDIA."""
        return self._hex("vendor")

    @property
    def device_id(self) -> int:
        """Device, by the vendor's numbering."""
        return self._hex("device")

    @property
    def subsystem_id(self) -> tuple[int, int]:
        """Vendor and device of the board."""
        return self._hex("subsystem_vendor"), self._hex("subsystem_device")

    @property
    def class_code(self) -> int:
        """Class, subclass and interface in 24 bits: 0x030200 is a 3D controller."""
        return self._hex("class")

    @property
    def is_gpu(self) -> bool:
        """Whether it is a display controller or processing accelerator of NVIDIA, AMD or Intel."""
        is_display = self.class_code >> 16 == 0x03 or self.class_code >> 8 == 0x1200
        return is_display and self.vendor_id in _GPU_VENDORS

    @property
    def driver(self) -> str | None:
        """Driver that it is bound to; None if it is bound to none."""
        return self._link("driver")

    @property
    def driver_override(self) -> str | None:
        """Driver that alone may bind it; None if there is no such restriction."""
        word = self._read("driver_override").require().strip()
        return None if word == "(null)" or not word else word

    @property
    def iommu_group(self) -> int | None:
        """Number of its IOMMU group; None if it is in none."""
        name = self._link("iommu_group")
        return None if name is None else _integer(self._read("iommu_group"), name, 10)

    @property
    def numa_node(self) -> int | None:
        """NUMA node; None if the platform names none (the file says -1)."""
        node = _integer(self._read("numa_node"), self._read("numa_node").require(), 10)
        return None if node == -1 else node

    @property
    def link_speed_gt_s(self) -> float | None:
        """Speed of the link now, GT/s; None without a link. Idle GPUs lower it: judge it under load."""
        return parse_link_speed_gt_s(self._read("current_link_speed"))

    @property
    def link_width(self) -> int | None:
        """Lanes of the link now; None without a link. It does not change with load."""
        return parse_link_width(self._read("current_link_width"))

    @property
    def max_link_speed_gt_s(self) -> float | None:
        """Speed that the function itself is capable of, GT/s; the slot may allow less."""
        return parse_link_speed_gt_s(self._read("max_link_speed"))

    @property
    def max_link_width(self) -> int | None:
        """Lanes that the function itself is capable of; the slot may have fewer."""
        return parse_link_width(self._read("max_link_width"))

    @property
    def bars(self) -> tuple[Bar, ...]:
        """Regions that are in use, by index; empty ones left out."""
        return parse_bars(self._read("resource"))

    @property
    def upstream(self) -> tuple[str, ...]:
        """Addresses of the bridges above it, the root port first; () directly on the host bridge."""
        reading = self._read(".")
        parts = reading.require().strip().split("/")
        if not parts or parts[-1].lower() != self.address:
            raise ParseError(reading.source, 1, reading.require(), f"no device path of {self.address}")
        return tuple(normalise_pci_address(part) for part in parts[:-1] if _DIRECTORY.fullmatch(part))

    @property
    def config(self) -> ConfigSpace:
        """Configuration space, as far as the reader was allowed to see it."""
        return parse_config_space(self._read("config"))

    @property
    def acs(self) -> AcsControl | None:
        """Access control services; None without the capability. For peer traffic see the bridges above."""
        return self.config.acs

    def _read(self, name: str) -> Reading:
        return self._node.get(name) or Reading(f"{_DEVICES}/{self.address}/{name}", None, "not asked for")

    def _hex(self, name: str) -> int:
        return _integer(self._read(name), self._read(name).require(), 16)

    def _link(self, name: str) -> str | None:
        reading = self._read(name)
        if reading.missing:
            return None
        target = reading.require().strip().rstrip("/").rpartition("/")[2]
        if not target:
            raise ParseError(reading.source, 1, reading.require(), "not the target of a link")
        return target


def _integer(reading: Reading, text: str, base: int) -> int:
    try:
        return int(text.strip(), base)
    except ValueError:
        raise ParseError(reading.source, 1, text, f"not a number of base {base}") from None
