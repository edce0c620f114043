"""
Which transport NCCL is seen to use between a service's ranks, from the files in /dev/shm that they share.

Over SHM two ranks map the same /dev/shm/nccl-* files; over P2P each has a few of its own, for its proxy, and shares
none.
Source: seen on two H200s, SGLang 0.5 with NCCL 2.28, TP=2: 28 files shared under SHM, none otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.subjects.service.process import ServiceProcess

BEGINNING = "/dev/shm/nccl-"


@dataclass(frozen=True, slots=True)
class SeenTransport:
    """
    What the ranks share.

    Attributes:
        by_rank: Names that each rank has open. Shape (world_size,), by rank.
        shared: Of each rank, the names that another rank has open, too. Shape (world_size,), by rank.
    """

    by_rank: tuple[frozenset[str], ...]
    shared: tuple[frozenset[str], ...]

    @property
    def words(self) -> str:
        """ "SHM" if every rank shares some, "not SHM" if none does, "mixed" otherwise."""
        sharing = [bool(names) for names in self.shared]
        return "SHM" if all(sharing) else "mixed" if any(sharing) else "not SHM"

    def __str__(self) -> str:
        ranks = ", ".join(
            f"rank {rank} has {len(names)} open and shares {len(shared)}"
            for rank, (names, shared) in enumerate(zip(self.by_rank, self.shared, strict=True))
        )
        return f"{self.words} ({ranks})"


def see_transport(ranks: Sequence[ServiceProcess], where: str) -> SeenTransport:
    """
    Judge what the ranks have open.

    Raises:
        FactUnavailable: There are fewer than two ranks, what one has open cannot be read, or none has such a file.
    """
    if len(ranks) < 2:
        raise FactUnavailable(where, f"{len(ranks)} ranks were found; a transport needs two", remedy=_LOOK)
    names = []
    for rank in ranks:
        if rank.opened is None:
            raise FactUnavailable(
                f"/proc/{rank.pid}/fd", "what this rank has open cannot be read", remedy="read as root (--gpu-sudo)"
            )
        names.append(frozenset(path.removesuffix(" (deleted)") for path in rank.opened if path.startswith(BEGINNING)))
    if not any(names):
        raise FactUnavailable(
            where,
            f"no rank has a file {BEGINNING}* open: NCCL has not made its channels, or does not tell",
            remedy=_LOOK,
        )
    shared = tuple(
        frozenset().union(*(mine & other for number, other in enumerate(names) if number != place))
        for place, mine in enumerate(names)
    )
    return SeenTransport(tuple(names), shared)


_LOOK = "see whether the model is loaded and sharded; NCCL's own log (NCCL_DEBUG=INFO) tells, too"
