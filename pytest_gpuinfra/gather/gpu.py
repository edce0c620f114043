"""
The GPU programs on one host: run once, their events kept, the kernel's log read again afterwards.

What they said is written into the recording line by line; a replayed host is judged by it again,
as long as it belongs to the same boot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pytest_gpuinfra.capture.capture import kernel_log, take_capture
from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.connection.protocol import Connection
from pytest_gpuinfra.errors import CommandTimeout, FactUnavailable, GpuInfraError, ProbeError
from pytest_gpuinfra.gather.event_lines import EventLines
from pytest_gpuinfra.on_target.plan import P2P, SHM, ArmPlan, GpuPlan, estimate, program_text
from pytest_gpuinfra.subjects.kernel_log.address import decode_address
from pytest_gpuinfra.subjects.kernel_log.faults import KernelFaults, parse_kernel_faults
from pytest_gpuinfra.subjects.kernel_log.log import KernelLog, KernelLogEntry, parse_kernel_log
from pytest_gpuinfra.subjects.kernel_log.sources import REMEDY, missing_sequences
from pytest_gpuinfra.subjects.path_safety.judge import RankPath
from pytest_gpuinfra.subjects.service.as_it_runs import (
    UNSET,
    environment_of_service,
    framework_of_service,
    nccl_of_service,
    process_of_service,
)
from pytest_gpuinfra.subjects.transfers.program import GpuProgramRun, parse_gpu_program_events
from pytest_gpuinfra.subjects.transfers.transfer import PeerTransfer
from pytest_gpuinfra.wire import integer

if TYPE_CHECKING:
    from pytest_gpuinfra.inventory.inventory import KernelLogExpectation
    from pytest_gpuinfra.subjects.pci.functions import PciFunctions
    from pytest_gpuinfra.subjects.pci.iommu import IommuGroups
    from pytest_gpuinfra.subjects.service.facts import ServiceFacts
    from pytest_gpuinfra.subjects.transfers.pair import DirectedPair

_ALLOWANCE_S = 60.0
_NO_PEERS: dict[str, Any] = {"mechanisms": (), "simultaneous": (), "chains": ()}


@dataclass(frozen=True, slots=True)
class GpuRunSettings:
    """
    What is to be run.

    Attributes:
        devices: PCI addresses, shape (n,), in the driver's order; () for every device that CUDA shows.
        arms: Names of the all-reduce arms over all of them.
        subsets: "none", "pairs" or "all": which subsets of the GPUs get arms of their own.
        python: The Python that has torch, for torch_program; None for the service's, or the target's python3.
        peers: Whether peer copies are tried at all. Where the inventory expects them to be blocked they are not:
            each refused access would stand in the kernel's log as a fault.
    """

    devices: tuple[str, ...]
    arms: tuple[str, ...] = ("shm", "p2p")
    subsets: str = "none"
    python: str | None = None
    peers: bool = True

    def arm_plans(self) -> tuple[ArmPlan, ...]:
        """Give the arms: those over all devices first, then those over subsets; () for one device, which has none."""
        if len(self.devices) == 1:
            return ()
        plans = [self._arm(name, name, ()) for name in self.arms]
        sizes = {"none": (), "pairs": (2,), "all": tuple(range(2, len(self.devices)))}[self.subsets]
        for size in sizes:
            if size >= len(self.devices):
                continue
            for subset in combinations(self.devices, size):
                label = "+".join(address.removeprefix("0000:") for address in subset)
                plans += [self._arm(f"{name}-{label}", name, subset) for name in self.arms]
        return tuple(plans)

    def _arm(self, name: str, kind: str, devices: tuple[str, ...]) -> ArmPlan:
        base = {"shm": SHM, "p2p": P2P}[kind]
        return ArmPlan(name, base.environment, base.unset, devices)


class PciFacts(Protocol):
    """What is known of a host's PCI functions; each may raise FactUnavailable."""

    @property
    def pci_functions(self) -> PciFunctions: ...

    @property
    def iommu_groups(self) -> IommuGroups: ...


