"""
The one spelling of a PCI address: "dddd:bb:dd.f", lower case.

Shared by every fact that names a device. A domain has four digits, or more if it needs them.
"""

from __future__ import annotations

import re

_ADDRESS = re.compile(
    r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[01][0-9a-f])(?:\.(?P<function>[0-7]))?",
    re.IGNORECASE,
)


def normalise_pci_address(text: str) -> str:
    """
    Give an address its one spelling.

    Args:
        text: "01:00.0", "0000:01:00.0", NVML's "00000000:01:00.0", or the driver's "PCI:0000:01:00".
            A missing domain is 0000, a missing function is 0: the NVIDIA driver logs GPUs without it,
            and a GPU is function 0 of its device.

    Raises:
        ValueError: The text is no PCI address.
    """
    match = _ADDRESS.fullmatch(text.strip().removeprefix("PCI:"))
    if not match:
        raise ValueError(f"not a PCI address: {text[:60]!r} (expected for example 0000:01:00.0)")
    domain = int(match["domain"] or "0", 16)
    return f"{domain:04x}:{match['bus']}:{match['device']}.{match['function'] or '0'}".lower()


def short_address(address: str) -> str:
    """Give a PCI address without the domain where that is 0000: what ids and tables show."""
    return address.removeprefix("0000:")
