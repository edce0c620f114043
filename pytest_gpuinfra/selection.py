"""Which hosts a run is about: what `--gpu-host` names, joined with the inventory."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_gpuinfra.capture import Capture
from pytest_gpuinfra.errors import InventoryError
from pytest_gpuinfra.inventory import (
    FILE_NAME,
    HostSpec,
    Inventory,
    match_aliases,
    parse_inventory,
    read_inventory,
)
from pytest_gpuinfra.recording import read_recording


@dataclass(frozen=True)
class SelectedHost:
    """
    One host of this run.

    Attributes:
        alias: Its name in ids, tables and reports.
        way: "ssh", "local" or "replay".
        destination: What ssh(1) takes; "" unless the way is ssh.
        spec: What is expected of it.
        expectation_from: File or recording that the expectation comes from; "" if nothing is expected.
        capture: What the recording holds; None unless the way is replay.
        gathered: What the recording holds beside it: the endpoint's answers.
    """

    alias: str
    way: str
    destination: str
    spec: HostSpec
    expectation_from: str = ""
    capture: Capture | None = None
    gathered: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reached_by(self) -> str:
        """Say how, in the words of a person."""
        return f"ssh {self.destination}" if self.way == "ssh" else self.way


def find_inventory(option: str | None, root: Path) -> tuple[Inventory, str]:
    """
    Read the inventory that is in force, and say where it is; an empty one and "" if there is none.

    Raises:
        InventoryError: The file was named and does not exist, or it is wrong.
    """
    if option:
        return read_inventory(Path(option)), option
    path = root / FILE_NAME
    if path.is_file():
        return read_inventory(path), str(path)
    return Inventory(), ""


def select_hosts(names: Sequence[str], inventory: Inventory, source: str) -> list[SelectedHost]:
    """
    Give the hosts that the options name, each once, in their order.

    Args:
        names: Values of `--gpu-host`.
        inventory: The inventory in force; may be empty.
        source: Its file, for messages; "" if there is none.

    Raises:
        InventoryError: A name is a slip of an alias, a glob matches nothing, "all" has nobody to stand for.
        RecordingError: A recording cannot be read.
    """
    selected: dict[str, SelectedHost] = {}
    for name in names:
        for host in _hosts(name, inventory, source, selected):
            selected.setdefault(host.alias, host)
    return list(selected.values())


def _hosts(name: str, inventory: Inventory, source: str, taken: Iterable[str]) -> Iterable[SelectedHost]:
    if not name.strip():
        raise InventoryError("--gpu-host is empty", remedy=_FORMS)
    if name.startswith("replay:"):
        return _replayed(name.removeprefix("replay:"), inventory, source)
    aliases = match_aliases(name, inventory)
    if aliases:
        return [_declared(alias, inventory, source) for alias in aliases]
    if name == "local":
        return [SelectedHost("local", "local", "", _ad_hoc_spec(inventory), source if inventory.defaults else "")]
    if name == "all" or any(sign in name for sign in "*?"):
        known = ", ".join(inventory.hosts) or f"none ({source or 'there is no ' + FILE_NAME})"
        raise InventoryError(f"--gpu-host={name} matches no alias; known: {known}", remedy=_FORMS)
    if name.startswith("-"):
        raise InventoryError(f"--gpu-host={name}: a destination does not begin with a dash", remedy=_FORMS)
    if re.search(r"\s", name):
        raise InventoryError(f"--gpu-host={name!r}: a destination holds no space", remedy=_FORMS)
    slips = difflib.get_close_matches(name, inventory.hosts, 1, 0.75)
    if slips and not re.search(r"[@:/.]", name):
        raise InventoryError(
            f"--gpu-host={name}: {source} has no such alias; did you mean {slips[0]!r}?",
            remedy=f"for an ssh destination of that name, write ssh://{name}",
        )
    alias = _alias_of(name)
    while alias in taken:
        alias += "-again"
    return [SelectedHost(alias, "ssh", name, _ad_hoc_spec(inventory), source if inventory.defaults else "")]


_FORMS = (
    "--gpu-host takes an alias of the inventory, a glob of aliases, 'all', an ssh destination "
    "(root@node-a, ssh://root@node-a:2222), 'local', or replay:FILE"
)


def _declared(alias: str, inventory: Inventory, source: str) -> SelectedHost:
    spec = inventory.hosts[alias]
    address = spec.address or alias
    if address == "local":
        return SelectedHost(alias, "local", "", spec, source)
    return SelectedHost(alias, "ssh", address, spec, source)


def _ad_hoc_spec(inventory: Inventory) -> HostSpec:
    return parse_inventory({"hosts": {"host": inventory.defaults}}, "[defaults]").hosts["host"]


def _replayed(file: str, inventory: Inventory, source: str) -> list[SelectedHost]:
    recording = read_recording(Path(file))
    hosts = []
    for alias, recorded in recording.hosts.items():
        if alias in inventory.hosts:
            hosts.append(
                SelectedHost(alias, "replay", "", inventory.hosts[alias], source, recorded.capture, recorded.gathered)
            )
        else:
            spec = parse_inventory({"hosts": {alias: recorded.spec}}, f"{file}, expectation of {alias}").hosts[alias]
            origin = "" if spec.expect.empty else f"the recording {file}"
            hosts.append(SelectedHost(alias, "replay", "", spec, origin, recorded.capture, recorded.gathered))
    return hosts


def _alias_of(destination: str) -> str:
    """Make a word of a destination: no scheme, no user name, no sign that ids do not have."""
    name = re.sub(r"^ssh://", "", destination).rpartition("@")[2].rstrip("/")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "host"


def join_inventory(inventory: Inventory, more: Mapping[str, object]) -> Inventory:
    """
    Add hosts that a plugin gives to the file's.

    Raises:
        InventoryError: They are wrong, or name a host that is there already.
    """
    added = parse_inventory(more, "hook pytest_gpuinfra_inventory")
    both = sorted(set(added.hosts) & set(inventory.hosts))
    if both:
        raise InventoryError(f"hook pytest_gpuinfra_inventory: host {both[0]!r} is in the inventory already")
    return inventory.model_copy(update={"hosts": {**inventory.hosts, **added.hosts}})
