"""
Logins that begin before anything else is read or imported.

Logging in takes longer than all that a run prepares before its captures. Where there is no inventory, what
`--gpu-host` names is an ssh destination for certain, and its login can begin at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from pytest_gpuinfra.connection.rights import Sudo
from pytest_gpuinfra.connection.ssh import SshConnection

_PLAIN_DESTINATION = re.compile(r"(ssh://)?(\w[\w.-]*@)?[A-Za-z0-9][\w.-]*(?(1)(:\d+)?)")
_OTHER_WORDS = ("all", "local")


def open_plain_destinations(
    names: Iterable[str], inventory: Path, *, ssh_config: str | None, sudo: Sudo, connect_timeout_s: float
) -> dict[str, SshConnection]:
    """
    Begin to log in to what can only be ssh destinations.

    Args:
        names: Values of `--gpu-host`.
        inventory: Where the inventory would be; nothing is certain if it exists.

    Returns:
        Connections by destination, with their first sessions begun.
    """
    if os.path.lexists(inventory):
        return {}
    certain = [name for name in names if _PLAIN_DESTINATION.fullmatch(name) and name not in _OTHER_WORDS]
    opened = {}
    for name in dict.fromkeys(certain):
        opened[name] = SshConnection(name, name, config=ssh_config, sudo=sudo, connect_timeout_s=connect_timeout_s)
        opened[name].open_early()
    return opened
