"""Which hosts a run is about: what `--gpu-host` names, joined with the inventory."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_gpuinfra.capture.selected import SelectedHost
from pytest_gpuinfra.connection.destination import host_of, refusal
from pytest_gpuinfra.errors import InventoryError
from pytest_gpuinfra.inventory.inventory import (
    FILE_NAME,
    HostSpec,
    Inventory,
    match_aliases,
    parse_inventory,
    read_inventory,
)
from pytest_gpuinfra.inventory.names.hostlist import expand, is_hostlist
from pytest_gpuinfra.inventory.names.named import NamedHost
from pytest_gpuinfra.record.recording import RecordedHost, damaged_host, read_recording


def find_inventory(option: str | None, root: Path) -> tuple[Inventory, str]:
    """
    Read the inventory that is in force, and say where it is; an empty one and "" if there is none.

    Raises:
        InventoryError: The file was named and does not exist, or it is wrong.
    """
    if option:
        return read_inventory(Path(option)), option
    path = root / FILE_NAME
    if os.path.lexists(path):
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
        for host in _hosts(name, _Sources(inventory, source), selected):
            selected.setdefault(host.alias, host)
    return list(selected.values())


@dataclass
class _Sources:
    """The inventory, its file, and the expectations of hosts that it does not name, by their group there."""

    inventory: Inventory
    file: str
    _specs: dict[str, HostSpec] = field(default_factory=dict)

    def spec_of_nobody(self, group: str = "") -> HostSpec:
        """Give what [defaults], and a group, expect of a host that the inventory does not name."""
        if group not in self._specs:
            raw = {
                "defaults": self.inventory.defaults,
                "groups": self.inventory.groups,
                "hosts": {"host": {"group": group} if group else {}},
            }
            spec = parse_inventory(raw, self.file or "[defaults]").hosts["host"]
            self._specs[group] = spec.with_texts(Path(self.file).parent) if self.file else spec
        return self._specs[group]

    @property
    def of_nobody(self) -> str:
        """File that expects something of such a host; "" if there is none."""
        return self.file if self.inventory.defaults else ""


def _hosts(name: str, sources: _Sources, taken: Mapping[str, SelectedHost]) -> Iterator[SelectedHost]:
    """Give the hosts of one value of `--gpu-host`; `taken` grows while they are taken."""
    inventory = sources.inventory
    if not name.strip():
        raise InventoryError("--gpu-host is empty", remedy=_FORMS)
    if name.startswith("replay:"):
        yield from _replayed(name.removeprefix("replay:"), inventory, sources.file)
    elif name.startswith("local:"):
        yield _this_machine(name.removeprefix("local:"), sources)
    elif name.startswith("ansible:"):
        from pytest_gpuinfra.inventory.names.ansible import ansible_hosts

        for host in ansible_hosts(name.removeprefix("ansible:")):
            yield _from_elsewhere(host, f"--gpu-host={name}", sources, taken)
    elif name.startswith("slurm:"):
        from pytest_gpuinfra.inventory.names.slurm import slurm_hosts

        for host in slurm_hosts(name.removeprefix("slurm:")):
            yield _from_elsewhere(host, f"--gpu-host={name}", sources, taken)
    elif is_hostlist(name):
        for one in expand(name, f"--gpu-host={name}"):
            yield from _one_name(one, sources, taken, of_list=True)
    else:
        yield from _one_name(name, sources, taken)


def _this_machine(alias: str, sources: _Sources) -> SelectedHost:
    """Give this machine under a name of the inventory, or another: a node of a cluster that judges itself."""
    if _alias_of(alias) != alias:
        raise InventoryError(
            f"--gpu-host=local:{alias}: a name is letters, digits, '.', '_' and '-', begins with none of '.-', and "
            "has 180 characters at most",
            remedy="write local:NAME with the node's own name, local:$SLURMD_NODENAME in a job of Slurm",
        )
    if alias in sources.inventory.hosts:
        return SelectedHost(alias, "local", "", sources.inventory.hosts[alias], sources.file)
    return SelectedHost(alias, "local", "", sources.spec_of_nobody(), sources.of_nobody)


def _one_name(
    name: str, sources: _Sources, taken: Mapping[str, SelectedHost], *, of_list: bool = False
) -> Iterator[SelectedHost]:
    inventory, source = sources.inventory, sources.file
    aliases = match_aliases(name, inventory)
    if aliases:
        yield from (_declared(alias, inventory, source) for alias in aliases)
        return
    if name.startswith("@"):
        known = ", ".join(f"@{group}" for group in inventory.groups) or "none"
        raise InventoryError(
            f"--gpu-host={name}: no host of {source or FILE_NAME} is in such a group; groups: {known}", remedy=_FORMS
        )
    if name == "local":
        yield SelectedHost("local", "local", "", sources.spec_of_nobody(), sources.of_nobody)
        return
    if name == "all" or any(sign in name for sign in "*?"):
        known = ", ".join(inventory.hosts) or f"none ({source or 'there is no ' + FILE_NAME})"
        raise InventoryError(f"--gpu-host={name} matches no alias; known: {known}", remedy=_FORMS)
    _check_destination(name, f"--gpu-host={name}")
    if not of_list and not re.search(r"[@:/.]", name):
        slips = difflib.get_close_matches(name, inventory.hosts, 1, 0.75)
        if slips:
            raise InventoryError(
                f"--gpu-host={name}: {source} has no such alias; did you mean {slips[0]!r}?",
                remedy=f"for an ssh destination of that name, write ssh://{name}",
            )
    alias = _free_alias(_alias_of(name), name, taken)
    yield SelectedHost(alias, "ssh", name, sources.spec_of_nobody(), sources.of_nobody)


_FORMS = (
    "--gpu-host takes an alias of the inventory, a glob of aliases, 'all', '@GROUP', a hostlist (node[01-64]), an ssh "
    "destination (root@node-a, ssh://root@node-a:2222), 'local', local:ALIAS, ansible:FILE[:GROUP], slurm:PARTITION, "
    "or replay:FILE"
)


def _check_destination(text: str, subject: str) -> None:
    """Refuse what ssh(1) would take for something else than a destination."""
    reason = refusal(text)
    if reason:
        raise InventoryError(f"{subject}: {reason}", remedy=_FORMS)


def _from_elsewhere(
    host: NamedHost, subject: str, sources: _Sources, taken: Mapping[str, SelectedHost]
) -> SelectedHost:
    """Join a host that another tool names with what gpuinfra.toml expects of it, by alias, else by group."""
    inventory = sources.inventory
    alias = _alias_of(host.name)
    if alias in inventory.hosts:
        spec, origin = inventory.hosts[alias], sources.file
        address = _address(alias, spec) if spec.address else host.address
    else:
        groups = [group for group in host.groups if group in inventory.groups]
        if len(groups) > 1:
            raise InventoryError(
                f"{subject}: host {host.name} is in several groups of {sources.file}: {', '.join(groups)}",
                remedy=f"say which one holds for it: [hosts.{alias}] with group = {groups[0]!r}",
            )
        spec = sources.spec_of_nobody(groups[0] if groups else "")
        if host.sudo and not spec.sudo:
            spec = spec.model_copy(update={"sudo": True})
        origin = sources.file if groups else sources.of_nobody
        address = host.address
    if address == "local":
        return SelectedHost(alias, "local", "", spec, origin)
    _check_destination(address, f"{subject}: host {host.name}: {address!r}")
    return SelectedHost(_free_alias(alias, address, taken), "ssh", address, spec, origin)


def _free_alias(alias: str, destination: str, taken: Mapping[str, SelectedHost]) -> str:
    """Give an alias that no other host of the run has; the same destination keeps the one that it has."""
    while alias in taken and taken[alias].destination != destination:
        alias += "-again"
    return alias


def _address(alias: str, spec: HostSpec) -> str:
    return (spec.address or alias).replace("{alias}", alias)


def _declared(alias: str, inventory: Inventory, source: str) -> SelectedHost:
    spec = inventory.hosts[alias]
    address = _address(alias, spec)
    if address == "local":
        return SelectedHost(alias, "local", "", spec, source)
    return SelectedHost(alias, "ssh", address, spec, source)


def _replayed(file: str, inventory: Inventory, source: str) -> list[SelectedHost]:
    recording = read_recording(Path(file))
    hosts = []
    for alias, recorded in recording.hosts.items():
        if alias in inventory.hosts:
            spec = inventory.hosts[alias]
            wanted = _address(alias, spec) if spec.address else ""
            then = _recorded_address(alias, recorded)
            if wanted and then and host_of(wanted) != host_of(then):
                reason = f"the recording {file} is of {then}, and the inventory's address is {wanted}"
                hosts.append(SelectedHost(alias, "replay", "", spec, source, damaged_host(alias, reason).capture))
            else:
                hosts.append(SelectedHost(alias, "replay", "", spec, source, recorded.capture, recorded.gathered))
        else:
            spec = parse_inventory({"hosts": {alias: recorded.spec}}, f"{file}, expectation of {alias}").hosts[alias]
            spec = spec.model_copy(update=_not_followed(recorded))
            origin = "" if spec.expect.empty else f"the recording {file}"
            hosts.append(SelectedHost(alias, "replay", "", spec, origin, recorded.capture, recorded.gathered))
    return hosts


def _recorded_address(alias: str, recorded: RecordedHost) -> str:
    """Give the address that a host was recorded at; "" for one that judged itself, or was not reached by ssh."""
    declared = recorded.spec.get("address")
    if isinstance(declared, str):
        return declared.replace("{alias}", alias)
    way, _, destination = recorded.capture.reached_by.partition(" ")
    return destination if way == "ssh" else ""


def _not_followed(recorded: RecordedHost) -> dict[str, Any]:
    """Give what replaces keys of a recorded expectation: no file of this machine, and the endpoint that was asked."""
    asked = recorded.gathered.get("endpoint")
    if asked is None or recorded.spec.get("endpoint") is None:
        return {"prompts": ()}
    return {"prompts": (), "endpoint": None if asked.get("embedded") else asked["address"]}


def _alias_of(destination: str) -> str:
    """Make a word of a destination: no scheme, no user name, no sign that ids do not have."""
    name = re.sub(r"^ssh://", "", destination).rpartition("@")[2].rstrip("/")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:180].strip("-._") or "host"


def hosts_of_share(hosts: Sequence[SelectedHost], share: int, shares: int) -> list[SelectedHost]:
    """
    Give the hosts of one share of several, in their order.

    A host's share is made of its alias alone, so that none is missed or judged twice when one of the runs
    is given other hosts beside it. Shares are as even as chance makes them.

    Args:
        hosts: All of them.
        share: Which, from 1.
        shares: How many there are.
    """
    return [host for host in hosts if _number_of(host.alias) % shares == share - 1]


def _number_of(alias: str) -> int:
    return int.from_bytes(hashlib.sha256(alias.encode()).digest()[:8], "big")


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
