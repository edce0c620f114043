"""
Hosts of an Ansible inventory: `ansible:FILE`, `ansible:FILE:GROUP`.

Ansible's own `ansible-inventory --list` reads it, so files, folders, scripts and plugins of any kind work.
Name, address, user, port and privilege are taken over; keys and jump hosts come from the user's ssh configuration.

Source: ansible-inventory(1), JSON of --list: {"_meta": {"hostvars": {HOST: {...}}}, GROUP: {"hosts": [...],
"children": [...]}}; connection variables as in "How to build your inventory", ansible-core 2.19.
"""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from pytest_gpuinfra.errors import InventoryError
from pytest_gpuinfra.input_file import parse_json
from pytest_gpuinfra.inventory.names.named import NamedHost

_TIMEOUT_S = 120.0
_STRICT = {
    "ANSIBLE_INVENTORY_UNPARSED_FAILED": "true",
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
    "ANSIBLE_NOCOLOR": "true",
    "ANSIBLE_DEPRECATION_WARNINGS": "false",
}
"""By default Ansible calls a file that it cannot read an empty inventory, and succeeds."""


class _Group(TypedDict, total=False):
    hosts: list[str]
    children: list[str]


_GROUPS = TypeAdapter(dict[str, _Group])
_HOSTS = TypeAdapter(dict[str, dict[str, Any]])


def ansible_hosts(named: str) -> list[NamedHost]:
    """
    Give the hosts of an Ansible inventory, or of one of its groups, in its order.

    Args:
        named: What stands behind `ansible:`: FILE, or FILE:GROUP.

    Raises:
        InventoryError: Ansible is not here, cannot read it, knows no such group, or a host of it cannot be taken over.
    """
    file, group = named, "all"
    if not Path(named).exists() and ":" in named:
        file, _, group = named.rpartition(":")
    subject = f"--gpu-host=ansible:{named}"
    if not (Path(file).is_file() or Path(file).is_dir()):
        what = f"{file} is neither a file nor a folder" if Path(file).exists() else f"there is no {file}"
        raise InventoryError(f"{subject}: {what}", remedy="write ansible:FILE, or ansible:FILE:GROUP")
    return pick_ansible_hosts(_ask(file, subject), group, subject)


def pick_ansible_hosts(text: str, group: str, subject: str) -> list[NamedHost]:
    """
    Read ansible-inventory's answer, and pick a group.

    Raises:
        InventoryError: It has another shape, there is no such group, or a host of it cannot be taken over.
    """
    try:
        document = parse_json(text, subject, InventoryError)
        variables: Mapping[str, Mapping[str, Any]] = document.pop("_meta")["hostvars"]
        _HOSTS.validate_python(variables)
        _GROUPS.validate_python(document)
        members = {name: list(dict.fromkeys(_members(document, name, ()))) for name in document}
    except (KeyError, TypeError, AttributeError, RecursionError, ValidationError) as error:
        reason = str(error).replace("\n", " ")[:200]
        raise InventoryError(
            f"{subject}: ansible-inventory's answer is not understood: {type(error).__name__} {reason}"
        ) from None
    if group not in members:
        close = difflib.get_close_matches(group, members, 1, 0.6)
        guess = f"; did you mean {close[0]!r}?" if close else ""
        raise InventoryError(
            f"{subject}: the inventory has no group {group!r}{guess}", remedy=f"groups: {', '.join(sorted(members))}"
        )
    if not members[group]:
        raise InventoryError(f"{subject}: group {group!r} has no host")
    groups: dict[str, list[str]] = {}
    for name, hosts in members.items():
        for host in hosts:
            groups.setdefault(host, []).append(name)
    return [_named(host, variables.get(host, {}), tuple(groups[host]), subject) for host in members[group]]


def _members(document: Mapping[str, Any], group: str, above: tuple[str, ...]) -> Iterator[str]:
    found = document.get(group, {})
    yield from found.get("hosts", ())
    for child in found.get("children", ()):
        if child not in above:
            yield from _members(document, child, (*above, group))


def _named(name: str, variables: Mapping[str, Any], groups: tuple[str, ...], subject: str) -> NamedHost:
    def value(*keys: str) -> str:
        found = next((variables[key] for key in keys if variables.get(key) is not None), "")
        if "{{" in str(found):
            raise InventoryError(
                f"{subject}: host {name}: {keys[0]} is a template, {found!r}, which only a play fills in",
                remedy=f"give {name} an address in gpuinfra.toml, or a plain {keys[0]} in Ansible's inventory",
            )
        return str(found)

    way = value("ansible_connection")
    if way == "local":
        return NamedHost(name, "local", groups)
    if way not in ("", "ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh"):
        raise InventoryError(
            f"{subject}: host {name}: ansible_connection is {way!r}, and hosts are reached by ssh",
            remedy="take a group without it",
        )
    host = value("ansible_host", "ansible_ssh_host") or name
    user = value("ansible_user", "ansible_ssh_user")
    port = value("ansible_port", "ansible_ssh_port")
    who = f"{user}@" if user else ""
    if port and port != "22":
        place = f"[{host}]" if ":" in host else host
        address = f"ssh://{who}{place}:{port}"
    else:
        address = f"{who}{host}"
    return NamedHost(name, address, groups, sudo=value("ansible_become").lower() in ("true", "yes", "1"))


def _ask(file: str, subject: str) -> str:
    beside = str(Path(sys.executable).parent)
    program = shutil.which("ansible-inventory") or shutil.which("ansible-inventory", path=beside)
    if program is None:
        raise InventoryError(
            f"{subject}: there is no ansible-inventory on this machine",
            remedy="install ansible-core here (pip install ansible-core), or name the hosts: node[1-3]",
        )
    try:
        ended = subprocess.run(
            [program, "-i", file, "--list"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, **_STRICT},
        )
    except subprocess.TimeoutExpired:
        raise InventoryError(f"{subject}: ansible-inventory did not end within {_TIMEOUT_S:g} s") from None
    if ended.returncode:
        said = ended.stderr.strip()[-600:] or f"exit status {ended.returncode}"
        raise InventoryError(f"{subject}: ansible-inventory failed: {said}", remedy=f"see `{program} -i {file} --list`")
    return ended.stdout