@dataclass(frozen=True, slots=True)
class GpuRun:
    """
    One run of one program, with what the kernel said meanwhile.

    Attributes:
        program: What it saw.
        log: Kernel messages from the run's beginning on; None if the log cannot be read.
        log_reason: Why not; "" if it can.
        log_gap: What is missing between the capture's log and these messages, in words; "" if nothing is.
    """

    program: GpuProgramRun
    log: tuple[KernelLogEntry, ...] | None
    log_reason: str = ""
    log_gap: str = ""

    def faults(self, functions: PciFunctions, expect: KernelLogExpectation, *, peer_access: str | None) -> str:
        """
        Describe the faults that the kernel logged during the run; "" if it logged none.

        Args:
            functions: PCI functions of the host.
            expect: What the inventory says of the log.
            peer_access: As the inventory says; "any" expects refused accesses of our own copies.

        Raises:
            FactUnavailable: The log cannot be read, or not whole.
        """
        if self.log is None:
            raise FactUnavailable("kernel log during the GPU program", self.log_reason, remedy=REMEDY)
        found = KernelFaults(KernelLog(self.log, "kernel log during the GPU program", self.log_gap), functions, expect)
        return found.describe_all(without=("iommu",) if peer_access == "any" else ())

    def logged_during(self, transfer: PeerTransfer) -> tuple[KernelLogEntry, ...]:
        """
        Give the kernel's messages that fell into a transfer.

        They are told by their record numbers, where the program could read these; else by the target's monotonic
        clock, a moment before and after, so that a message may also be a neighbour's.
        """
        log_from, log_to = transfer.log_from, transfer.log_to
        began_s, ended_s = transfer.began_monotonic_s, transfer.ended_monotonic_s
        if log_from is not None and log_to is not None:
            return tuple(entry for entry in self.log or () if log_from < (entry.sequence or 0) <= log_to)
        if began_s is None or ended_s is None:
            return ()
        return tuple(
            entry
            for entry in self.log or ()
            if entry.time_s is not None and began_s - 0.05 <= entry.time_s <= ended_s + 0.2
        )

    def context(self, facts: PciFacts, pair: DirectedPair, transfer: PeerTransfer | None) -> list[str]:
        """Give what else was seen of a pair: group types, the driver's word, kernel messages during its copies."""
        words = []
        try:
            groups = [facts.iommu_groups.of(address) for address in (pair.src, pair.dst)]
            types = ["no group" if group is None else group.type for group in groups]
            words.append(f"IOMMU group types: source {types[0]}, destination {types[1]}")
        except GpuInfraError as error:
            words.append(f"IOMMU group types unknown: {error.reason}")
        if transfer is None:
            return words
        if transfer.can_access is not None:
            words.append(f"peer access, by the driver's word: {'yes' if transfer.can_access else 'no'}")
        if self.log is None:
            words.append(f"kernel log during the copies unknown: {self.log_reason}")
        else:
            said = [_with_owner(entry, facts) for entry in self.logged_during(transfer)]
            words += [f"kernel log during the copies: {message}" for message in said[:4]] or [
                "the kernel logged nothing during the copies"
            ]
        return words


def _by_time(before: KernelLog, after: KernelLog) -> str:
    """
    Give the messages that a log without record numbers (journal, dmesg) holds beyond an earlier one, as records.

    Raises:
        FactUnavailable: It has no times either.
    """
    times = [entry.time_s for entry in before if entry.time_s is not None]
    if not times or any(entry.time_s is None for entry in after):
        raise FactUnavailable(after.source, "no record numbers and no times, so old and new cannot be told apart")
    later = [entry for entry in after if entry.time_s is not None and entry.time_s > max(times)]
    return "".join(
        f"{6 if entry.priority is None else entry.priority},{number},{round((entry.time_s or 0) * 1e6)},-;"
        + entry.message.replace("\\", "\\x5c").replace("\n", "\\x0a")
        + "\n"
        for number, entry in enumerate(later)
    )


def _with_owner(entry: KernelLogEntry, facts: PciFacts) -> str:
    """Give a message, and whose memory it speaks of where it is a refused access."""
    faults = parse_kernel_faults(KernelLog((entry,), "/dev/kmsg", ""))
    try:
        owners = [decode_address(one.address, facts.pci_functions) for one in faults if one.address is not None]
    except GpuInfraError:
        return entry.message
    told = ", ".join(str(owner) for owner in owners if owner is not None)
    return f"{entry.message} [that is {told}]" if told else entry.message


