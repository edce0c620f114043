"""
The path of a running service, put together from what is known of its processes: input of path_safety.py.

Three witnesses tell of NCCL: variables in effect in each rank, the files that the ranks share, and, where a title
overwrote a rank's environment, the process that it was inherited from.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.subjects.path_safety.judge import (
    Path,
    RankPath,
    ServicePath,
    custom_all_reduce_in_effect,
    peer_arguments_in_effect,
)
from pytest_gpuinfra.subjects.service.environment import EnvironmentWitnesses
from pytest_gpuinfra.subjects.service.process import ServiceProcess
from pytest_gpuinfra.subjects.service.transport import see_transport

DECIDING = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")
"""Variables that decide between the paths: where all of them are known in a rank, its environment is known whole."""


def path_of_service(
    name: str,
    ranks: Sequence[ServiceProcess],
    witnesses: EnvironmentWitnesses,
    *,
    engine: str | None,
    devices: Sequence[str] = (),
) -> ServicePath:
    """
    Put the path of a service together.

    Args:
        name: Its unit, or what else it is called.
        ranks: Its ranks, in their order; () if none was found.
        witnesses: What tells of its environment, its main process among them.
        engine: Name of the engine ("SGLang"); None if it is not known.
        devices: PCI addresses that the ranks run on, by rank; () if unknown.
    """
    seen = _seen(ranks, name)
    main = witnesses.main
    arguments = None if main is None or main.renamed else main.argv
    word = (engine or "").lower()
    return ServicePath(
        name,
        tuple(devices),
        tuple(
            RankPath(number, witnesses.known_in(rank, "NCCL_"), _whole(rank, witnesses), seen[number])
            for number, rank in enumerate(ranks)
        ),
        custom_all_reduce_in_effect(word, arguments),
        peer_arguments_in_effect(word, arguments),
    )


def _whole(rank: ServiceProcess, witnesses: EnvironmentWitnesses) -> bool:
    found = [value for name in DECIDING for value in witnesses.of(name).values if value.process == str(rank)]
    return len(found) == len(DECIDING) and all(value.known for value in found)


def _seen(ranks: Sequence[ServiceProcess], name: str) -> tuple[Path | None, ...]:
    """Give what each rank is seen to use; files that it shares with another mean SHM, none shared tells nothing."""
    try:
        shared = see_transport(ranks, name).shared
    except FactUnavailable:
        return (None,) * len(ranks)
    return tuple("SHM" if names else None for names in shared)
