"""
One all-reduce as a GPU program saw it: every sum, the transports, the speed, and how far each rank got.

Source: on_target/gpu/arm.py, event "allreduce".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from pytest_gpuinfra.subjects.event import Program, ProgramEvent
from pytest_gpuinfra.subjects.transfers.gpu_library import GpuLibrary, parse_gpu_library

RunEnding = Literal["right", "wrong", "hang", "crash", "failed", "inconclusive"]
"""failed: NCCL returned an error. inconclusive: no sum was made, for a reason that is not the path's."""


_SIZES = {"int32": 4, "float32": 4, "bfloat16": 2}
"""Bytes of an element by its type."""


@dataclass(frozen=True, slots=True)
class SumResult:
    """
    One all-reduce.

    Attributes:
        type: "int32", "float32" or "bfloat16".
        size_bytes: Message size.
        repeat: Which round, from 1.
        elements: Elements in each rank.
        ranks_reported: Ranks that compared theirs.
        wrong_elements: Elements that differ from the exact sum, all ranks together.
        wrong_by_rank: The same by rank; ranks without are left out.
        unreduced_elements: Of these, still the rank's own contribution.
        zero_elements: Of these, zero.
        first_wrong_index: Lowest index of one; None if there is none.
    """

    type: str
    size_bytes: int
    repeat: int
    elements: int
    ranks_reported: int
    wrong_elements: int
    wrong_by_rank: Mapping[int, int]
    unreduced_elements: int
    zero_elements: int
    first_wrong_index: int | None


@dataclass(frozen=True, slots=True)
class SumSpeed:
    """
    Speed of all-reduces in a row, of the slowest rank.

    Attributes:
        type: Element type.
        size_bytes: Message size.
        time_s: Seconds of one.
        algbw_gb_s: size/time, GB/s, 10^9 bytes.
        busbw_gb_s: algbw x 2(n-1)/n. Source: nccl-tests doc/PERFORMANCE.md.
    """

    type: str
    size_bytes: int
    time_s: float
    algbw_gb_s: float
    busbw_gb_s: float


@dataclass(frozen=True, slots=True)
class RankChannels:
    """
    How many of NCCL's channels one rank has to another by one transport, as counted in NCCL's own log.

    Attributes:
        src_rank: Rank that sends.
        dst_rank: Rank that receives.
        transport: NCCL's word: "P2P", "SHM", "NET".
        detail: What follows it ("CUMEM", "direct/direct"); "" if nothing does.
        count: Lines of the log.
    """

    src_rank: int
    dst_rank: int
    transport: str
    detail: str
    count: int


@dataclass(frozen=True, slots=True)
class RankReport:
    """
    How far one rank got.

    Attributes:
        rank: Rank.
        pci: PCI address of its device.
        pid: Its process on the target.
        stage: What it was doing last.
        done: Whether it said that it was through.
        exit_status: None if it was killed, or had not ended.
        signal: Name of the signal that ended it, as it ended by itself; None if none did.
        error: What kept it from going on; None if nothing did.
        last_line: Last line of its output, which is NCCL's log; "" if there is none.
        silent_s: Seconds since it last said anything.
    """

    rank: int
    pci: str
    pid: int
    stage: str
    done: bool
    exit_status: int | None
    signal: str | None
    error: str | None
    last_line: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class AllReduceRun:
    """
    One all-reduce arm.

    Attributes:
        program: Which program ran it: by NCCL alone, or by torch.distributed.
        arm: Its name in the plan ("service", "shm", "p2p").
        devices: PCI addresses. Shape (world_size,), by rank.
        ending: How it ended.
        reason: Why, for every ending but "right".
        environment: Variables that it was given.
        unset: Variables that were taken away.
        library: The NCCL that was used; None if no rank got so far.
        sums: Every sum. Shape (n,); empty if none was made.
        speed: None unless the ending is "right" and the plan asked for it.
        channels: Transports that NCCL's log proves. Empty: the log proves none.
        ranks: How far each rank got. Shape (world_size,); empty if none was started.
        log: Lines of NCCL's log that prove or explain, all ranks.
        removed_files: /dev/shm files of killed ranks that the program removed.
        stuck: Ranks that not even SIGKILL ended.
        took_s: Seconds from the start signal to the last rank's end.
        joining_s: Of these, until the first rank had its communicator; None if none had.
    """

    program: Program
    arm: str
    devices: tuple[str, ...]
    ending: RunEnding
    reason: str | None
    environment: Mapping[str, str]
    unset: tuple[str, ...]
    library: GpuLibrary | None
    sums: tuple[SumResult, ...]
    speed: SumSpeed | None
    channels: tuple[RankChannels, ...]
    ranks: tuple[RankReport, ...]
    log: tuple[str, ...]
    removed_files: tuple[str, ...]
    stuck: tuple[str, ...]
    took_s: float
    joining_s: float | None

    @property
    def transports(self) -> frozenset[str]:
        """NCCL's words of all transports seen; empty if its log proves none."""
        return frozenset(one.transport for one in self.channels)

    @property
    def observed_wrong(self) -> bool:
        """Whether something wrong was seen, as opposed to nothing seen."""
        return self.ending in ("wrong", "failed", "hang", "crash")

    def doubts(self, devices: Sequence[str]) -> str:
        """
        Say what in it does not go with right sums over these GPUs; "" if everything does.

        Args:
            devices: PCI addresses, shape (world_size,).
        """
        found = []
        if sorted(self.devices) != sorted(devices):
            found.append(f"it was over {', '.join(self.devices) or 'no GPU'}, not {', '.join(devices)}")
        if [(one.rank, one.pci) for one in self.ranks] != list(enumerate(self.devices)):
            found.append(f"{len(self.ranks)} of {len(self.devices)} ranks report, or for other GPUs")
        found += [
            f"rank {one.rank} {one.error or one.signal or 'was not through'}"
            for one in self.ranks
            if one.error or one.signal or not one.done or one.exit_status
        ]
        if not self.sums:
            found.append("no sum was made")
        repeats: dict[tuple[str, int], list[int]] = {}
        for one in self.sums:
            repeats.setdefault((one.type, one.size_bytes), []).append(one.repeat)
        most = max(map(len, repeats.values()), default=0)
        if any(sorted(numbers) != list(range(1, most + 1)) for numbers in repeats.values()):
            found.append("some of its sums are missing")
        world = range(len(self.devices))
        if any(c.src_rank == c.dst_rank or not {c.src_rank, c.dst_rank} <= {*world} for c in self.channels):
            found.append("NCCL's log names a channel between ranks that there are not")
        if not all(c.count for c in self.channels):
            found.append("NCCL's log names a channel and counts none")
        if self.library is None:
            found.append("no rank names its NCCL")
        return "; ".join(found)

    def __str__(self) -> str:
        words = "+".join(sorted(self.transports)) or "no transport proven"
        speed = "" if self.speed is None else f", busbw {self.speed.busbw_gb_s:g} GB/s"
        return f"all-reduce {self.arm} over {len(self.devices)} GPUs ({words}): " + (
            f"right{speed}" if self.ending == "right" else f"{self.ending}: {self.reason}"
        )


