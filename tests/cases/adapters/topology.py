"""Topic topology: nvidia-smi's matrices, and what the CUDA samples say of peer access."""

from __future__ import annotations

from typing import Any

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.facts.peer_access import PeerAccess, parse_peer_access
from pytest_gpuinfra.facts.topology import P2P_WORDS, Topology, parse_topology
from pytest_gpuinfra.verdict.peer_capability import judge_peer_access, judge_topology
from tests.cases.adapters.result import Result, result, unread
from tests.cases.case import Case


def judge(case: Case) -> Result:
    """Judge by the parser of the tool that printed the text."""
    try:
        if "eer access from" in case.text or "Access Peer" in case.text or "Connectivity Matrix" in case.text:
            access = parse_peer_access(case.reading)
            return result(judge_peer_access(access, required=case.peer_access), _access(access))
        topology = parse_topology(case.reading)
        return result(judge_topology(topology, peer_access=case.peer_access), _topology(topology))
    except GpuInfraError as error:
        return unread(error, {"matrix": None})


def _access(access: PeerAccess) -> dict[str, Any]:
    return {
        "pairs": [list(pair) for pair in access.both_ways],
        "missing": [list(pair) for pair in access.without],
        "yes": [list(pair) for pair, granted in access.granted.items() if granted],
        "no": [list(pair) for pair, granted in access.granted.items() if not granted],
    }


def _topology(topology: Topology) -> dict[str, Any]:
    first = topology.matrices[0]
    grants, links = topology.of_kind("p2p"), topology.of_kind("link")
    parsed: dict[str, Any] = {
        "gpus": list(first.gpus),
        "columns": list(first.columns),
        "nics": dict(topology.nics),
        "cpu_affinity": _shared(first.cpu_affinity),
        "numa": _shared({row: int(word) for row, word in first.numa_affinity.items() if word.isdigit()}, alone=True),
    }
    if grants:
        words = set(grants.gpu_pairs.values())
        parsed |= {
            "matrix": {
                row: {column: word for (src, column), word in grants.cells.items() if src == row} for row in grants.gpus
            },
            "meaning": P2P_WORDS.get(words.pop()) if len(words) == 1 else None,
            "pairs_ok": sum(
                word == "OK" and grants.gpu_pairs.get((dst, src)) == "OK" and src < dst
                for (src, dst), word in grants.gpu_pairs.items()
            ),
        }
    if links:
        order = {name: place for place, name in enumerate(links.columns)}
        parsed["links"] = {
            f"{row}-{column}": word for (row, column), word in links.cells.items() if order[row] < order[column]
        }
    return parsed


def _shared(values: Any, *, alone: bool = False) -> Any:
    """Give the one value that all rows share where there are several rows or that form is wanted, else all."""
    if values and len(set(values.values())) == 1 and (alone or len(values) > 1):
        return next(iter(values.values()))
    return dict(values)
