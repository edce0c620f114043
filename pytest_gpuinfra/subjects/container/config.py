"""
Devices that an LXC container is given, by Proxmox's configuration or LXC's own.

Source: lxc.container.conf(5) (lxc.cgroup.devices.allow, lxc.cgroup2.devices.allow, lxc.mount.entry) and
pct.conf(5) (devN: PATH,gid=...,uid=...,mode=...; needs no cgroup line). Proxmox writes "key: value", LXC "key = value".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.wire import text_lines

_LINE = re.compile(r"(?P<key>[a-z][\w.-]*)\s*[:=]\s*(?P<value>.*)")
_ALLOW = re.compile(r"(?P<kind>[abc])(?:\s+(?P<major>\d{1,18}|\*):(?P<minor>\d{1,18}|\*))?(?:\s+(?P<rights>[rwm]+))?")
_DEVICE_KEY = re.compile(r"dev\d+")


@dataclass(frozen=True, slots=True)
class PassedDevice:
    """
    One device node that the container is given.

    Attributes:
        path: On the host.
        how: "dev" for Proxmox's entry, which brings its own rights, or "mount" for a bind mount, which needs
            the device cgroup's.
        options: Options of the entry by name ("gid": "44"); {} if there are none.
    """

    path: str
    how: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    """
    What a container's configuration says of devices.

    Attributes:
        devices: Device nodes that are passed. Shape (n,).
        allowed_majors: Majors that the device cgroup allows, sorted. Shape (n,).
        allows_all: Whether it allows every device.
    """

    devices: tuple[PassedDevice, ...]
    allowed_majors: tuple[int, ...]
    allows_all: bool

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the passed nodes, in the configuration's order."""
        return tuple(device.path for device in self.devices)


def parse_container_config(reading: Reading) -> ContainerConfig:
    """
    Read a container's configuration; sections of snapshots ("[name]") are passed over.

    Raises:
        FactUnavailable: It could not be read.
        ParseError: A line is no setting, or the device cgroup's line has another shape.
    """
    devices: list[PassedDevice] = []
    majors: set[int] = set()
    allows_all = False
    text = reading.require(remedy="reading a container's configuration needs root on the host")
    for number, line in enumerate((line.strip() for line in text_lines(text)), 1):
        if line.startswith("["):
            break
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if not match:
            raise ParseError(reading.source, number, line, "not a setting of a container")
        key, value = match["key"], match["value"].strip()
        if key in ("lxc.cgroup.devices.allow", "lxc.cgroup2.devices.allow"):
            allow = _ALLOW.fullmatch(value)
            if not allow:
                raise ParseError(reading.source, number, line, "not a rule of the device cgroup")
            allows_all = allows_all or allow["major"] in (None, "*")
            majors |= {int(allow["major"])} if allow["major"] not in (None, "*") else set()
        elif key == "lxc.mount.entry" and value.startswith("/dev/"):
            devices.append(PassedDevice(value.split()[0], "mount", {}))
        elif _DEVICE_KEY.fullmatch(key):
            path, *options = value.split(",")
            pairs = (option.partition("=") for option in options)
            devices.append(PassedDevice(path.removeprefix("path="), "dev", {name: text for name, _, text in pairs}))
    if not text.strip():
        raise ParseError(reading.source, 0, text, "an empty configuration")
    return ContainerConfig(tuple(devices), tuple(sorted(majors)), allows_all)