def parse_all_reduce(event: ProgramEvent) -> AllReduceRun:
    """
    Read one event of an all-reduce.

    Raises:
        ParseError: It has another shape, or calls itself right without a right sum in every rank.
    """
    ending = cast(RunEnding, event.one_of("ending", get_args(RunEnding)))
    devices = event.texts("devices")
    if event.integer("world_size") != len(devices):
        raise event.unknown("a world of another size than its devices")
    sums = tuple(parse_sum(part) for part in event.parts("runs"))
    proven = sums and all(one.ranks_reported == len(devices) and not one.wrong_elements for one in sums)
    if ending == "right" and not proven:
        raise event.unknown("a right ending without a right sum in every rank")
    if ending == "right" and event.optional("reason", str) is not None:
        raise event.unknown("a right ending with a reason")
    library, speed = event.part("library"), event.part("speed")
    return AllReduceRun(
        program=cast(Program, event.one_of("program", get_args(Program))),
        arm=event.text("arm"),
        devices=devices,
        ending=ending,
        reason=event.optional("reason", str),
        environment=event.words("environment"),
        unset=event.texts("unset"),
        library=parse_gpu_library(library) if library else None,
        sums=sums,
        speed=parse_speed(speed) if speed else None,
        channels=tuple(
            RankChannels(
                part.integer("src_rank"),
                part.integer("dst_rank"),
                part.text("transport"),
                part.text("detail"),
                part.integer("count"),
            )
            for part in event.parts("channels")
        ),
        ranks=tuple(parse_rank(part) for part in event.parts("ranks")),
        log=event.texts("log"),
        removed_files=event.texts("removed_files"),
        stuck=event.texts("stuck"),
        took_s=event.number("took_s"),
        joining_s=event.optional("joining_s", float),
    )


def parse_sum(event: ProgramEvent) -> SumResult:
    """
    Read one sum of an event.

    Raises:
        ParseError: It has another shape, or its counts contradict each other.
    """
    elements, wrong = event.integer("elements"), event.integer("wrong_elements")
    size = _SIZES.get(event.text("type"))
    if not elements or size is None or event.integer("size_bytes") // size != elements or not event.integer("repeat"):
        raise event.unknown("a sum of another number of elements than its size has")
    kinds = event.integer("unreduced_elements") + event.integer("zero_elements")
    if not wrong and (kinds or event.counts("wrong_by_rank") or event.optional("first_wrong_index", int) is not None):
        raise event.unknown("a right sum with wrong elements")
    return SumResult(
        type=event.text("type"),
        size_bytes=event.integer("size_bytes"),
        repeat=event.integer("repeat"),
        elements=event.integer("elements"),
        ranks_reported=event.integer("ranks_reported"),
        wrong_elements=event.integer("wrong_elements"),
        wrong_by_rank=event.counts("wrong_by_rank"),
        unreduced_elements=event.integer("unreduced_elements"),
        zero_elements=event.integer("zero_elements"),
        first_wrong_index=event.optional("first_wrong_index", int),
    )


def parse_speed(event: ProgramEvent) -> SumSpeed:
    """Read the speed of an event."""
    return SumSpeed(
        type=event.text("type"),
        size_bytes=event.integer("size_bytes"),
        time_s=event.number("time_s"),
        algbw_gb_s=event.number("algbw_gb_s"),
        busbw_gb_s=event.number("busbw_gb_s"),
    )


def parse_rank(event: ProgramEvent) -> RankReport:
    """Read one rank of an event."""
    return RankReport(
        rank=event.integer("rank"),
        pci=event.text("pci"),
        pid=event.integer("pid"),
        stage=event.text("stage"),
        done=event.boolean("done"),
        exit_status=event.optional("exit_status", int),
        signal=event.optional("signal", str),
        error=event.optional("error", str),
        last_line=event.text("last_line"),
        silent_s=event.number("silent_s"),
    )
