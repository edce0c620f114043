"""
What the GPU programs saw: peer transfers, chains, all-reduce runs, and whether the run came to its end.

Source: target/cuda_program.py and target/torch_program.py, schema 1, one JSON object a line.
A run without its last event is incomplete, whatever else it says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

from pytest_gpuinfra.errors import ParseError

Program = Literal["cuda", "torch"]
Outcome = Literal["right", "wrong", "failed", "hang", "crash", "not_tested", "error"]
"""
right: every byte of every copy was compared and is right.
wrong: bytes differ, though every call succeeded.
failed: the driver returned an error from a copy that it had allowed.
hang, crash: the copying process did not come back, or was ended by a signal.
not_tested: no peer access, so a copy would have gone through the host.
error: nothing could be observed (too little memory, a mapping refused, a device missing).
"""
Corruption = Literal["never_written", "zeroed", "scrambled", "outside"]
"""The class that most wrong bytes belong to; outside: only bytes beside the destination differ."""
RunEnding = Literal["right", "wrong", "hang", "crash", "failed", "inconclusive"]
"""failed: NCCL returned an error. inconclusive: no sum was made, for a reason that is not the path's."""

SCHEMA = 1
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WrongCopy:
    """
    One destination that was not right.

    Attributes:
        size_bytes: Bytes copied.
        src_offset: Offset of the source from an aligned address, bytes.
        dst_offset: The same of the destination.
        repeat: Which round, from 1; the timed round is the last.
        wrong_bytes: Bytes of the destination that differ.
        never_written_bytes: Of these, still what was there before.
        zeroed_bytes: Of these, zero.
        scrambled_bytes: Of these, anything else.
        first_wrong_offset: From the destination's start, bytes; None if only guards differ.
        last_wrong_offset: The same of the last.
        guard_wrong_bytes: Bytes beside the destination that were touched.
    """

    size_bytes: int
    src_offset: int
    dst_offset: int
    repeat: int
    wrong_bytes: int
    never_written_bytes: int
    zeroed_bytes: int
    scrambled_bytes: int
    first_wrong_offset: int | None
    last_wrong_offset: int | None
    guard_wrong_bytes: int

    def __str__(self) -> str:
        where = "" if self.first_wrong_offset is None else f", the first at offset {self.first_wrong_offset}"
        beside = f", and {self.guard_wrong_bytes} bytes beside the destination" if self.guard_wrong_bytes else ""
        return (
            f"{self.wrong_bytes} of {self.size_bytes} bytes wrong{where} (repeat {self.repeat}, "
            f"offsets {self.src_offset} and {self.dst_offset}){beside}"
        )


@dataclass(frozen=True, slots=True)
class PeerTransfer:
    """
    One directed pair, or chain of three, by one mechanism.

    Attributes:
        src: PCI address that the bytes come from.
        dst: PCI address that they go to.
        via: PCI address of the device between them, for a chain; None for a pair.
        mechanism: "copy_engine", "kernel_store", "kernel_load", "ipc_store", "ipc_load" or "torch_copy".
        simultaneous: Whether the other direction was busy at the same time.
        can_access: What the driver (torch, for "torch_copy") says of peer access; None if it was not asked.
        outcome: How it ended.
        corruption: Class of the wrong bytes; None unless the outcome is "wrong".
        reason: Why the outcome is neither "right" nor "wrong"; None for those.
        copies_checked: Destinations compared, each poisoned before.
        bytes_checked: Bytes compared, all copies together.
        largest_bytes: Size of the largest copy compared.
        wrong_copies: Destinations that were not right.
        wrong_bytes: Wrong bytes, all copies together; by class in the next three.
        never_written_bytes: Still what was there before.
        zeroed_bytes: Zero.
        scrambled_bytes: Anything else.
        guard_wrong_bytes: Bytes beside destinations that were touched.
        failures: The first wrong destinations, at most 8. Shape (n,), in order.
        gb_s: Bandwidth of the largest copies, GB/s, 10^9 bytes; None unless the outcome is "right", and for chains.
        began_monotonic_s: Target's CLOCK_MONOTONIC when it began, the clock of its kernel log; None if it did not.
        ended_monotonic_s: The same when it ended.
    """

    src: str
    dst: str
    via: str | None
    mechanism: str
    simultaneous: bool
    can_access: bool | None
    outcome: Outcome
    corruption: Corruption | None
    reason: str | None
    copies_checked: int
    bytes_checked: int
    largest_bytes: int
    wrong_copies: int
    wrong_bytes: int
    never_written_bytes: int
    zeroed_bytes: int
    scrambled_bytes: int
    guard_wrong_bytes: int
    failures: tuple[WrongCopy, ...]
    gb_s: float | None
    began_monotonic_s: float | None
    ended_monotonic_s: float | None

    @property
    def pair(self) -> str:
        """The pair or chain, for people."""
        return " to ".join([self.src, *([self.via] if self.via else []), self.dst])

    @property
    def observed_wrong(self) -> bool:
        """Whether something wrong was seen, as opposed to nothing seen."""
        return self.outcome in ("wrong", "failed", "hang", "crash")

    def __str__(self) -> str:
        both = ", both directions at once" if self.simultaneous else ""
        head = f"{self.pair} by {self.mechanism}{both}: {self.outcome.replace('_', ' ')}"
        if self.outcome == "right":
            speed = "" if self.gb_s is None else f", {self.gb_s:g} GB/s"
            return f"{head}, {self.bytes_checked} bytes in {self.copies_checked} copies{speed}"
        if self.outcome == "wrong" and self.corruption:
            copies = f"{self.wrong_copies} of {self.copies_checked} copies"
            counts = f"{self.wrong_bytes} of {self.bytes_checked} bytes in {copies}"
            first = f"; first: {self.failures[0]}" if self.failures else ""
            return f"{head}, {self.corruption.replace('_', ' ')}, {counts}{first}"
        return f"{head}: {self.reason}"