@dataclass
class GpuRuns:
    """
    Both programs on one host, each run on first use.

    Attributes:
        alias: The host's alias.
        settings: What is to be run.
        connection: Gives the connection to where the service runs.
        host_connection: Gives the connection to the host, whose kernel log is read.
        baseline: Gives the kernel's log as the capture holds it.
        boot_id: Gives the boot that the facts belong to.
        recorded: What an earlier run said; None for a live host.
        on_progress: Called with a line whenever the program begins something.
        service: Gives the facts of the running service; None where no service is expected.
    """

    alias: str
    settings: GpuRunSettings
    connection: Callable[[], Connection]
    host_connection: Callable[[], Connection]
    baseline: Callable[[], KernelLog]
    boot_id: Callable[[], str]
    recorded: Mapping[str, Any] | None = None
    on_progress: Callable[[str], None] = lambda _: None
    service: Callable[[], ServiceFacts] | None = None
    said: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()

    @cached_property
    def cuda(self) -> GpuRun:
        """
        Peer transfers by the CUDA driver and all-reduces by NCCL.

        Raises:
            FactUnavailable: The program could not run, or its results belong to another boot.
            ProbeError, CommandTimeout, UnreachableError: It did not come to its end.
        """
        return self._run(
            "cuda",
            self._cuda_plan,
        )

    def _cuda_plan(self) -> GpuPlan:
        process = None if self.service is None else process_of_service(self.service())
        arms = self.settings.arm_plans()
        if process is not None:  # a rank that is as the service's process has its environment
            arms = tuple(replace(arm, unset=(*UNSET, *arm.unset)) for arm in arms)
        return GpuPlan(
            devices=self.settings.devices or None,
            arms=(*self._service_arms(), *arms),
            nccl_paths=() if self.service is None else nccl_of_service(self.service()),
            process=process,
            **({} if self.settings.peers else _NO_PEERS),
        )

    @cached_property
    def torch(self) -> GpuRun:
        """
        Peer copies and an all-reduce by torch, in the service's own Python.

        Raises:
            As `cuda`.
        """
        return self._run(
            "torch",
            lambda: GpuPlan(
                devices=self.settings.devices or None,
                local=("torch_copy",),
                mechanisms=("torch_copy",) if self.settings.peers else (),
                simultaneous=(),
                chains=(),
                sizes=(4096, 1 << 20, 64 << 20),
                arms=(*self._service_arms(), *(arm for arm in self.settings.arm_plans() if not arm.devices))[:1],
                process=self._framework,
            ),
        )

    @property
    def service_arm(self) -> ArmPlan:
        """
        The all-reduce as the service runs: with the environment of its main process, and nothing else of NCCL's.

        Raises:
            FactUnavailable: No service is expected, its environment is not known whole, or it would try
                peer-to-peer where the inventory expects that to be blocked.
        """
        if self.service is None:
            raise FactUnavailable(self.alias, "the inventory names no service", remedy='service = "UNIT"')
        service = self.service()
        arm = ArmPlan("service", environment_of_service(service), UNSET)
        if not self.settings.peers and not RankPath(0, arm.environment, whole=True).peers_off:
            raise FactUnavailable(
                service.unit_name,
                'peer_access is "blocked", and its environment does not switch NCCL\'s peer-to-peer off: '
                "each refused access would stand in the kernel's log as a fault, so it was not run",
                remedy="set NCCL_P2P_DISABLE=1 in its unit",
            )
        return arm

    def _service_arms(self) -> tuple[ArmPlan, ...]:
        try:
            return () if self.service is None or len(self.settings.devices) == 1 else (self.service_arm,)
        except GpuInfraError:
            return ()  # whoever asks for it is told why

    @property
    def _framework(self) -> tuple[int, int] | None:
        """The service's process in whose Python torch is; None for a Python that the user names, or the login's."""
        if self.settings.python is not None or self.service is None:
            return None
        return framework_of_service(self.service())

    def gathered(self) -> dict[str, Any] | None:
        """Give what the programs said, as plain data for the recording; None if none was run."""
        return dict(self.recorded) if self.recorded is not None else dict(self.said) or None

    def _run(self, name: Literal["cuda", "torch"], plan: Callable[[], GpuPlan]) -> GpuRun:
        with self._lock:
            said = self.recorded.get(name) if self.recorded is not None else self._ask(name, plan())
            if said is None:
                raise FactUnavailable(
                    f"{self.alias}: {name}_program", "the recording holds no run of it", remedy="run on the host itself"
                )
            self.said[name] = dict(said)
            if said.get("error"):
                raise ProbeError(f"{self.alias}: {name}_program: {said['error']}", remedy=said.get("remedy", ""))
            return self._read(name, said)

    def _read(self, name: str, said: Mapping[str, Any]) -> GpuRun:
        run = parse_gpu_program_events(said["lines"], source=f"{self.alias}: {name}_program")
        if run.unplanned:
            raise ProbeError(
                f"{self.alias}: {name}_program: its events do not fit together: {run.unplanned}",
                remedy="run it again; keep the recording and report it if that does not help",
            )
        if run.stand_in and not said.get("stand_in_allowed"):
            raise FactUnavailable(
                f"{self.alias}: {name}_program",
                f"it ran on a stand-in for the driver ({run.stand_in}), which is for tests only",
                remedy="take it off the library path (LD_LIBRARY_PATH, LD_PRELOAD) of the target",
            )
        if run.plan is not None and run.plan.program != name:
            raise ProbeError(f"{self.alias}: {name}_program: its events are those of {run.plan.program}_program")
        if run.plan is not None and (not run.plan.boot_id or run.plan.boot_id != self.boot_id()):
            raise FactUnavailable(
                f"{self.alias}: {name}_program",
                f"its results belong to boot {run.plan.boot_id or 'unknown'}, the facts to boot {self.boot_id()}",
                remedy="run on the host itself: what was proven on one boot is not proven on another",
            )
        return GpuRun(run, *self._logged(said))

    def _logged(self, said: Mapping[str, Any]) -> tuple[tuple[KernelLogEntry, ...] | None, str, str]:
        """Give the messages, why there are none, and what is missing before or between them."""
        if said.get("kmsg") is None:
            return None, said.get("log_reason") or "the recording holds none", ""
        if not said["kmsg"]:
            return (), "", ""
        try:
            entries = parse_kernel_log({"kmsg": Reading("/dev/kmsg", said["kmsg"])}).entries
        except GpuInfraError as error:
            return None, error.reason, ""
        try:
            last = self.baseline().last_sequence
        except GpuInfraError as error:
            return entries, "", f"what was logged before is unknown: {error.reason}"
        first = entries[0].sequence or 0
        lost = f"records {last + 1} to {first - 1} are missing" if last is not None and first > last + 1 else ""
        return entries, "", lost or missing_sequences(entries)

    def _ask(self, name: Literal["cuda", "torch"], plan: GpuPlan) -> dict[str, Any]:
        """Run a program on the target; gives what it said, or why it said nothing."""
        expected = estimate(plan, len(self.settings.devices) or 8, name)
        self.on_progress(
            f"{self.alias}: {name}_program: {expected.tasks} transfers, {expected.bytes / 1e9:.1f} GB, "
            f"{len(plan.arms)} all-reduce arms, about {expected.seconds:.0f} s"
        )
        output = EventLines(self.alias, self.on_progress)
        said: dict[str, Any] = {}
        try:
            result = self.connection().run_program(
                program_text(name),
                plan.document(name),
                timeout_s=plan.deadlines.total_s + _ALLOWANCE_S,
                on_output=output.feed,
                keep_output=False,
                python=self.settings.python if name == "torch" else None,
                process=plan.process if name == "torch" else None,
                site=name == "torch",
            )
            if not output.lines:
                said["error"] = (
                    f"it ended with status {result.exit_status} and said nothing: {result.stderr.strip()[-600:]}"
                )
        except CommandTimeout as error:
            said["error"] = error.reason
        except GpuInfraError as error:
            said |= {"error": error.reason, "remedy": error.remedy}
        said |= self._log_since()
        said["lines"] = output.lines
        return said

    def _log_since(self) -> dict[str, Any]:
        """Read the kernel's log again, from where the capture ended."""
        try:
            baseline = self.baseline()
            taken = take_capture(
                self.host_connection(), [kernel_log("kernel_log")], reached_by="after the GPU program", timeout_s=30.0
            )
            last = baseline.last_sequence
            if last is None:
                return {"kmsg": _by_time(baseline, parse_kernel_log(taken.node("kernel_log"))), "log_reason": ""}
            text = taken.node("kernel_log")["kmsg"].require()
        except GpuInfraError as error:
            return {"kmsg": None, "log_reason": error.reason}
        kept = []
        for record in text.splitlines(keepends=True):
            fields = record.split(";", 1)[0].split(",")
            sequence = integer(fields[1]) if len(fields) > 1 else None
            if sequence is not None:
                if sequence > last:
                    kept.append(record)
            elif kept:
                kept.append(record)
        return {"kmsg": "".join(kept), "log_reason": ""}
