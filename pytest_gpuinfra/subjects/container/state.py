"""
State of a container as its host sees it: whether it runs, and whether it starts at boot.

Source: pct(1) ("status: running"; `pct config`: "onboot: 1"), lxc-info(1) (-H: "RUNNING"), lxc.container.conf(5)
(lxc.start.auto), `incus list --format json` and `lxc list --format json` (status, config "boot.autostart"), docker and
podman inspect (State.Status, HostConfig.RestartPolicy), machinectl(1) (State=running), systemctl(1) (is-enabled).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Node, Reading
from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError, ParseError
from pytest_gpuinfra.masking import last_of
from pytest_gpuinfra.subjects.container.config import parse_container_config
from pytest_gpuinfra.wire import load, text_lines

_NONE = re.compile(
    r"does not exist|doesn't exist|no such (?:container|object|machine)|no machine|not found|no container with", re.I
)


@dataclass(frozen=True, slots=True)
class ContainerState:
    """
    A container seen from its host.

    Attributes:
        word: Its state in the tool's own word, lower case: "running", "stopped", "exited", ...
        autostart: Whether it starts at boot; None where the tool does not tell.
        autostart_from: Where that stands, for messages; why it is not told.
    """

    word: str
    autostart: bool | None
    autostart_from: str

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.word == "running"


def parse_container_state(kind: str, name: str, node: Node) -> ContainerState:
    """
    Read what a kind's commands told.

    Args:
        kind: Kind of container (containers.KINDS), not "ssh".
        name: Its name.
        node: Readings "state", and "config" or "boot" where the kind has them.

    Raises:
        FactUnavailable: There is no such container, or its tool is missing or refuses.
        ParseError: The tool says something else.
    """
    text = _told(node["state"], name)
    if kind == "pct":
        match = re.fullmatch(r"status: (\w+)", text)
        return ContainerState(_word(match[1] if match else None, node["state"]), *_autostart(node["config"], "onboot"))
    if kind == "lxc":
        word = text_lines(text)[0].lower() if text else None
        return ContainerState(_word(word, node["state"]), *_autostart(node["config"], "lxc.start.auto"))
    if kind in ("incus", "lxd"):
        return _lxd(node["state"], text, name)
    if kind in ("docker", "podman"):
        return _docker(node["state"], text)
    match = re.search(r"^State=(\w+)$", text, re.MULTILINE)
    boot = (node["boot"].text or "").strip() if "boot" in node else ""
    told = {"enabled": True, "disabled": False}.get(boot)
    return ContainerState(_word(match[1] if match else None, node["state"]), told, f"systemd-nspawn@{name}.service")


def _told(reading: Reading, name: str) -> str:
    text = reading.require(remedy="is this the host of the container, and its tool in the PATH?")
    said = f"{text}\n{reading.stderr}"
    if reading.exit_status and _NONE.search(said):
        raise FactUnavailable(
            reading.source,
            f"there is no container {name}: {last_of(said.strip(), 200)}",
            remedy="correct its name; to an account other than root its tool may show no container (--gpu-sudo)",
        )
    return reading.require_success(remedy="asking for containers needs root (--gpu-sudo)").strip()


def _word(word: str | None, reading: Reading) -> str:
    if not word:
        raise ParseError(reading.source, 1, reading.text or "", "not the state of a container")
    return word


def _autostart(reading: Reading, key: str) -> tuple[bool | None, str]:
    """Tell by a configuration whether the container starts at boot; None with the reason where it does not tell."""
    try:
        config = parse_container_config(reading)
    except GpuInfraError as error:
        return None, f"{reading.source}: {error.reason}"
    value = config.last(key)
    if value not in (None, "0", "1"):
        return None, f"{reading.source}: {key} is {value!r}"
    return value == "1", f"{key} in {reading.source}"


def _lxd(reading: Reading, text: str, name: str) -> ContainerState:
    try:
        found = [one for one in load(text) if one["name"] == name]
        if not found:
            raise FactUnavailable(reading.source, f"there is no container {name}")
        boot = {**found[0].get("expanded_config", {}), **found[0].get("config", {})}.get("boot.autostart")
        return ContainerState(found[0]["status"].lower(), None if boot is None else boot == "true", "boot.autostart")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ParseError(reading.source, 1, text, "not a list of containers") from None


def _docker(reading: Reading, text: str) -> ContainerState:
    try:
        seen = load(text)
        return ContainerState(
            seen["state"].lower(),
            seen["restart"] in ("always", "unless-stopped"),
            f"restart policy {seen['restart']!r}",
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ParseError(reading.source, 1, text, "not the state of a container") from None
