"""
A container's configuration, by Proxmox's or LXC's own file: settings, devices that it is given, and may open.

Source: lxc.container.conf(5) (lxc.cgroup.devices.allow, lxc.cgroup2.devices.allow, lxc.mount.entry) and
pct.conf(5) (devN: PATH,gid=...,uid=...,mode=...; needs no cgroup line). Proxmox writes "key: value", LXC "key = value".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.subjects.container.device_node import DeviceNode
from pytest_gpuinfra.subjects.verdict import Ending, Verdict
from pytest_gpuinfra.wire import text_lines

_LINE = re.compile(r"(?P<key>[a-z][\w.-]*)\s*[:=]\s*(?P<value>.*)")
_RULE = re.compile(r"(?P<kind>[abc])(?:\s+(?P<major>\d{1,18}|\*):(?P<minor>\d{1,18}|\*))?(?:\s+(?P<rights>[rwm]+))?")
_RULE_KEY = re.compile(r"lxc\.cgroup2?\.devices\.(allow|deny)")
_DEVICE_KEY = re.compile(r"dev\d+")
_OF_THE_DISTRIBUTION = "/usr/share/lxc/config/"
"""What LXC's own files there allow is /dev/null and its like."""


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """
    Character devices that a container may open.

    Attributes:
        major: None for every one.
        minor: None for every one.
    """

    major: int | None
    minor: int | None

    def allows(self, major: int, minor: int) -> bool:
        """Tell whether a device falls under it."""
        return self.major in (None, major) and self.minor in (None, minor)

    def __str__(self) -> str:
        return f"{'*' if self.major is None else self.major}:{'*' if self.minor is None else self.minor}"


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    """
    What a container's configuration says.

    Attributes:
        settings: Values by key, in order.
        own: Device nodes of Proxmox's devN entries, which bring their own rights. Shape (n,).
        mounted: Paths under /dev that are bind-mounted, and need the device cgroup's rights. Shape (n,).
        rules: What the device cgroup lets it read and write. Shape (n,).
        source: Where it stands.
    """

    settings: Mapping[str, tuple[str, ...]]
    own: tuple[str, ...]
    mounted: tuple[str, ...]
    rules: tuple[DeviceRule, ...]
    source: str

    def last(self, key: str) -> str | None:
        """Give a setting's value in effect; None if it is not set."""
        return self.settings.get(key, (None,))[-1]


def parse_container_config(reading: Reading) -> ContainerConfig:
    """
    Read a container's configuration; sections of snapshots ("[name]") are passed over.

    Raises:
        FactUnavailable: It could not be read.
        ParseError: A line is no setting, the device cgroup's line has another shape, or there is no setting.
    """
    settings: dict[str, tuple[str, ...]] = {}
    rules: list[DeviceRule] = []
    text = reading.require_success(remedy="reading a container's configuration needs root on the host")
    for number, line in enumerate((line.strip() for line in text_lines(text)), 1):
        if line.startswith("["):
            break
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if not match:
            raise ParseError(reading.source, number, line, "not a setting of a container")
        key, value = match["key"], match["value"].strip()
        settings[key] = (*settings.get(key, ()), value)
        if word := _RULE_KEY.fullmatch(key):
            rule = _RULE.fullmatch(value)
            if not rule:
                raise ParseError(reading.source, number, line, "not a rule of the device cgroup")
            rules = _with(rules, rule, denied=word[1] == "deny")
    if not settings:
        raise ParseError(reading.source, 0, text, "an empty configuration")
    entries = [value for key, values in settings.items() if _DEVICE_KEY.fullmatch(key) for value in values]
    return ContainerConfig(
        settings,
        tuple(entry.split(",")[0].removeprefix("path=") for entry in entries),
        tuple(value.split()[0] for value in settings.get("lxc.mount.entry", ()) if value.startswith("/dev/")),
        tuple(rules),
        reading.source,
    )


def judge_device_rule(config: ContainerConfig, node: DeviceNode, major: int) -> Verdict:
    """
    Judge whether the container may open a device node that is bind-mounted.

    Args:
        config: Its configuration.
        node: The node as the container has it.
        major: Major that the host's kernel gave to the driver.
    """
    if node.path in config.own:
        return _verdict("ok", node, f"passed by Proxmox's own entry of {config.source}, with its rights")
    if not any(node.path == path or node.path.startswith(f"{path.rstrip('/')}/") for path in config.mounted):
        return _verdict("skip", node, f"{config.source} does not pass it by name")
    if any(rule.allows(major, node.minor) for rule in config.rules):
        return _verdict("ok", node, f"{major}:{node.minor} is allowed")
    unread = [path for path in config.settings.get("lxc.include", ()) if not path.startswith(_OF_THE_DISTRIBUTION)]
    if unread:
        return _verdict("error", node, f"no rule of {config.source} allows {major}:{node.minor}, and one may stand in "
                        f"{', '.join(unread)}")  # fmt: skip
    allowed = ", ".join(map(str, config.rules)) or "no device"
    return _verdict("wrong", node, f"it has major {major} on the host, and {config.source} allows {allowed}")


def _with(rules: list[DeviceRule], match: re.Match[str], *, denied: bool) -> list[DeviceRule]:
    major, minor = (None if word in (None, "*") else int(word) for word in (match["major"], match["minor"]))
    rule = DeviceRule(major, minor)
    if match["kind"] == "b":
        return rules
    if denied:
        return [other for other in rules if rule.major is not None and other != rule]
    rights = match["rights"] or "rwm"
    return [*rules, rule] if {"r", "w"} <= set(rights) else rules


def _verdict(ending: Ending, node: DeviceNode, observed: str) -> Verdict:
    return Verdict(
        ending=ending,
        subject=node.path,
        observed=observed,
        expected="the device cgroup lets the container read and write it",
        why="CUDA does not start, and nvidia-smi may work all the same",
        action="pass it by Proxmox's devN entry, which follows the major, or correct lxc.cgroup2.devices.allow; "
        "then restart the container",
    )
