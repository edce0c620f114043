"""
What a run of a GPU program saw: devices, peer transfers, chains, all-reduces, and whether it came to its end.

Source: on_target/gpu/cuda_program.py and on_target/gpu/torch_program.py, schema 1, one JSON object a line.
A run without its last event is incomplete, whatever else it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from pytest_gpuinfra.subjects.event import Program, ProgramEvent, load_event
from pytest_gpuinfra.subjects.transfers.all_reduce import AllReduceRun, parse_all_reduce
from pytest_gpuinfra.subjects.transfers.gpu_library import GpuLibrary, parse_gpu_library
from pytest_gpuinfra.subjects.transfers.transfer import PeerTransfer, parse_peer_transfer
from pytest_gpuinfra.wire import WireError, load_object

SCHEMA = 1


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
        local: Mechanisms that each device is tried with alone; None from a program that knew of none.
        tasks: Copies on one device, pairs, simultaneous pairs and chains to come.
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
    local: tuple[str, ...] | None
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
        local: Copies on one device alone, its source and destination, by device and mechanism. Shape (n,).
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
    local: tuple[PeerTransfer, ...]
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

    def faults(self, devices: Sequence[str]) -> list[str]:
        """
        Say in what its plan, its devices and its results do not go together.

        Args:
            devices: PCI addresses that it was to use; () for every device that CUDA shows.
        """
        plan = self.plan
        if plan is None:
            return ["it says nothing of a plan"] if self.skipped_reason is None else []
        told = {one.pci for one in self.devices}
        found = [f"{one.pci}: not usable: {one.reason}" for one in self.devices if not one.usable]
        found += [f"{pci}: it says nothing of this device" for pci in plan.devices if pci not in told]
        planned = {*plan.devices, *plan.missing}
        strangers = sorted((told | self._addresses) - planned)
        found += [f"{pci}: not among the devices of its plan" for pci in strangers]
        if not plan.devices:
            found.append("no device is at hand")
        if devices and planned != set(devices):
            found.append(f"planned for {', '.join(sorted(planned))}, and to be for {', '.join(devices)}")
        both = [one for one in self.transfers if one.simultaneous]
        tasks = len(self.local) + len(self.transfers) - len(both) // 2 + len(self.chains)
        if tasks != plan.tasks or len(both) % 2:
            found.append(f"{plan.tasks} transfers were planned, and there are results of {tasks}")
        alone = sorted((pci, mechanism) for pci in plan.devices for mechanism in plan.local or ())
        if sorted((one.src, one.mechanism) for one in self.local) != alone:
            found.append("copies on each device alone are not those of its plan")
        if [run.arm for run in self.runs] != list(plan.arms):
            found.append(
                f"all-reduce arms planned: {', '.join(plan.arms) or 'none'}; "
                f"with a result: {', '.join(run.arm for run in self.runs) or 'none'}"
            )
        found += [
            f"all-reduce {run.arm}: right, and yet {doubts}"
            for run in self.runs
            if run.ending == "right" and (doubts := run.doubts(run.devices))
        ]
        if any(run.program != plan.program for run in self.runs):
            found.append(f"an all-reduce of another program than {plan.program}")
        return found

    @property
    def _addresses(self) -> set[str]:
        copies = (*self.local, *self.transfers, *self.chains)
        ends = {pci for one in copies for pci in (one.src, one.dst, one.via) if pci is not None}
        return ends | {pci for run in self.runs for pci in run.devices}

    @property
    def unplanned(self) -> str:
        """What it says without a plan, so that nobody knows of which boot and on what; "" if nothing."""
        if self.plan is not None:
            return "skipped, and a plan" if self.skipped_reason is not None else ""
        if self.devices or self.local or self.transfers or self.chains or self.runs:
            return "results without a plan"
        return "complete without a plan" if self.complete and self.skipped_reason is None else ""

    @property
    def stand_in(self) -> str | None:
        """The tests' own library that the run went through ("sham", "interposer"); None for real ones."""
        about = self.plan.about.get("stand_in") if self.plan else None
        libraries = [self.plan.driver] if self.plan else []
        libraries += [run.library for run in self.runs if run.library]
        words = [library.stand_in for library in libraries if library.stand_in]
        return words[0] if words else None if about is None else str(about)

    def transfer(self, src: str, dst: str, mechanism: str, *, simultaneous: bool = False) -> PeerTransfer | None:
        """Give one transfer by PCI addresses; None if the run has none such."""
        for one in self.transfers:
            if (one.src, one.dst, one.mechanism, one.simultaneous) == (src, dst, mechanism, simultaneous):
                return one
        return None

    def alone(self, pci: str, mechanism: str) -> PeerTransfer | None:
        """Give the copies on one device alone; None if the run has none such."""
        return next((one for one in self.local if (one.src, one.dst, one.mechanism) == (pci, pci, mechanism)), None)