@dataclass(frozen=True, slots=True)
class GpuLibrary:
    """
    A library that the program loaded.

    Attributes:
        path: File on the target; None if it could not be told.
        version: Its own version: CUDA's that the driver speaks ("13.0"), or NCCL's ("2.28.9").
        stand_in: "sham" or "interposer" for the tests' own libraries; None for a real one.
    """

    path: str | None
    version: str
    stand_in: str | None


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

    def __str__(self) -> str:
        words = "+".join(sorted(self.transports)) or "no transport proven"
        speed = "" if self.speed is None else f", busbw {self.speed.busbw_gb_s:g} GB/s"
        return f"all-reduce {self.arm} over {len(self.devices)} GPUs ({words}): " + (
            f"right{speed}" if self.ending == "right" else f"{self.ending}: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class ProgramDevice:
    """
    One device, as the program saw it before it began.

    Attributes:
        pci: PCI address, lower case.
        usable: Whether the program could use it.
        reason: Why not; None if it could.
        index: CUDA's index in PCI order; None for a device that CUDA does not show. So are the rest.
        uuid: "GPU-..." or "MIG-...".
        name: Model.
        mig: Whether it is a MIG instance.
        compute_capability: "9.0".
        compute_mode: "default", "exclusive process" or "prohibited".
        memory_total_bytes: None where the driver tells none (memory shared with the CPU, MIG).
        memory_free_bytes: The same, before the program took any.
        largest_copy_bytes: Largest copy that the memory budget allows; None if it is not usable.
    """

    pci: str
    usable: bool
    reason: str | None
    index: int | None
    uuid: str | None
    name: str | None
    mig: bool
    compute_capability: str | None
    compute_mode: str | None
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    largest_copy_bytes: int | None


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """
    What the program said that it would do, and on what.

    Attributes:
        program: "cuda" or "torch".
        about: Of torch_program: "torch", "torch_cuda", "python", "import_s". Empty otherwise.
        seed: Of all bytes and sums.
        driver: The driver library.
        kernel_module: First line of /proc/driver/nvidia/version; None if there is none.
        boot_id: Boot that every result belongs to; None if it could not be read.
        kernel: Kernel release.
        devices: PCI addresses at hand. Shape (n,), PCI order.
        missing: PCI addresses asked for that CUDA does not show.
        tasks: Pairs, simultaneous pairs and chains to come.
        bytes: Bytes that these copy.
        arms: Names of the arms to come.
        expected_s: Seconds that it thinks to need.
    """

    program: Program
    about: Mapping[str, Any]
    seed: int
    driver: GpuLibrary
    kernel_module: str | None
    boot_id: str | None
    kernel: str
    devices: tuple[str, ...]
    missing: tuple[str, ...]
    tasks: int
    bytes: int
    arms: tuple[str, ...]
    expected_s: float


@dataclass(frozen=True, slots=True)
class ProgramTrouble:
    """
    Something that kept the program from observing.

    Attributes:
        fatal: Whether it ended the run.
        kind: "library", "cuda", "memory", "lock", "deadline", "crash", "hang", "program" or "device".
        reason: What happened.
    """

    fatal: bool
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """
    Something that begins now.

    Attributes:
        text: What, for people.
        done: Steps of this phase that are done; None if they are not counted.
        total: Steps of this phase.
    """

    text: str
    done: int | None
    total: int | None


@dataclass(frozen=True, slots=True)
class GpuProgramRun:
    """
    Everything that one run of a GPU program saw.

    Attributes:
        complete: Whether the last event is there and says that everything planned has its event.
        skipped_reason: Why nothing was tried (no torch); None if something was.
        plan: None if the run did not get so far.
        devices: Those at hand and those asked for. Shape (n,).
        transfers: Shape (n,), by pair and mechanism, in the order in which they ran.
        chains: The same of chains of three.
        runs: All-reduce arms, in order.
        troubles: What kept it from observing.
        stuck: Processes that not even SIGKILL ended.
        took_s: Seconds of the run; None if it is incomplete.
    """

    complete: bool
    skipped_reason: str | None
    plan: ProgramPlan | None
    devices: tuple[ProgramDevice, ...]
    transfers: tuple[PeerTransfer, ...]
    chains: tuple[PeerTransfer, ...]
    runs: tuple[AllReduceRun, ...]
    troubles: tuple[ProgramTrouble, ...]
    stuck: tuple[str, ...]
    took_s: float | None

    @property
    def incomplete_reason(self) -> str | None:
        """Why this run proves nothing as a whole; None if it is complete."""
        if self.complete:
            return None
        fatal = [trouble.reason for trouble in self.troubles if trouble.fatal]
        return fatal[0] if fatal else "the program ended without its last event"

    @property
    def stand_in(self) -> str | None:
        """The tests' own library that the run went through ("sham", "interposer"); None for real ones."""
        about = self.plan.about.get("stand_in") if self.plan else None
        libraries = [self.plan.driver] if self.plan else []
        libraries += [run.library for run in self.runs if run.library]
        words = [library.stand_in for library in libraries if library.stand_in]
        return words[0] if words else about

    def transfer(self, src: str, dst: str, mechanism: str, *, simultaneous: bool = False) -> PeerTransfer | None:
        """Give one transfer by PCI addresses; None if the run has none such."""
        for one in self.transfers:
            if (one.src, one.dst, one.mechanism, one.simultaneous) == (src, dst, mechanism, simultaneous):
                return one
        return None


def parse_gpu_program_events(lines: Iterable[str], *, source: str = "GPU program") -> GpuProgramRun:
    """
    Read the events of one run.

    Args:
        lines: Standard output of the program; blank lines are passed over.
        source: For messages.

    Raises:
        ParseError: A line is no JSON object, or an event has a shape that this version does not know.
    """
    events = [
        _Event(source, number, line, _load(source, number, line))
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    known = {"progress", "plan", "device", "pair", "chain", "allreduce", "error", "skipped", "end"}
    by_name: dict[str, list[_Event]] = {name: [] for name in known}
    for event in events:
        name = event.text("event")
        if name not in known:
            raise event.unknown(f"an event called {name!r}")
        by_name[name].append(event)
    end = by_name["end"][-1] if by_name["end"] else None
    if end is not None and end is not events[-1]:
        raise end.unknown("an end before the last event")
    plans = [_plan(event) for event in by_name["plan"]]
    return GpuProgramRun(
        complete=end is not None and end.boolean("complete"),
        skipped_reason=by_name["skipped"][0].text("reason") if by_name["skipped"] else None,
        plan=plans[0] if plans else None,
        devices=tuple(_device(event) for event in by_name["device"]),
        transfers=tuple(_transfer(event) for event in by_name["pair"]),
        chains=tuple(_transfer(event) for event in by_name["chain"]),
        runs=tuple(_run(event) for event in by_name["allreduce"]),
        troubles=tuple(
            ProgramTrouble(event.boolean("fatal"), event.optional("kind", str) or "program", event.text("reason"))
            for event in by_name["error"]
        ),
        stuck=() if end is None else end.texts("stuck"),
        took_s=None if end is None else end.number("took_s"),
    )


def parse_progress(line: str) -> Progress | None:
    """Read one line as it arrives; None for anything but progress, a half line included."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    if not isinstance(fields, dict) or fields.get("event") != "progress" or not isinstance(fields.get("text"), str):
        return None
    return Progress(fields["text"], fields.get("done"), fields.get("total"))


def _load(source: str, number: int, line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError:
        raise ParseError(source, number, line, "no JSON") from None
    if not isinstance(fields, dict):
        raise ParseError(source, number, line, "no JSON object")
    return fields


class _Event:
    """One JSON object, whose fields have the types that are asked for."""

    def __init__(self, source: str, number: int, line: str, fields: dict[str, Any]) -> None:
        self._where = (source, number, line)
        self._fields = fields

    def unknown(self, what: str) -> ParseError:
        return ParseError(*self._where, what)

    def optional(self, name: str, kind: type[_T]) -> _T | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.unknown(f"{name} is {value!r}")
        return value

    def get(self, name: str, kind: type[_T]) -> _T:
        value = self.optional(name, kind)
        if value is None:
            raise self.unknown(f"no {name}")
        return value

    def text(self, name: str) -> str:
        return self.get(name, str)

    def integer(self, name: str) -> int:
        return self.get(name, int)

    def number(self, name: str) -> float:
        return self.get(name, float)

    def boolean(self, name: str) -> bool:
        return self.get(name, bool)

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.get(name, list)
        if not all(isinstance(value, str) for value in values):
            raise self.unknown(f"{name} is {values!r}")
        return tuple(values)

    def mapping(self, name: str) -> dict[str, Any]:
        return self.get(name, dict)

    def part(self, name: str) -> _Event | None:
        value = self.optional(name, dict)
        return None if value is None else _Event(*self._where, value)

    def parts(self, name: str) -> tuple[_Event, ...]:
        values = self.get(name, list)
        if not all(isinstance(value, dict) for value in values):
            raise self.unknown(f"{name} is {values!r}")
        return tuple(_Event(*self._where, value) for value in values)

    def one_of(self, name: str, words: Sequence[str]) -> str:
        value = self.text(name)
        if value not in words:
            raise self.unknown(f"{name} is {value!r}")
        return value


def _library(event: _Event) -> GpuLibrary:
    return GpuLibrary(event.optional("path", str), event.text("version"), event.optional("stand_in", str))


def _plan(event: _Event) -> ProgramPlan:
    if event.integer("schema") != SCHEMA:
        raise event.unknown("another schema")
    driver = event.part("driver")
    if driver is None:
        raise event.unknown("no driver")
    return ProgramPlan(
        program=cast(Program, event.one_of("program", get_args(Program))),
        about=event.mapping("about"),
        seed=event.integer("seed"),
        driver=_library(driver),
        kernel_module=event.optional("kernel_module", str),
        boot_id=event.optional("boot_id", str),
        kernel=event.text("kernel"),
        devices=event.texts("devices"),
        missing=event.texts("missing"),
        tasks=event.integer("tasks"),
        bytes=event.integer("bytes"),
        arms=event.texts("arms"),
        expected_s=event.number("expected_s"),
    )


def _device(event: _Event) -> ProgramDevice:
    return ProgramDevice(
        pci=event.text("pci"),
        usable=event.boolean("usable"),
        reason=event.optional("reason", str),
        index=event.optional("index", int),
        uuid=event.optional("uuid", str),
        name=event.optional("name", str),
        mig=event.optional("mig", bool) or False,
        compute_capability=event.optional("compute_capability", str),
        compute_mode=event.optional("compute_mode", str),
        memory_total_bytes=event.optional("memory_total_bytes", int),
        memory_free_bytes=event.optional("memory_free_bytes", int),
        largest_copy_bytes=event.optional("largest_copy_bytes", int),
    )


def _transfer(event: _Event) -> PeerTransfer:
    outcome = cast(Outcome, event.one_of("outcome", get_args(Outcome)))
    wrong = event.integer("wrong_bytes") + event.integer("guard_wrong_bytes")
    if outcome == "right" and (wrong or not event.integer("copies_checked")):
        raise event.unknown("a right outcome that nothing was compared for")
    corruption = event.optional("class", str)
    if outcome == "wrong" and (not wrong or corruption not in get_args(Corruption)):
        raise event.unknown("a wrong outcome without wrong bytes or their class")
    return PeerTransfer(
        src=event.text("src"),
        dst=event.text("dst"),
        via=event.optional("via", str),
        mechanism=event.text("mechanism"),
        simultaneous=event.optional("simultaneous", bool) or False,
        can_access=event.optional("can_access", bool),
        outcome=outcome,
        corruption=cast(Corruption, corruption) if outcome == "wrong" else None,
        reason=event.optional("reason", str),
        copies_checked=event.integer("copies_checked"),
        bytes_checked=event.integer("bytes_checked"),
        largest_bytes=event.integer("largest_bytes"),
        wrong_copies=event.integer("wrong_copies"),
        wrong_bytes=event.integer("wrong_bytes"),
        never_written_bytes=event.integer("never_written_bytes"),
        zeroed_bytes=event.integer("zeroed_bytes"),
        scrambled_bytes=event.integer("scrambled_bytes"),
        guard_wrong_bytes=event.integer("guard_wrong_bytes"),
        failures=tuple(_wrong_copy(part) for part in event.parts("failures")),
        gb_s=event.optional("gb_s", float),
        began_monotonic_s=event.optional("began_monotonic_s", float),
        ended_monotonic_s=event.optional("ended_monotonic_s", float),
    )


def _wrong_copy(event: _Event) -> WrongCopy:
    return WrongCopy(
        size_bytes=event.integer("size_bytes"),
        src_offset=event.integer("src_offset"),
        dst_offset=event.integer("dst_offset"),
        repeat=event.integer("repeat"),
        wrong_bytes=event.integer("wrong_bytes"),
        never_written_bytes=event.integer("never_written_bytes"),
        zeroed_bytes=event.integer("zeroed_bytes"),
        scrambled_bytes=event.integer("scrambled_bytes"),
        first_wrong_offset=event.optional("first_wrong_offset", int),
        last_wrong_offset=event.optional("last_wrong_offset", int),
        guard_wrong_bytes=event.integer("guard_wrong_bytes"),
    )


def _run(event: _Event) -> AllReduceRun:
    ending = cast(RunEnding, event.one_of("ending", get_args(RunEnding)))
    devices = event.texts("devices")
    sums = tuple(_sum(part) for part in event.parts("runs"))
    proven = sums and all(one.ranks_reported == len(devices) and not one.wrong_elements for one in sums)
    if ending == "right" and not proven:
        raise event.unknown("a right ending without a right sum in every rank")
    library, speed = event.part("library"), event.part("speed")
    return AllReduceRun(
        program=cast(Program, event.one_of("program", get_args(Program))),
        arm=event.text("arm"),
        devices=devices,
        ending=ending,
        reason=event.optional("reason", str),
        environment=event.mapping("environment"),
        unset=event.texts("unset"),
        library=_library(library) if library else None,
        sums=sums,
        speed=_speed(speed) if speed else None,
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
        ranks=tuple(_rank(part) for part in event.parts("ranks")),
        log=event.texts("log"),
        removed_files=event.texts("removed_files"),
        stuck=event.texts("stuck"),
        took_s=event.number("took_s"),
        joining_s=event.optional("joining_s", float),
    )


def _sum(event: _Event) -> SumResult:
    return SumResult(
        type=event.text("type"),
        size_bytes=event.integer("size_bytes"),
        repeat=event.integer("repeat"),
        elements=event.integer("elements"),
        ranks_reported=event.integer("ranks_reported"),
        wrong_elements=event.integer("wrong_elements"),
        wrong_by_rank={int(rank): count for rank, count in event.mapping("wrong_by_rank").items()},
        unreduced_elements=event.integer("unreduced_elements"),
        zero_elements=event.integer("zero_elements"),
        first_wrong_index=event.optional("first_wrong_index", int),
    )


def _speed(event: _Event) -> SumSpeed:
    return SumSpeed(
        type=event.text("type"),
        size_bytes=event.integer("size_bytes"),
        time_s=event.number("time_s"),
        algbw_gb_s=event.number("algbw_gb_s"),
        busbw_gb_s=event.number("busbw_gb_s"),
    )


def _rank(event: _Event) -> RankReport:
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
