"""Topic nccl-log: NCCL's and RCCL's logs, and what an engine says of its own all-reduce."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.facts.engine_allreduce import parse_engine_allreduce
from pytest_gpuinfra.facts.nccl_edge import NcclEdge
from pytest_gpuinfra.facts.nccl_log import NcclLog, NcclWarning, parse_nccl_log
from pytest_gpuinfra.verdict.collective_log import judge_engine_allreduce, judge_nccl_log
from tests.cases.adapters.result import Result, result, unread
from tests.cases.case import Case

_KILLED = re.compile(
    r"\((?:no further output\b.*|.*\bkilled after \d+ s.*|timed out.*)\)|^timeout: sending signal", re.MULTILINE
)


def judge(case: Case) -> Result:
    """Judge the log; a note of whoever killed the run stands for the deadline's outcome."""
    killed = bool(_KILLED.search(case.text))
    try:
        if " NCCL " not in case.text and "llreduce" in case.text:
            engine = parse_engine_allreduce(case.reading)
            off = engine.disabled_because is not None
            parsed = {"custom_allreduce": False if off else None, "nccl_p2p": None}
            return result(judge_engine_allreduce(engine, peer_access=case.peer_access), parsed)
        log = parse_nccl_log(case.reading)
    except GpuInfraError as error:
        return unread(error, {"edges": []})
    verdict = judge_nccl_log(log, peer_access=case.peer_access, timed_out=killed)
    return result(verdict, _parsed(case, log, killed))


def _parsed(case: Case, log: NcclLog, killed: bool) -> dict[str, Any]:
    rings = any(edge.word == "Ring" for edge in log.edges)
    return {
        "edges": _edges(log.edges, case.parsed.get("edges")),
        "warn": _warnings(log.warnings, case.parsed.get("warn")),
        "library": log.library,
        "version": log.version,
        "version_style": "2.4 (Ring)" if rings else "Channel",
        "channels": log.channels,
        "wrong": log.wrong,
        "init_complete": log.init_complete,
        "timeout": killed or any("timeout" in line for line in log.framework_errors),
    }


def _edges(edges: Sequence[NcclEdge], expected: object) -> list[dict[str, Any]]:
    """Put the channels of one connection together; NET stands with its plugin where the case writes it so."""
    joined = (
        any("NET/" in str(edge.get("transport")) for edge in expected or ()) if isinstance(expected, list) else False
    )
    groups: dict[tuple[object, ...], list[NcclEdge]] = {}
    for edge in edges:
        key = (edge.src, edge.dst, edge.transport, edge.detail, edge.net, edge.direction)
        groups.setdefault(key, []).append(edge)
    return [
        {
            "from": edge.src,
            "to": edge.dst,
            "transport": f"NET/{edge.net}" if joined and edge.net else edge.transport,
            "detail": edge.detail,
            "read": edge.reads,
            "dir": edge.direction,
            "net": edge.net,
            "dev": edge.net_device,
            "proxy_rank": edge.proxy_rank,
            "gdr": edge.gdr,
            "from_busid": edge.src_bus_id,
            "to_busid": edge.dst_bus_id,
            "channels": [item.channel for item in group],
        }
        for group in groups.values()
        for edge in group[:1]
    ]


def _warnings(warnings: Sequence[NcclWarning], expected: object) -> object:
    """Give the warnings in the form that the case has them in: a number, words, or fields."""
    if isinstance(expected, int):
        return len(warnings)
    if isinstance(expected, list) and expected and isinstance(expected[0], str):
        return [warning.kind for warning in warnings]
    return [{"file": warning.file, "cuda_error": warning.cuda_error, "text": warning.text} for warning in warnings]
