"""
Hostlists: `node[01-64]`, `rack[1-2]n[1-16/2]`, `login1,node[1-3]`.

Source: ClusterShell, NodeSet; the same notation that Slurm, pdsh and clush print and take.
A bracket is read as a range only if it holds digits, commas, dashes and slashes alone and is no IPv6 address.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from pytest_gpuinfra.errors import InventoryError

MOST = 100_000
"""Hosts that one hostlist may stand for; beyond that it is taken for a slip."""

_BRACKET = re.compile(r"\[(\d[\d,/-]*)\]")
_COMMA = re.compile(r",(?![^\[]*\])")
_PARTS = re.compile(r"(?P<before>(?:ssh://)?(?:[^@/]*@)?)(?P<host>(?:\[[^]]*\]|[^]@:/[])+)(?P<after>(?::\d+)?/?)")
_REMEDY = (
    "a hostlist is node[01-64], node[1-9/2], rack[1-2]n[1-4], or several with commas between them; "
    "each may have USER@ or ssh://USER@ before it and, after ssh://, :PORT behind it"
)


def is_hostlist(text: str) -> bool:
    """Tell whether a text stands for several hosts by ranges or commas."""
    return bool(_BRACKET.search(text) or _COMMA.search(text))


def expand(text: str, subject: str) -> list[str]:
    """
    Give the names that a hostlist stands for, each once, with what stands before and behind each of them.

    Args:
        text: "root@node[01-64]", "login1,node[1-3]", "ssh://root@node[1-3]:2222".
        subject: Where it was written, for messages: "--gpu-host=root@node[01-64]".

    Returns:
        Shape (n >= 1,): those between two commas in the order of their numbers.

    Raises:
        InventoryError: It is no hostlist, or stands for more than MOST hosts.
    """
    return list(dict.fromkeys(name for part in _COMMA.split(text) for name in _expand_part(part.strip(), subject)))


def _expand_part(part: str, subject: str) -> Iterator[str]:
    if not part:
        raise InventoryError(f"{subject}: nothing stands before or behind a comma", remedy=_REMEDY)
    if not _BRACKET.search(part):
        yield part
        return
    match = _PARTS.fullmatch(part)
    if match is None or _BRACKET.search(match["before"] + match["after"]):
        raise InventoryError(f"{subject}: {part!r} has a range outside of the host's name", remedy=_REMEDY)
    from ClusterShell.NodeSet import (  # type: ignore[import-untyped]
        RESOLVER_NOGROUP,
        NodeSet,
        NodeSetException,
    )

    if math.prod(_count(bracket, subject) for bracket in _BRACKET.findall(match["host"])) > MOST:
        raise InventoryError(f"{subject}: more than {MOST} hosts", remedy=_REMEDY)
    try:
        nodes = NodeSet(match["host"], resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        raise InventoryError(f"{subject}: {error}", remedy=_REMEDY) from None
    for node in nodes:
        yield f"{match['before']}{node}{match['after']}"


def _count(bracket: str, subject: str) -> int:
    """Count what a bracket stands for, before anything is made of it; an upper bound where ranges overlap."""
    total = 0
    for piece in bracket.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?:/([1-9]\d*))?)?", piece)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise InventoryError(f"{subject}: {piece!r} in [{bracket}] is no range", remedy=_REMEDY)
        total += 1 if match[2] is None else (int(match[2]) - int(match[1])) // int(match[3] or 1) + 1
    return total
