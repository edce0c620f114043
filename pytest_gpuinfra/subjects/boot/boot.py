"""
Which boot of the target the facts belong to: boot id, uptime, kernel release.

Source: proc(5) (uptime), random(4) (boot_id), Linux Documentation/admin-guide/sysctl/kernel.rst (osrelease).
"""

from __future__ import annotations

import re

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import ParseError

_BOOT_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_UPTIME = re.compile(r"(\d{1,18}(?:\.\d+)?)\s+\d+(?:\.\d+)?")
_RELEASE = re.compile(r"\d+\.\d+\S*")


def parse_boot_id(reading: Reading) -> str:
    """
    Give the id that the kernel drew at this boot, lower case with dashes.

    The journal's `_BOOT_ID` is the same number without dashes; both are accepted.

    Raises:
        FactUnavailable: /proc/sys/kernel/random/boot_id could not be read.
        ParseError: It holds no UUID.
    """
    text = reading.require(remedy="is /proc mounted on the target?").strip()
    if re.fullmatch(r"[0-9a-fA-F]{32}", text):
        text = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    if not _BOOT_ID.fullmatch(text):
        raise ParseError(reading.source, 1, text, "not a boot id")
    return text.lower()


def parse_uptime_s(reading: Reading) -> float:
    """
    Give the seconds since boot, time asleep included, from /proc/uptime.

    Raises:
        FactUnavailable: /proc/uptime could not be read.
        ParseError: It does not hold two numbers.
    """
    text = reading.require(remedy="is /proc mounted on the target?").strip()
    match = _UPTIME.fullmatch(text)
    if not match:
        raise ParseError(reading.source, 1, text, "not an uptime")
    return float(match[1])


def parse_kernel_release(reading: Reading) -> str:
    """
    Give the release as `uname -r` prints it, from /proc/sys/kernel/osrelease.

    Raises:
        FactUnavailable: The file could not be read.
        ParseError: It does not begin with a version number.
    """
    text = reading.require(remedy="is /proc mounted on the target?").strip()
    if not _RELEASE.fullmatch(text):
        raise ParseError(reading.source, 1, text, "not a kernel release")
    return text
