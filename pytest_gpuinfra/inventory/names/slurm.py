"""
Hosts that Slurm knows: `slurm:PARTITION`, `slurm:node[1-3]`, `slurm:all`.

Source: sinfo(1), `--Node --noheader --format "%R|%N|%o"`: partition, node name, communication address (NodeAddr);
one line for each node of each partition, whatever its state.
"""

from __future__ import annotations

import difflib
import subprocess

from pytest_gpuinfra.errors import InventoryError
from pytest_gpuinfra.inventory.names.hostlist import expand
from pytest_gpuinfra.inventory.names.named import NamedHost
from pytest_gpuinfra.wire import text_lines

ARGV = ("sinfo", "--Node", "--noheader", "--format", "%R|%N|%o")
"""What is run on this machine, and nothing else."""

_TIMEOUT_S = 60.0


def slurm_hosts(wanted: str) -> list[NamedHost]:
    """
    Give the nodes of a partition, of a hostlist, or all ("all"), in Slurm's order; down and drained ones as well.

    Args:
        wanted: What stands behind `slurm:`; several with commas between them.

    Raises:
        InventoryError: There is no sinfo here, it failed, or it knows no such partition or node.
    """
    return pick_slurm_hosts(_ask(wanted), wanted)


def pick_slurm_hosts(text: str, wanted: str) -> list[NamedHost]:
    """
    Read sinfo's answer, and pick what is wanted.

    Raises:
        InventoryError: It has another shape, or knows no such partition or node.
    """
    subject = f"--gpu-host=slurm:{wanted}"
    addresses: dict[str, str] = {}
    partitions: dict[str, list[str]] = {}
    for line in text_lines(text):
        fields = line.strip().split("|")
        if len(fields) != 3 or not fields[1]:
            raise InventoryError(f"{subject}: sinfo printed a line of another shape: {line!r}")
        partition, node, address = fields
        addresses[node] = address or node
        partitions.setdefault(partition, []).append(node)
    picked: list[str] = []
    for word in expand(wanted, subject) if wanted else ["all"]:
        if word in partitions:
            picked += partitions[word]
        elif word in addresses:
            picked.append(word)
        elif word == "all":
            picked += addresses
        else:
            raise _unknown(subject, word, partitions, addresses)
    if not picked:
        raise InventoryError(f"{subject}: Slurm shows no node", remedy="see what `sinfo -N` prints here")
    return [
        NamedHost(node, addresses[node], tuple(name for name, nodes in partitions.items() if node in nodes))
        for node in dict.fromkeys(picked)
    ]


def _unknown(subject: str, word: str, partitions: dict[str, list[str]], addresses: dict[str, str]) -> InventoryError:
    close = difflib.get_close_matches(word, [*partitions, *list(addresses)[:1000]], 1, 0.7)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    known = ", ".join(partitions) or "none"
    return InventoryError(
        f"{subject}: Slurm knows no partition or node {word!r}{guess}",
        remedy=f"partitions here: {known}; nodes: `sinfo -N`",
    )


def _ask(wanted: str) -> str:
    subject = f"--gpu-host=slurm:{wanted}"
    try:
        ended = subprocess.run(
            ARGV, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise InventoryError(
            f"{subject}: there is no sinfo on this machine",
            remedy="install Slurm's client commands here (slurm-client), or name the nodes: node[1-3]",
        ) from None
    except subprocess.TimeoutExpired:
        raise InventoryError(
            f"{subject}: sinfo did not end within {_TIMEOUT_S:g} s", remedy="see whether slurmctld answers"
        ) from None
    if ended.returncode:
        said = ended.stderr.strip()[-300:] or f"exit status {ended.returncode}"
        raise InventoryError(f"{subject}: sinfo failed: {said}", remedy="see whether `sinfo -N` works here")
    return ended.stdout
