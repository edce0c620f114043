"""NCCL's own log judged: warnings, whether it came to an end, and transports against what was asked for."""

from __future__ import annotations

from pytest_gpuinfra.masking import first_of, last_of
from pytest_gpuinfra.subjects.transfers.nccl_edge import NcclEdge
from pytest_gpuinfra.subjects.transfers.nccl_log import NcclLog
from pytest_gpuinfra.subjects.verdict import Ending, Verdict

_HARMLESS = frozenset({"NUMA balancing"})


def judge_nccl_log(log: NcclLog, *, direct: bool | None = None, timed_out: bool = False) -> Verdict:
    """
    Judge what NCCL logged.

    Args:
        log: Log of the ranks.
        direct: Whether GPUs of one host must reach each other directly (no SHM, and no network within a host), must
            not (no P2P), or may do either (None).
        timed_out: Whether the run was ended by its deadline.
    """
    notes = tuple(warning.text for warning in log.warnings if warning.kind in _HARMLESS)
    failures = [warning for warning in log.warnings if warning.kind not in _HARMLESS]
    detour = [edge for edge in log.edges if edge.transport == "SHM" or (edge.transport == "NET" and log.nodes == 1)]
    peers = [edge for edge in log.edges if edge.transport == "P2P"]
    if failures:
        where = f" ({failures[0].file})" if failures[0].file else ""
        more = f"; and {len(failures) - 1} more" if len(failures) > 1 else ""
        return _verdict("wrong", f"{log.library or 'NCCL'} warns: {failures[0].text}{where}{more}", notes)
    if log.framework_errors:
        return _verdict("wrong", f"the framework gives up: {first_of(log.framework_errors[0], 200)}", notes)
    if log.wrong:
        return _verdict("wrong", f"{log.wrong} wrong values in the result", notes)
    if timed_out:
        return _verdict("wrong", f"it did not come to an end; its last line: {last_of(log.last_line, 200)}", notes)
    if not log.edges:
        return _verdict("error", "no line names a transport: the log ends before the connections, or hides them", notes)
    if direct is True and detour:
        return _verdict("wrong", f"not direct inside the host: {_pairs(detour)}", notes)
    if direct is False and peers:
        return _verdict("wrong", f"peer copies where there must be none: {_pairs(peers)}", notes)
    return _verdict("ok", f"{len(log.edges)} connections by {', '.join(log.transports)}", notes)


def _pairs(edges: list[NcclEdge]) -> str:
    return ", ".join(sorted({f"{edge.src}-{edge.dst} {edge.transport}" for edge in edges}))


def _verdict(ending: Ending, observed: str, warnings: tuple[str, ...]) -> Verdict:
    return Verdict(
        ending=ending,
        subject="collective",
        observed=observed,
        expected="an end, without warnings, by the transport that was asked for",
        why="a collective over a path that drops data hangs every rank, or makes the model wrong",
        action="compare NCCL_P2P_DISABLE with the peer suite's result; read the log attached to this test",
        warnings=warnings,
    )
