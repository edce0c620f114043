"""
What the diagnosis goes by: everything that was observed of one host, as plain values.

Each part is a value, or `Unknown` with the reason why it could not be observed, or None where nobody looked or
there is nothing to look at. None and Unknown never count as right; Unknown is named in a finding that it bears on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.service.drift import Drift
from pytest_gpuinfra.subjects.service.environment import EffectiveVariable, Layer
from pytest_gpuinfra.subjects.service.filesystem import Space
from pytest_gpuinfra.subjects.service.journal import UnitJournal
from pytest_gpuinfra.subjects.service.transport import SeenTransport
from pytest_gpuinfra.subjects.service.unit import UnitState
from pytest_gpuinfra.subjects.transfers.all_reduce import AllReduceRun
from pytest_gpuinfra.subjects.transfers.transfer import PeerTransfer
from pytest_gpuinfra.subjects.verdict import Verdict

if TYPE_CHECKING:
    from pytest_gpuinfra.endpoint.readiness import Readiness


@dataclass(frozen=True, slots=True)
class Unknown:
    """
    A part that could not be observed.

    Attributes:
        reason: Why.
    """

    reason: str


T = TypeVar("T")
Part: TypeAlias = T | Unknown | None


def known(part: Part[T]) -> T | None:
    """Give a part's value; None if there is none."""
    return None if isinstance(part, Unknown) else part


def reasons(**parts: Part[object]) -> tuple[str, ...]:
    """Name the parts that could not be observed, with the reason of each; `_` in a name is a blank."""
    return tuple(
        f"{name.replace('_', ' ')}: {part.reason}" for name, part in parts.items() if isinstance(part, Unknown)
    )


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """
    One GPU that CUDA is to use.

    Attributes:
        address: PCI address.
        present: Whether it is on the PCI bus.
        driver: Driver that it is bound to; "none" for unbound.
        group_type: Kernel's word; "no group" where no IOMMU handles it.
        name: Model by the driver's word.
        in_driver: Whether nvidia-smi shows it.
    """

    address: str
    present: Part[bool] = None
    driver: Part[str] = None
    group_type: Part[str] = None
    name: Part[str] = None
    in_driver: Part[bool] = None


@dataclass(frozen=True, slots=True)
class RefusedAccess:
    """
    An access that the IOMMU refused, by one of the GPUs that CUDA is to use.

    Attributes:
        device: PCI address of the GPU that tried.
        target: PCI address of the GPU whose region holds the address; None if it is no GPU's.
        words: The log's line, with who tried to reach whom.
        count: How many of it.
        ours: Whether it was logged while our own copies ran.
    """

    device: str
    target: str | None
    words: str
    count: int = 1
    ours: bool = False


@dataclass(frozen=True, slots=True)
class AcsSeen:
    """
    Bridges that redirect peer traffic to the root complex.

    Attributes:
        between: Those on the way between two of the GPUs, below a bridge that both are under. Shape (n,), in words.
        elsewhere: Others above the GPUs; traffic that passes them goes to the root complex in any case. Shape (n,).
    """

    between: tuple[str, ...]
    elsewhere: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    """
    The container that serves.

    Attributes:
        name: As the inventory names it.
        missing_nodes: Device nodes that it needs and has not. Shape (n,).
        stale_nodes: Nodes whose major is not the driver's any more, in words. Shape (n,).
        shm: Size of /dev/shm inside.
        shm_min_gib: What the inventory demands; None for nothing.
        libraries: Versions of the driver's libraries inside. Shape (n,).
        started_s: Seconds from the host's boot to the start of its init.
    """

    name: str
    missing_nodes: Part[tuple[str, ...]] = None
    stale_nodes: Part[tuple[str, ...]] = None
    shm: Part[Space] = None
    shm_min_gib: float | None = None
    libraries: Part[tuple[str, ...]] = None
    started_s: Part[float] = None


