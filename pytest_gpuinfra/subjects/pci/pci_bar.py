"""
Regions of physical addresses that a PCI function answers at.

Source: Linux Documentation/PCI/sysfs-pci.rst, the `resource` file: start, end and flags, one region a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.wire import text_lines

_LINE = re.compile(r"0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Bar:
    """
    One region that a function answers at.

    Attributes:
        index: 0 to 5 are the BARs (a 64-bit one takes two numbers), 6 is the ROM,
            7 and up are SR-IOV's regions or a bridge's windows.
        start: First physical address.
        end: Last physical address, inclusive.
        flags: Kernel's resource flags, verbatim.
    """

    index: int
    start: int
    end: int
    flags: int

    @property
    def size_bytes(self) -> int:
        """Number of bytes in the region."""
        return self.end - self.start + 1

    def holds(self, address: int) -> bool:
        """Tell whether a physical address lies in the region."""
        return self.start <= address <= self.end


def parse_bars(reading: Reading) -> tuple[Bar, ...]:
    """
    Read a function's `resource` file.

    Returns:
        Regions in use, by index; empty ones left out, so () is a function without any. Shape (n,).

    Raises:
        FactUnavailable: The file could not be read.
        ParseError: It is empty, or a line is not three hexadecimal numbers.
    """
    lines = text_lines(reading.require())
    if not lines:
        raise ParseError(reading.source, 0, "", "no resource line")
    bars = []
    for index, line in enumerate(lines):
        match = _LINE.fullmatch(line.strip())
        if not match:
            raise ParseError(reading.source, index + 1, line, "not a resource line")
        start, end, flags = (int(value, 16) for value in match.groups())
        if end > start:
            bars.append(Bar(index, start, end, flags))
    return tuple(bars)
