"""
One host's part in an all-reduce over a group of hosts, as its program saw it.

Source: on_target/groups/hosts_program.py, schema 1, one JSON object a line.
A part without its last event is incomplete, whatever else it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from pytest_gpuinfra.subjects.event import ProgramEvent, load_event
from pytest_gpuinfra.subjects.transfers.all_reduce import (
    RankReport,
    RunEnding,
    SumResult,
    SumSpeed,
    parse_rank,
    parse_speed,
    parse_sum,
)
from pytest_gpuinfra.subjects.transfers.gpu_library import GpuLibrary, parse_gpu_library
from pytest_gpuinfra.subjects.transfers.nccl_edge import NcclEdge, parse_nccl_edge

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Met:
    """
    A host's place among those that met.

    Attributes:
        node_rank: Its number, given by the rendezvous.
        first_rank: Its first rank; the others follow.
        world_size: Ranks of all hosts together.
        ranks_by_host: How many ranks each host brought, by alias, in the order of the ranks.
        took_s: Seconds until all had met.
    """

    node_rank: int
    first_rank: int
    world_size: int
    ranks_by_host: Mapping[str, int]
    took_s: float


@dataclass(frozen=True, slots=True)
class Reach:
    """
    Whether another host answered at all: a connection, or its refusal.

    Attributes:
        host: Its alias.
        at_start: "" if it answered when all had just met; else why not.
        now: The same after the bad end.
    """

    host: str
    at_start: str
    now: str

    @property
    def lost(self) -> bool:
        """Whether it answered at the start, and does not any more."""
        return not self.at_start and bool(self.now)


@dataclass(frozen=True, slots=True)
class RankStep:
    """
    One rank of the host, and how many stages it began.

    Attributes:
        report: How far it got.
        steps: Stages that it began: the rank with the fewest is the one that the others wait for.
        state: State of its process after a bad end, one letter of proc(5); None after a good one, or if it was gone.
    """

    report: RankReport
    steps: int
    state: str | None

    @property
    def held(self) -> str:
        """What the kernel keeps it from running by; "" if nothing."""
        return {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "stuck in the kernel"}.get(
            self.state or "", ""
        )


@dataclass(frozen=True, slots=True)
class HostPart:
    """
    What one host saw of the all-reduce.

    Attributes:
        complete: Whether its last event is there and says that it came to its end.
        skipped_reason: Why nothing was tried (no torch); None if something was.
        boot_id: Boot that it belongs to; None if it did not get so far, or could not read it.
        about: "torch", "python", "python_version", "import_s"; empty if it did not get so far.
        devices: What its ranks ran on. Shape (ranks,); () if it did not get so far.
        trouble_kind: "unreachable" (no way to the first host), "address" (its name is not known there), "rendezvous"
            (not all came), "lock", "library", "deadline" or "program"; None if nothing kept it from going on.
        trouble: What; "" if nothing did.
        met: Its place; None if it did not meet the others.
        ending: How its ranks ended; None if it did not get so far.
        reason: Why, for every ending but "right".
        library: NCCL that its ranks have; None for gloo.
        sums: Sums as its own ranks compared them. Shape (n,).
        speed: Of its slowest rank; None unless the ending is "right".
        edges: Connections in its ranks' logs, (edge, how many channels). Shape (n,).
        ranks: How far each of its ranks got, numbered over all hosts.
        log: Lines of NCCL's log that prove or explain.
        reached: Who still answered after a bad end. Shape (hosts - 1,); () after a good one.
        stuck: Ranks that not even SIGKILL ended.
    """

    complete: bool
    skipped_reason: str | None
    boot_id: str | None
    about: Mapping[str, Any]
    devices: tuple[str, ...]
    trouble_kind: str | None
    trouble: str
    met: Met | None
    ending: RunEnding | None
    reason: str | None
    library: GpuLibrary | None
    sums: tuple[SumResult, ...]
    speed: SumSpeed | None
    edges: tuple[tuple[NcclEdge, int], ...]
    ranks: tuple[RankStep, ...]
    log: tuple[str, ...]
    reached: tuple[Reach, ...]
    stuck: tuple[str, ...]

    @property
    def proven(self) -> bool:
        """Whether its ranks made sums, all of which are right, and it came to its end."""
        return self.complete and self.ending == "right" and bool(self.sums)


def parse_host_part(lines: Iterable[str], *, source: str = "hosts_program") -> HostPart:
    """
    Read the events of one host.

    Args:
        lines: Standard output of the program; blank lines are passed over.
        source: For messages.

    Raises:
        ParseError: A line is no JSON object, or an event has a shape that this version does not know.
    """
    events = [load_event(source, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    by_name: dict[str, list[ProgramEvent]] = {
        name: [] for name in ("progress", "host", "met", "sums", "error", "skipped", "end")
    }
    for event in events:
        name = event.text("event")
        if name not in by_name:
            raise event.unknown(f"an event called {name!r}")
        by_name[name].append(event)

    def last(name: str) -> ProgramEvent | None:
        return by_name[name][-1] if by_name[name] else None

    host, met, sums, error, skipped, end = map(last, ("host", "met", "sums", "error", "skipped", "end"))
    if host is not None and host.integer("schema") != SCHEMA:
        raise host.unknown("another schema")
    library = sums.part("library") if sums else None
    speed = sums.part("speed") if sums else None
    ending = sums.one_of("ending", get_args(RunEnding)) if sums else None
    found = tuple(parse_sum(part) for part in sums.parts("runs")) if sums else ()
    if sums is not None and ending == "right" and (not found or any(one.wrong_elements for one in found)):
        raise sums.unknown("a right ending without right sums")
    return HostPart(
        complete=end is not None and end.boolean("complete"),
        skipped_reason=skipped.text("reason") if skipped else None,
        boot_id=host.optional("boot_id", str) if host else None,
        about=host.plain("about") if host else {},
        devices=host.texts("devices") if host else (),
        trouble_kind=(error.optional("kind", str) or "program") if error else None,
        trouble=error.text("reason") if error else "",
        met=_met(met) if met else None,
        ending=cast(RunEnding, ending) if ending else None,
        reason=sums.optional("reason", str) if sums else None,
        library=parse_gpu_library(library) if library else None,
        sums=found,
        speed=parse_speed(speed) if speed else None,
        edges=tuple(_edge(part) for part in sums.parts("edges")) if sums else (),
        ranks=tuple(_rank(part) for part in sums.parts("ranks")) if sums else (),
        log=sums.texts("log") if sums else (),
        reached=tuple(_reach(part) for part in sums.parts("reached")) if sums else (),
        stuck=end.texts("stuck") if end else (),
    )


def _met(event: ProgramEvent) -> Met:
    return Met(
        event.integer("node_rank"),
        event.integer("first_rank"),
        event.integer("world_size"),
        {part.text("alias"): part.integer("ranks") for part in event.parts("hosts")},
        event.number("took_s"),
    )


def _rank(event: ProgramEvent) -> RankStep:
    return RankStep(parse_rank(event), event.integer("steps"), event.optional("state", str))


def _reach(event: ProgramEvent) -> Reach:
    return Reach(event.text("alias"), event.text("at_start"), event.text("now"))


def _edge(event: ProgramEvent) -> tuple[NcclEdge, int]:
    src, dst = event.integer("src_rank"), event.integer("dst_rank")
    edge = parse_nccl_edge(f"Channel 00/0 : {src}[0] -> {dst}[0] via {event.text('via')}")
    if edge is None:
        raise event.unknown(f"via is {event.text('via')!r}")
    return edge, event.integer("count")
