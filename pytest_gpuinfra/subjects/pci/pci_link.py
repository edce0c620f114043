"""
Speed and width of a PCI Express link, from the function's sysfs files.

Source: current_link_speed_show() and its neighbours in Linux drivers/pci/pci-sysfs.c, pci_speed_string() in
drivers/pci/probe.c: "32.0 GT/s PCIe", "8 GT/s" before kernel 5.7, "Unknown speed", "Unknown"; width "16".
The files are there for PCI Express functions only.
"""

from __future__ import annotations

import re

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import ParseError


def parse_link_speed_gt_s(reading: Reading) -> float | None:
    """
    Read current_link_speed or max_link_speed.

    Returns:
        GT/s; None where the file is missing or the kernel says Unknown: there is no link to speak of.

    Raises:
        FactUnavailable: The file is there and could not be read.
        ParseError: The text is no speed.
    """
    match = _match(reading, r"(\d{1,9}(?:\.\d+)?) GT/s(?: PCIe)?")
    return float(match[1]) if match else None


def parse_link_width(reading: Reading) -> int | None:
    """
    Read current_link_width or max_link_width.

    Returns:
        Lanes; None where the file is missing, or is 0 or 255, which stand for no link.

    Raises:
        FactUnavailable: The file is there and could not be read.
        ParseError: The text is no number.
    """
    match = _match(reading, r"x?(\d{1,3})")
    width = int(match[1]) if match else 0
    return None if width in (0, 255) else width


def _match(reading: Reading, pattern: str) -> re.Match[str] | None:
    if reading.missing:
        return None
    text = reading.require().strip()
    match = re.fullmatch(pattern, text, re.ASCII)
    if match is None and not text.startswith("Unknown"):
        raise ParseError(reading.source, 1, text, "not a link speed or width")
    return match
