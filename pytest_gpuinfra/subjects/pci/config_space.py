"""
Capabilities in a PCI function's configuration space: access control (ACS) and resizable BARs.

Source: PCI Express Base Specification 6.0, 7.6.3 (extended capability header), 7.7.11 (ACS),
7.8.6 (resizable BAR); names as in Linux include/uapi/linux/pci_regs.h.
Reading past byte 64 needs CAP_SYS_ADMIN: without root the file ends there.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError

_ACS, _RESIZABLE_BAR = 0x000D, 0x0015
_BITS = {
    "source_validation": 0x01,
    "translation_blocking": 0x02,
    "request_redirect": 0x04,
    "completion_redirect": 0x08,
    "upstream_forwarding": 0x10,
    "egress_control": 0x20,
    "direct_translated": 0x40,
}


@dataclass(frozen=True, slots=True)
class AcsControl:
    """
    Access control services of one function; on a bridge they decide where its children's requests go.

    Attributes:
        capability: Bits that the function could switch on.
        control: Bits that are on. Bit 2 and bit 3 send peer requests and completions up to the root.
    """

    capability: int
    control: int

    @property
    def request_redirect(self) -> bool:
        """Whether requests from one child to another are sent to the root complex, and so to the IOMMU."""
        return bool(self.control & _BITS["request_redirect"])

    @property
    def completion_redirect(self) -> bool:
        """Whether completions between children are sent to the root complex."""
        return bool(self.control & _BITS["completion_redirect"])

    @property
    def redirects_peers(self) -> bool:
        """Whether peer traffic below this function takes the way through the root complex."""
        return self.request_redirect or self.completion_redirect

    @property
    def enabled(self) -> tuple[str, ...]:
        """Names of the bits that are on, in the register's order."""
        return tuple(name for name, bit in _BITS.items() if self.control & bit)


@dataclass(frozen=True, slots=True)
class ConfigSpace:
    """
    One function's configuration space, as far as it could be read.

    Attributes:
        content: 64 bytes without root, 256 for a conventional function, 4096 for PCI Express.
        source: File that it came from.
    """

    content: bytes
    source: str

    @property
    def acs(self) -> AcsControl | None:
        """
        Access control services; None if the function has no such capability.

        Raises:
            FactUnavailable: The space is cut off before the extended capabilities.
            ParseError: The chain of capabilities is broken.
        """
        offset = self.extended_capability(_ACS)
        if offset is None:
            return None
        if offset + 8 > len(self.content):
            raise ParseError(self.source, 0, f"offset {offset:#x}", "the ACS capability is cut off")
        return AcsControl(self._word(offset + 4), self._word(offset + 6))

    @property
    def has_resizable_bar(self) -> bool:
        """Whether the function shows a resizable BAR capability; a guest's virtual function hides it."""
        return self.extended_capability(_RESIZABLE_BAR) is not None

    def extended_capability(self, wanted: int) -> int | None:
        """
        Give the offset of an extended capability; None if the function has none of that id.

        Raises:
            FactUnavailable: The space is cut off before the extended capabilities.
            ParseError: The chain of capabilities is broken or goes in a circle.
        """
        if len(self.content) <= 64:
            raise FactUnavailable(
                self.source,
                f"only {len(self.content)} bytes could be read",
                remedy="capabilities need root on the target: connect as root or use --gpu-sudo",
            )
        if len(self.content) <= 256:
            return None  # a conventional function has no extended space
        offset, seen = 0x100, set[int]()
        while offset:
            if offset in seen or offset < 0x100 or offset + 4 > len(self.content):
                raise ParseError(self.source, 0, f"offset {offset:#x}", "broken chain of capabilities")
            seen.add(offset)
            header = int.from_bytes(self.content[offset : offset + 4], "little")
            if header in (0, 0xFFFFFFFF):
                break
            if header & 0xFFFF == wanted:
                return offset
            offset = header >> 20 & 0xFFC
        if header == 0xFFFFFFFF:
            raise FactUnavailable(
                self.source,
                "the function answers with all ones",
                remedy="it may be off the bus or powered down",
            )
        return None

    def _word(self, offset: int) -> int:
        return int.from_bytes(self.content[offset : offset + 2], "little")


def parse_config_space(reading: Reading) -> ConfigSpace:
    """
    Read a function's `config` file, given as hexadecimal text, blanks allowed.

    Raises:
        FactUnavailable: It could not be read.
        ParseError: It is no hexadecimal text, or shorter than the 64 bytes that everybody may read.
    """
    text = reading.require()
    try:
        content = bytes.fromhex(text)
    except ValueError:
        raise ParseError(reading.source, 0, text, "not hexadecimal") from None
    if len(content) < 64:
        raise ParseError(reading.source, 0, text, f"{len(content)} bytes, of at least 64")
    return ConfigSpace(content, reading.source)
