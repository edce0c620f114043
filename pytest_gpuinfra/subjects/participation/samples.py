"""
What every GPU did while a load ran against the service, and which processes computed on it.

Source: sampler.py, one JSON object a line; activity, memory and power are NVML's (nvml.h, driver 580), or
nvidia-smi's where NVML could not be loaded.
A sampling without its last event is incomplete, whatever else it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.masking import first_of
from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.event import ProgramEvent, load_event

_REMEDY = "see whether nvidia-smi answers there; then run again"


@dataclass(frozen=True, slots=True)
class ComputeProcess:
    """
    One process that the driver showed on a GPU.

    Attributes:
        pid: Its number on the host.
        name: Its short name; "" where /proc does not show the process.
        title: Its title or command line, values after telling options masked, at most 400 characters.
        parents: Processes above it, the nearest first.
        cgroup: Path of its control group.
        listens: Whether it, or a process above it, listens on the service's port; None if that was not asked.
    """

    pid: int
    name: str
    title: str
    parents: tuple[int, ...]
    cgroup: str
    listens: bool | None

    @property
    def visible(self) -> bool:
        """Whether /proc tells of it; one of another process namespace is not."""
        return bool(self.name)

    def of_unit(self, unit: str | None) -> bool:
        """Whether its control group is that of a unit, or is below it, in a container too."""
        return unit is not None and unit in self.cgroup.split("/")

    def __str__(self) -> str:
        shown = self.title or self.name or "not shown by /proc"
        return f"{self.pid} ({shown if len(shown) <= 60 else first_of(shown, 57) + '...'})"


@dataclass(frozen=True, slots=True)
class GpuSample:
    """
    One GPU at one moment.

    Attributes:
        at_s: Seconds since the first sample.
        activity_percent: Share of the driver's last sampling period in which a kernel ran; None if it does not tell.
        memory_used_mib: Memory in use, the driver's own included, MiB; None if it does not tell.
        power_w: Power draw, W; None if it does not tell.
        processes: Memory of each process that computes there, by its number, MiB, None where the driver does not tell
            it; None as a whole if the driver lists no processes at all.
    """

    at_s: float
    activity_percent: float | None
    memory_used_mib: float | None
    power_w: float | None
    processes: Mapping[int, float | None] | None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """
    One GPU over the whole time.

    Attributes:
        pci_address: "0000:01:00.0".
        uuid: Its identity across boots; "" if unknown.
        name: Its model; "" if unknown.
        samples: Shape (n >= 1,), in order of time.
    """

    pci_address: str
    uuid: str
    name: str
    samples: tuple[GpuSample, ...]

    @property
    def activity(self) -> tuple[float, ...]:
        """Activity of every sample that has one, in percent, in order of time."""
        return tuple(one.activity_percent for one in self.samples if one.activity_percent is not None)

    @property
    def power_w(self) -> tuple[float, ...]:
        """Power of every sample that has one, in W, in order of time."""
        return tuple(one.power_w for one in self.samples if one.power_w is not None)

    @property
    def pids(self) -> frozenset[int]:
        """Every process that was seen there at any time."""
        return frozenset(pid for one in self.samples for pid in one.processes or ())

    def __str__(self) -> str:
        activity, power = self.activity, self.power_w
        shown = f"{min(activity):g} to {max(activity):g} %, median {median(activity):g} %" if activity else "unknown"
        watts = f", {min(power):.0f} to {max(power):.0f} W" if power else ""
        return f"activity {shown} in {len(self.samples)} samples{watts}"


@dataclass(frozen=True, slots=True)
class Participation:
    """
    One sampling of a host.

    Attributes:
        source: "NVML" or "nvidia-smi".
        boot_id: Boot that it belongs to.
        gpus: Every GPU that the driver shows, in its order.
        processes: Every process seen on any of them, by its number.
    """

    source: str
    boot_id: str
    gpus: tuple[GpuUse, ...]
    processes: Mapping[int, ComputeProcess]

    def gpu(self, address: str) -> GpuUse | None:
        """Give one GPU; None if the driver does not show it."""
        return next((gpu for gpu in self.gpus if gpu.pci_address == address), None)

    def serving(self, unit: str | None) -> frozenset[int]:
        """
        Give the processes that are the service's: of its unit's control group, or below the listener on its port.

        Args:
            unit: Its unit ("sglang-qwen.service"); None if it has none, or none is named.
        """
        return frozenset(pid for pid, one in self.processes.items() if one.of_unit(unit) or one.listens)


def parse_participation(lines: Iterable[str], *, source: str = "sampler") -> Participation:
    """
    Read what the sampler wrote.

    Raises:
        FactUnavailable: It could read neither NVML nor nvidia-smi, or did not come to its end, or saw no GPU.
        ParseError: A line has another shape.
    """
    start: ProgramEvent | None = None
    processes: dict[int, ComputeProcess] = {}
    samples: dict[str, list[GpuSample]] = {}
    ended = False
    for number, line in enumerate(lines, 1):
        event = load_event(source, number, line)
        kind = event.text("event")
        if ended:
            raise event.unknown("an event after the end")
        if kind == "error":
            raise FactUnavailable(source, event.text("reason"), remedy=_REMEDY)
        if kind == "start":
            start = event
            samples = {_address(gpu): [] for gpu in event.parts("gpus")}
        elif kind == "process":
            process = _process(event)
            processes[process.pid] = process
        elif kind == "sample":
            at_s = event.number("at_s")
            for gpu in event.parts("gpus"):
                if _address(gpu) not in samples:
                    raise event.unknown("a GPU that was not there at the start")
                samples[_address(gpu)].append(_sample(at_s, gpu))
        elif kind == "end":
            ended = True
        else:
            raise event.unknown("an event that nobody knows")
    if start is None or not ended:
        raise FactUnavailable(source, "it did not come to its end", remedy=_REMEDY)
    if not samples or not all(samples.values()):
        raise FactUnavailable(source, "it saw no GPU, or took no sample", remedy=_REMEDY)
    known = {_address(gpu): gpu for gpu in start.parts("gpus")}
    gpus = tuple(
        GpuUse(address, gpu.text("uuid"), gpu.text("name"), tuple(samples[address])) for address, gpu in known.items()
    )
    missing = [pid for gpu in gpus for pid in sorted(gpu.pids) if pid not in processes]
    if missing:
        raise ParseError(source, 0, str(missing), "samples name processes that were never described")
    return Participation(start.text("source"), start.text("boot_id"), gpus, processes)


def _address(gpu: ProgramEvent) -> str:
    address = gpu.text("pci")
    try:
        return normalise_pci_address(address)
    except ValueError:
        raise gpu.unknown(f"pci is {address!r}") from None


def _process(event: ProgramEvent) -> ComputeProcess:
    return ComputeProcess(
        event.integer("pid"),
        event.text("name"),
        event.text("title"),
        event.integers("parents"),
        event.text("cgroup"),
        event.optional("serves", bool),
    )


def _sample(at_s: float, gpu: ProgramEvent) -> GpuSample:
    processes: dict[int, float | None] | None = None
    if gpu.optional("processes", list) is not None:
        processes = {}
        for row in gpu.parts("processes"):
            pid, memory = row.integer("pid"), row.optional("memory_mib", float)
            before = processes.get(pid)
            processes[pid] = memory if before is None or memory is None else before + memory
    return GpuSample(
        at_s,
        gpu.optional("activity_percent", float),
        gpu.optional("memory_used_mib", float),
        gpu.optional("power_w", float),
        processes,
    )
