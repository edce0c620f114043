"""
Device nodes of GPUs under /dev, from stat(2), and the majors that drivers were given.

Source: stat(2), proc(5) (/proc/devices);
Linux Documentation/admin-guide/devices.txt (195 is NVIDIA's; the major of nvidia-uvm is given out at module load).
"""

from __future__ import annotations

import operator
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading, Tree
from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.wire import load


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """
    One device node.

    Attributes:
        path: "/dev/nvidia0".
        major: Driver's number.
        minor: Device's number.
        mode: As `ls` writes it, without the type: "rw-rw-rw-".
        owner: User, by name or number.
        group: Group, by name or number.
    """

    path: str
    major: int
    minor: int
    mode: str
    owner: str
    group: str


def parse_device_tree(tree: Tree, root: str = "/dev") -> tuple[DeviceNode, ...]:
    """
    Read stat(2) of a directory's entries, as the probe gives it; what is no device node is passed over.

    Returns:
        Nodes by path. Shape (n,); () if there is none, and the directory could be read.

    Raises:
        FactUnavailable: An entry cannot be asked.
        ParseError: An answer has another shape.
    """
    nodes = []
    for name, node in tree.items():
        reading = node["."]
        try:
            seen = load(reading.require(remedy="ask as root"))
            mode, major, minor = (operator.index(seen[name]) for name in ("mode", "major", "minor"))
            kind = stat.filemode(mode)
        except (ValueError, KeyError, TypeError, OverflowError):
            raise ParseError(reading.source, 1, reading.text or "", "not the status of a file") from None
        if kind[0] in "cb":
            nodes.append(DeviceNode(f"{root}/{name}", major, minor, kind[1:], str(seen["uid"]), str(seen["gid"])))
    return tuple(sorted(nodes, key=lambda node: node.path))


def parse_majors(reading: Reading) -> Mapping[str, int]:
    """
    Read /proc/devices: majors of character devices by driver; the last of a driver's several counts.

    Raises:
        FactUnavailable: It cannot be read.
        ParseError: It names no character device.
    """
    text = reading.require(remedy="is /proc mounted there?")
    part = text.partition("Character devices:")[2].partition("Block devices:")[0]
    majors = {match[2]: int(match[1]) for match in re.finditer(r"^\s*(\d{1,18}) (\S+)$", part, re.MULTILINE)}
    if not majors:
        raise ParseError(reading.source, 1, text, "no character devices")
    return majors


def driver_of_node(path: str, majors: Mapping[str, int]) -> str | None:
    """Give the name under which /proc/devices lists the driver of one of NVIDIA's nodes; None if it does not."""
    names = ["nvidia-uvm"] if path.startswith("/dev/nvidia-uvm") else ["nvidia", "nvidia-frontend", "nvidiactl"]
    names = ["nvidia-modeset", *names] if path == "/dev/nvidia-modeset" else names
    names = ["nvidiactl", *names] if path == "/dev/nvidiactl" else names
    return next((name for name in names if name in majors), None)