@dataclass(frozen=True, slots=True)
class ServiceSeen:
    """
    The service.

    Attributes:
        name: Its unit.
        state: The unit as systemd holds it.
        engine: Which engine it is ("SGLang").
        arguments: Command line of its main process, as it is in effect.
        switch: NCCL_P2P_DISABLE over its processes.
        level: NCCL_P2P_LEVEL over its processes.
        layers: What can set variables, the strongest first, as it is on disk now.
        transport: What its ranks are seen to share right now.
        process_drift: What is newer than the running process.
        reload_drift: What systemd has not read.
        journal: Its log since its last start.
        ranks: How many processes hold a GPU each; 0 where none is recognised.
        wants_switch: Whether the inventory demands NCCL_P2P_DISABLE=1 of it.
    """

    name: str
    state: Part[UnitState] = None
    engine: Part[str] = None
    arguments: Part[tuple[str, ...]] = None
    switch: Part[EffectiveVariable] = None
    level: Part[EffectiveVariable] = None
    layers: Part[tuple[Layer, ...]] = None
    transport: Part[SeenTransport] = None
    process_drift: Part[Drift] = None
    reload_drift: Part[Drift] = None
    journal: Part[UnitJournal] = None
    ranks: Part[int] = None
    wants_switch: bool = False


@dataclass(frozen=True, slots=True)
class RankWork:
    """
    What one rank's GPU did while the service answered requests of ours.

    Attributes:
        rank: Its number, or its process.
        device: PCI address; "" if it is not known.
        idle: Whether it did nothing while others worked; None if nobody can say.
        words: What was seen of it.
    """

    rank: str
    device: str
    idle: bool | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """
    Everything that was observed of one host.

    Attributes:
        alias: The host.
        gpus: GPUs that CUDA is to use. Shape (n,), in the inventory's order.
        peer_access: What the inventory says of peer access; None for nothing.
        confidential: "sev-snp" and so on, as it is offered now; what the inventory demands where that is unknown.
        uptime_s: Seconds since boot.
        acs: Bridges that redirect peer traffic.
        refused: Accesses that the IOMMU refused. Shape (n,).
        faults: Faults in the kernel's log that count. Shape (n,).
        log_gap: What is missing of that log; "" if nothing.
        translation: The kernel's words at boot on its default domain, where the group types are not known.
        transfers: Directed pairs by mechanism, simultaneous ones and torch's included. Shape (n,).
        runs: All-reduce arms. Shape (n,).
        smi_error: Why nvidia-smi shows nothing; "" if it shows something.
        driver_version: Of the loaded kernel module.
        driver_loaded_s: Seconds from boot until it was loaded.
        gpus_ready_s: Seconds from boot until what makes the GPUs ready had come up, by unit. Shape (n,), (unit, s).
        container: The container; None if the inventory names none.
        service: The service; None if the inventory names none.
        readiness: How far the endpoint got.
        speculation: The verdict on speculation.
        work: What each rank's GPU did under load. Shape (n,).
    """

    alias: str
    gpus: Part[tuple[GpuSeen, ...]] = None
    peer_access: str | None = None
    confidential: Part[str] = None
    uptime_s: Part[float] = None
    acs: Part[AcsSeen] = None
    refused: Part[tuple[RefusedAccess, ...]] = None
    faults: Part[tuple[KernelFault, ...]] = None
    log_gap: str = ""
    translation: Part[str] = None
    transfers: Part[tuple[PeerTransfer, ...]] = None
    runs: Part[tuple[AllReduceRun, ...]] = None
    smi_error: str = ""
    driver_version: Part[str] = None
    driver_loaded_s: Part[float] = None
    gpus_ready_s: tuple[tuple[str, float], ...] = ()
    container: ContainerSeen | None = None
    service: ServiceSeen | None = None
    readiness: Part[Readiness] = None
    speculation: Part[Verdict] = None
    work: Part[tuple[RankWork, ...]] = None
