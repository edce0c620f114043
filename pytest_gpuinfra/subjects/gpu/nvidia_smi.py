"""
What nvidia-smi prints instead of data: failures of NVML, lost GPUs, refused arguments.

It writes them to standard output and ends with a status that says little, so the text must be looked at first.

Source: nvidia-smi(1) (580), "Return value"; NVML's nvmlErrorString(); seen wordings from 375 to 610.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.wire import text_lines

_RESTART = "the container lost its GPU devices (a systemd reload on the host does that): restart it"
_MISMATCH = "user-space library and loaded kernel module differ: reboot, or reload the module; in a container update it"
_KINDS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE), remedy)
    for kind, pattern, remedy in (
        ("mismatch", r"Failed to initialize NVML: Driver/library version mismatch", _MISMATCH),
        ("unknown", r"Failed to initialize NVML: Unknown Error", _RESTART),
        ("permission", r"(?<!\[)Insufficient Permissions", "ask as root"),
        ("no-library", r"Failed to initialize NVML: .*(?:not found|Not Found)|couldn't find libnvidia-ml", ""),
        ("nvml", r"Failed to initialize NVML: .+", "read the kernel log for NVRM"),
        ("no-driver", r"couldn't communicate with the NVIDIA driver|driver is not loaded", "is the module loaded?"),
        ("no-device", r"No devices were found", "read the kernel log: lost, failed to start, or not passed in"),
        (
            "lost",
            r"(?<!\[)GPU is lost|has fallen off the bus|Reboot the system to recover this GPU",
            "reboot the machine",
        ),
        ("handle", r"Unable to determine the device handle", "read the kernel log for NVRM and Xid"),
        ("arguments", r"\bOption \"?-|is not recognized|is not a valid field to query|missing its value", ""),
        ("arguments", r"Invalid combination of input arguments|Field \".*\" is not", ""),
        ("no-program", r"nvidia-smi: (?:command )?not found|No such file or directory", "is the driver installed?"),
    )
)
_NEEDLES = (
    "failed to initialize", "nvidia driver", "driver is not loaded", "no devices", "gpu is lost", "fallen off",
    "reboot the system", "device handle", "option", "recognized", "valid field", "missing its value",
    "input arguments", "field \"", "not found", "no such file", "permissions", "libnvidia-ml",
)  # fmt: skip
"""A word of each pattern, lower case: most outputs hold none of them, and are not searched line by line."""

_NVML_VERSION = re.compile(r"NVML library version: (?P<version>\d+(?:\.\d+)*)")
_DEVICE = re.compile(
    r"(?:GPU|device handle for GPU ?)\s*(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"
)


@dataclass(frozen=True, slots=True)
class SmiFailure:
    """
    nvidia-smi's own words that it has no data.

    Attributes:
        kind: mismatch, unknown, permission, no-library, nvml, no-driver, no-device, lost, handle, arguments,
            no-program.
        message: The line.
        remedy: What to do; "" if the message says it.
        nvml_version: Version of the user-space library; None if it is not told.
        device: PCI address of the GPU that it names, as written; None if it names none.
    """

    kind: str
    message: str
    remedy: str
    nvml_version: str | None
    device: str | None


def find_smi_failure(text: str) -> SmiFailure | None:
    """Find nvidia-smi's failure in what it printed; None if there is none."""
    lowered = text.lower()
    if not any(needle in lowered for needle in _NEEDLES):
        return None
    for line in text_lines(text):
        for kind, pattern, remedy in _KINDS:
            if pattern.search(line):
                version = _NVML_VERSION.search(text)
                device = _DEVICE.search(line)
                return SmiFailure(
                    kind,
                    line.strip(),
                    remedy,
                    version["version"] if version else None,
                    device["pci"] if device else None,
                )
    return None


def smi_text(reading: Reading) -> str:
    """
    Give what nvidia-smi printed, if it is data.

    Raises:
        FactUnavailable: It could not be started, failed, printed a message in place of data, or nothing.
    """
    text = reading.require(remedy="is the NVIDIA driver installed on the target, and nvidia-smi in its PATH?")
    failure = find_smi_failure(text) or find_smi_failure(reading.stderr)
    if failure:
        raise FactUnavailable(reading.source, failure.message, remedy=failure.remedy)
    text = reading.require_success()
    if not text.strip():
        raise FactUnavailable(reading.source, "it printed nothing", remedy="call it by hand on the target")
    return text
