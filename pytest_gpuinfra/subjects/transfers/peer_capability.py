"""
Peer access as a capability: granted by the driver or not. A grant is no proof that a copy arrives.
"""

from __future__ import annotations

from pytest_gpuinfra.subjects.gpu.topology import P2P_WORDS, Topology
from pytest_gpuinfra.subjects.transfers.peer_access import PeerAccess
from pytest_gpuinfra.subjects.verdict import Ending, Verdict

_NOT_A_TEST = "this is a grant by the driver, not a transfer test"


def judge_topology(topology: Topology, *, peer_access: bool = False) -> Verdict:
    """
    Judge what `nvidia-smi topo` shows.

    The grants decide where they are shown; kinds of connection alone decide nothing about peer access.
    """
    grants, links = topology.of_kind("p2p"), topology.of_kind("link")
    gpus = max((matrix.gpus for matrix in topology), key=len)
    if len(gpus) < 2:
        return _verdict("skip", f"{len(gpus)} GPU: no pair to check", ())
    if grants:
        refused = {pair: word for pair, word in grants.gpu_pairs.items() if word != "OK"}
        if not refused:
            return _verdict("ok", f"all {len(grants.gpu_pairs)} directed pairs granted", (_NOT_A_TEST,))
        shown = ", ".join(
            f"{src}-{dst} {word} ({P2P_WORDS.get(word, 'not known')})" for (src, dst), word in refused.items()
        )
        return _verdict("wrong" if peer_access else "skip", f"not granted: {shown}", ())
    if links and not peer_access:
        kinds = ", ".join(sorted(set(links.gpu_pairs.values())))
        return _verdict("ok", f"{len(gpus)} GPUs, connected by {kinds}", ())
    return _verdict("skip", "kinds of connection alone do not tell of peer access", ())


def judge_peer_access(access: PeerAccess, *, required: bool = False) -> Verdict:
    """Judge which pairs have peer access in both directions, as far as it is told."""
    if len(access.devices) < 2:
        return _verdict("skip", "no pair to check", ())
    refused = sorted(pair for pair, granted in access.granted.items() if not granted)
    missing = refused or list(access.without)
    if not missing:
        return _verdict("ok", f"all {len(access.both_ways)} pairs in both directions", (_NOT_A_TEST,))
    return _verdict("wrong" if required else "skip", f"no peer access: {', '.join(f'{a}-{b}' for a, b in missing)}", ())


def _verdict(ending: Ending, observed: str, warnings: tuple[str, ...]) -> Verdict:
    return Verdict(
        ending=ending,
        subject="peer access",
        observed=observed,
        expected="granted for every directed pair",
        why="without it every copy between GPUs is staged through host memory",
        action="see the topology attached to this test: socket, switch, driver; GNS is the driver's own choice",
        warnings=warnings,
    )