def parse_gpu_program_events(lines: Iterable[str], *, source: str = "GPU program") -> GpuProgramRun:
    """
    Read the events of one run.

    Args:
        lines: Standard output of the program; blank lines are passed over.
        source: For messages.

    Raises:
        ParseError: A line is no JSON object, or an event has a shape that this version does not know.
    """
    events = [load_event(source, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    known = {"progress", "plan", "device", "local", "pair", "chain", "allreduce", "error", "skipped", "end"}
    by_name: dict[str, list[ProgramEvent]] = {name: [] for name in known}
    for event in events:
        name = event.text("event")
        if name not in known:
            raise event.unknown(f"an event called {name!r}")
        by_name[name].append(event)
    end = by_name["end"][-1] if by_name["end"] else None
    if end is not None and end is not events[-1]:
        raise end.unknown("an end before the last event")
    plans = [_plan(event) for event in by_name["plan"]]
    if len(plans) > 1:
        raise by_name["plan"][1].unknown("a second plan")
    return GpuProgramRun(
        complete=end is not None and end.boolean("complete"),
        skipped_reason=by_name["skipped"][0].text("reason") if by_name["skipped"] else None,
        plan=plans[0] if plans else None,
        devices=tuple(_device(event) for event in by_name["device"]),
        local=tuple(parse_peer_transfer(event) for event in by_name["local"]),
        transfers=tuple(parse_peer_transfer(event) for event in by_name["pair"]),
        chains=tuple(parse_peer_transfer(event) for event in by_name["chain"]),
        runs=tuple(parse_all_reduce(event) for event in by_name["allreduce"]),
        troubles=tuple(
            ProgramTrouble(event.boolean("fatal"), event.optional("kind", str) or "program", event.text("reason"))
            for event in by_name["error"]
        ),
        stuck=() if end is None else end.texts("stuck"),
        took_s=None if end is None else end.number("took_s"),
    )


def parse_progress(line: str) -> Progress | None:
    """Read one line as it arrives; None for anything but progress. Its text may be printed."""
    if '"progress"' not in line or len(line) > 4096:
        return None
    try:
        fields = load_object(line)
    except WireError:
        return None
    text, done, total = fields.get("text"), fields.get("done"), fields.get("total")
    if fields.get("event") != "progress" or type(text) is not str:
        return None
    counted = type(done) is int and type(total) is int
    shown = "".join(character if character.isprintable() else "?" for character in text[:300])
    return Progress(shown, done if counted else None, total if counted else None)


def _plan(event: ProgramEvent) -> ProgramPlan:
    if event.integer("schema") != SCHEMA:
        raise event.unknown("another schema")
    driver = event.part("driver")
    if driver is None:
        raise event.unknown("no driver")
    return ProgramPlan(
        program=cast(Program, event.one_of("program", get_args(Program))),
        about=event.plain("about"),
        seed=event.integer("seed"),
        driver=parse_gpu_library(driver),
        kernel_module=event.optional("kernel_module", str),
        boot_id=event.optional("boot_id", str),
        kernel=event.text("kernel"),
        devices=event.texts("devices"),
        missing=event.texts("missing"),
        local=event.texts("local") if event.optional("local", list) is not None else None,
        tasks=event.integer("tasks"),
        bytes=event.integer("bytes"),
        arms=event.texts("arms"),
        expected_s=event.number("expected_s"),
    )


def _device(event: ProgramEvent) -> ProgramDevice:
    if event.boolean("usable") != (event.optional("reason", str) is None):
        raise event.unknown("a usable device with a reason why not, or the reverse")
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
