"""A host that another tool's inventory names: what it is called, how it is reached, which groups it is in there."""

from __future__ import annotations

import re
from dataclasses import dataclass

ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""What a host is called in ids, files and reports; names of files, which hold it, have 255 bytes at most."""


@dataclass(frozen=True, slots=True)
class NamedHost:
    """
    One host as another tool names it.

    Attributes:
        name: Its name there; the alias is made of it.
        address: What ssh(1) takes, or "local" for this machine.
        groups: Groups that it is in there, by name. A group of the same name in gpuinfra.toml applies to it.
        sudo: Whether that tool becomes root there.
    """

    name: str
    address: str
    groups: tuple[str, ...] = ()
    sudo: bool = False
