"""
What the diagnosis goes by, put together from a host: its capture, and what was gathered after it.

Nothing is run and nobody is asked here: the programs and the endpoint are judged by what they said already, as a
replay judges them. So it works on xdist's controller, on a live host, and on a recording alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pytest_gpuinfra.diagnosis.diagnose import Finding, diagnose
from pytest_gpuinfra.diagnosis.observations import (
    AcsSeen,
    ContainerSeen,
    GpuSeen,
    Observations,
    Part,
    RankWork,
    RefusedAccess,
    ServiceSeen,
    Unknown,
    known,
)
from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError, ProbeError
from pytest_gpuinfra.gather.gpu import GpuRun, GpuRuns, GpuRunSettings
from pytest_gpuinfra.masking import first_of
from pytest_gpuinfra.pci_address import short_address
from pytest_gpuinfra.subjects.kernel_log.address import decode_address
from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.gpu_init import driver_loaded_at_s
from pytest_gpuinfra.subjects.kernel_log.iommu_boot import parse_iommu_boot
from pytest_gpuinfra.subjects.kernel_log.log import KernelLog
from pytest_gpuinfra.subjects.participation.judge import judge_activity, judge_presence
from pytest_gpuinfra.subjects.participation.samples import Participation, parse_participation
from pytest_gpuinfra.subjects.pci.acs import redirecting
from pytest_gpuinfra.subjects.pci.functions import PciFunctions
from pytest_gpuinfra.subjects.service.comparison import compare_with_process, compare_with_systemd

if TYPE_CHECKING:
    from pytest_gpuinfra.endpoint.readiness import Readiness
    from pytest_gpuinfra.host.host import GpuHost
    from pytest_gpuinfra.subjects.container.facts import ContainerFacts
    from pytest_gpuinfra.subjects.service.facts import ServiceFacts
    from pytest_gpuinfra.subjects.verdict import Verdict

T = TypeVar("T")
_SWITCH = "NCCL_P2P_DISABLE"
_LEVEL = "NCCL_P2P_LEVEL"


def findings_of(host: GpuHost, gathered: Mapping[str, Any] | None = None) -> tuple[Finding, ...]:
    """
    Say what is wrong with a host.

    Args:
        host: The host.
        gathered: What was gathered of it after the capture, as its recording holds it; under xdist the worker's.
            None for what this process gathered.

    Returns:
        Findings, causes first; () if nothing wrong was seen. Shape (n,).
    """
    return diagnose(observations_of(host, host.gathered() if gathered is None else gathered))


def observations_of(host: GpuHost, gathered: Mapping[str, Any]) -> Observations:
    """Put together everything that was observed of a host; what could not be observed is `Unknown`, with its reason."""
    facts, expect = host.facts, host.expect
    functions = _part(lambda: facts.pci_functions)
    log = _part(lambda: facts.kernel_log)
    runs = _programs(host, gathered)
    faults = _faults(host, runs)
    table = _part(lambda: facts.gpu_table)
    readiness, speculation = _endpoint(host, gathered)
    return Observations(
        alias=host.alias,
        gpus=_gpus(host, functions),
        peer_access=expect.peer_access,
        confidential=_confidential(host),
        uptime_s=_part(lambda: facts.uptime_s),
        acs=_part(lambda: _acs(host.computing_gpus, facts.pci_functions)),
        refused=_refused(host, faults, functions),
        faults=Unknown(faults.reason) if isinstance(faults, Unknown) else tuple(fault for fault, _ in faults),
        log_gap=log.gap if isinstance(log, KernelLog) else "",
        translation=_part(lambda: parse_iommu_boot(facts.kernel_log.entries).default_domain),
        transfers=_over(runs, lambda run: (*run.program.transfers, *run.program.chains)),
        runs=_over(runs, lambda run: run.program.runs),
        smi_error=table.reason if isinstance(table, Unknown) and host.computing_gpus else "",
        driver_version=_part(lambda: facts.driver_version.version),
        driver_loaded_s=_part(lambda: driver_loaded_at_s(facts.kernel_log)),
        gpus_ready_s=_gpus_ready(host),
        container=_container(host),
        service=_service(host),
        readiness=readiness,
        speculation=speculation,
        work=_work(host, gathered),
    )


def _part(read: Callable[[], T]) -> T | Unknown:
    """Read a part; what keeps it from being known is kept. Recordings of other versions may lack a key."""
    try:
        return read()
    except GpuInfraError as error:
        return Unknown(error.reason)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return Unknown(f"the recording holds it in another shape: {type(error).__name__} {error}")


def _gpus(host: GpuHost, functions: PciFunctions | Unknown) -> Part[tuple[GpuSeen, ...]]:
    if not host.computing_gpus:
        return functions if isinstance(functions, Unknown) else None
    table = _part(lambda: {row.pci_address: row for row in host.facts.gpu_table})
    seen = []
    for address in host.computing_gpus:
        row = table.get(address) if isinstance(table, dict) else None
        seen.append(
            GpuSeen(
                address,
                present=functions if isinstance(functions, Unknown) else address in functions,
                driver=_part(lambda at=address: host.facts.pci_functions[at].driver or "none"),  # type: ignore[misc]
                group_type=_part(lambda at=address: _group_type(host, at)),  # type: ignore[misc]
                name=_part(lambda of=row: of.text("name")) if row is not None else None,  # type: ignore[misc]
                in_driver=table if isinstance(table, Unknown) else row is not None,
            )
        )
    return tuple(seen)


def _group_type(host: GpuHost, address: str) -> str:
    group = host.facts.iommu_groups.of(address)
    return "no group" if group is None else group.type


def _confidential(host: GpuHost) -> Part[str]:
    level = _part(lambda: host.facts.confidential.level)
    if host.expect.confidential == "sev-snp" or isinstance(level, Unknown):
        return host.expect.confidential or level
    return level


def _acs(addresses: Sequence[str], functions: PciFunctions) -> AcsSeen:
    """Sort the bridges that redirect by whether they stand between two of the GPUs, below a bridge over both."""
    above = {address: functions[address].upstream for address in addresses if address in functions}
    between: dict[str, str] = {}
    for one, other in permutations(above, 2):
        common = [bridge for bridge in above[one] if bridge in above[other]]
        if common:
            way = above[one][above[one].index(common[-1]) + 1 :]
            between |= dict.fromkeys(way, f"{short_address(one)} and {short_address(other)}")
    bridges = {bridge for way in above.values() for bridge in way}
    found = redirecting(functions[bridge] for bridge in sorted(bridges))
    words = {bridge.address: f"{bridge.address}: control {bridge.acs.control:#06x}" for bridge in found if bridge.acs}
    return AcsSeen(
        tuple(f"{text}, between {between[address]}" for address, text in words.items() if address in between),
        tuple(text for address, text in words.items() if address not in between),
    )


Faults = Sequence[tuple[KernelFault, bool]]
"""Faults that count, each with whether it was logged while our own programs ran."""


def _faults(host: GpuHost, runs: Part[tuple[GpuRun, ...]]) -> Faults | Unknown:
    def read() -> Faults:
        faults = host.facts.kernel_faults(host.expect.kernel_log)
        found = [(fault, False) for fault in faults.counting]
        for run in known(runs) or ():
            if run.log:
                log = KernelLog(run.log, "/dev/kmsg", "")
                ours = host.facts.faults_in(log, host.expect.kernel_log)
                found += [(fault, True) for fault in ours.counting]
        return found

    return _part(read)


def _refused(
    host: GpuHost, faults: Faults | Unknown, functions: PciFunctions | Unknown
) -> Part[tuple[RefusedAccess, ...]]:
    if isinstance(faults, Unknown):
        return faults
    cards = {address.rpartition(".")[0] for address in host.computing_gpus}
    found = []
    for fault, ours in faults:
        if fault.kind != "iommu" or fault.device is None or fault.device.rpartition(".")[0] not in cards:
            continue
        owner = None
        if fault.address is not None and not isinstance(functions, Unknown):
            at, among = fault.address, functions
            owner = known(_part(lambda at=at, among=among: decode_address(at, among)))  # type: ignore[misc]
        target = (
            owner.function
            if owner and not isinstance(functions, Unknown) and functions[owner.function].is_gpu
            else None
        )
        words = first_of(fault.message, 200)
        if owner is not None:
            reached = f"{owner.bar_name} of {short_address(owner.function)}"
            words = f"{short_address(fault.device)} tried to reach {reached}: {words}"
        peer = target if target != fault.device else None
        found.append(RefusedAccess(fault.device, peer, words, fault.count, ours))
    return tuple(found)


def _programs(host: GpuHost, gathered: Mapping[str, Any]) -> Part[tuple[GpuRun, ...]]:
    """Read what the GPU programs said; None if none ran."""
    recorded = gathered.get("gpu")
    if not recorded:
        return None
    runs = GpuRuns(
        host.alias,
        GpuRunSettings(host.computing_gpus),
        connection=_nobody,
        host_connection=_nobody,
        baseline=_nobody,
        boot_id=lambda: host.facts.boot_id,
        recorded=recorded,
    )
    read = [_part(lambda name=name: getattr(runs, name)) for name in ("cuda", "torch") if name in recorded]  # type: ignore[misc]
    found = [run for run in read if not isinstance(run, Unknown)]
    failed = [run for run in read if isinstance(run, Unknown)]
    return tuple(found) if found else next(iter(failed), None)


def _nobody() -> NoReturn:
    raise FactUnavailable("diagnosis", "it asks nobody")


def _over(runs: Part[tuple[GpuRun, ...]], give: Callable[[GpuRun], Iterable[T]]) -> Part[tuple[T, ...]]:
    if runs is None or isinstance(runs, Unknown):
        return runs
    return tuple(value for run in runs for value in give(run))


def _gpus_ready(host: GpuHost) -> tuple[tuple[str, float], ...]:
    """Say when the host's own NVIDIA units had come up, of those that the inventory names."""
    found = []
    for name in host.expect.units:
        unit = _part(lambda name=name: host.facts.unit(name)) if "nvidia" in name else None  # type: ignore[misc]
        if unit is not None and not isinstance(unit, Unknown) and unit.active:
            at_us = unit.number("ActiveEnterTimestampMonotonic")
            found += [(name, at_us / 1e6)] if at_us else []
    return tuple(found)


def _container(host: GpuHost) -> ContainerSeen | None:
    if host.selected.spec.container is None:
        return None
    facts: ContainerFacts | Unknown = _part(lambda: host.facts.container)
    name = host.selected.spec.container
    if isinstance(facts, Unknown):
        return ContainerSeen(name)
    inside, expect = facts, host.expect.container
    wanted = bool(expect.nodes or expect.devices)
    return ContainerSeen(
        name,
        missing_nodes=_part(lambda: _missing(host, inside)) if wanted else None,
        stale_nodes=_part(lambda: _stale(inside)) if wanted else None,
        shm=_part(lambda: inside.space("/dev/shm")),
        shm_min_gib=expect.shm_min_gib,
        libraries=_part(lambda: inside.library_versions) if expect.devices else None,
        started_s=_part(lambda: inside.started_s),
    )


def _missing(host: GpuHost, inside: ContainerFacts) -> tuple[str, ...]:
    expect = host.expect.container
    paths = list(expect.nodes)
    for address in expect.devices:
        node = _part(lambda at=address: inside.node_of_gpu(at))  # type: ignore[misc]
        paths += [node] if isinstance(node, str) else []
    return tuple(path for path in paths if path not in inside.nodes)


def _stale(inside: ContainerFacts) -> tuple[str, ...]:
    found = []
    for path, node in inside.nodes.items():
        major = _part(lambda path=path: inside.major_of(path))  # type: ignore[misc]
        if isinstance(major, int) and major != node.major:
            found.append(f"{path} has major {node.major}; the host's driver has {major} now")
    return tuple(found)


def _service(host: GpuHost) -> ServiceSeen | None:
    name = host.selected.spec.service
    if name is None:
        return None
    facts: ServiceFacts | Unknown = _part(lambda: host.facts.service)
    if isinstance(facts, Unknown):
        return ServiceSeen(name, state=facts)
    service = facts
    return ServiceSeen(
        name,
        state=_part(lambda: service.state),
        engine=_part(lambda: service.engine),
        arguments=_part(lambda: _arguments(service)),
        switch=_part(lambda: service.variable(_SWITCH)),
        level=_part(lambda: service.variable(_LEVEL)),
        layers=_part(lambda: service.layers),
        transport=_part(lambda: service.transport),
        process_drift=_part(lambda: compare_with_process(service)),
        reload_drift=_part(lambda: compare_with_systemd(service)),
        journal=_part(lambda: service.journal),
        ranks=_part(lambda: len(service.ranks)),
        wants_switch=host.expect.service.environment.get(_SWITCH) == "1",
    )


def _arguments(service: ServiceFacts) -> tuple[str, ...]:
    main = service.main
    if main.renamed:
        raise FactUnavailable(f"/proc/{main.pid}/cmdline", f"a title overwrote it: {main.title!r}")
    return main.argv


def _endpoint(host: GpuHost, gathered: Mapping[str, Any]) -> tuple[Part[Readiness], Part[Verdict]]:
    """Give how far the endpoint got, and the verdict on speculation; what reads them is loaded only if there is one."""
    data = gathered.get("endpoint")
    if not data:
        return None, None
    from pytest_gpuinfra.diagnosis.endpoint import read_readiness, read_speculation

    expect = host.expect.model
    return _part(lambda: read_readiness(data, host.alias)), _part(lambda: read_speculation(data, expect.speculation))


def _work(host: GpuHost, gathered: Mapping[str, Any]) -> Part[tuple[RankWork, ...]]:
    """Tell of each GPU that the service runs on whether it carried a rank, and worked; None if nobody sampled."""
    said = gathered.get("participation")
    if not said:
        return None
    unit = host.selected.spec.service

    def read() -> tuple[RankWork, ...]:
        if said.get("error"):
            raise ProbeError(str(said["error"]))
        seen = parse_participation(said["lines"], source=f"{host.alias}: sampler")
        if seen.boot_id != host.facts.boot_id:
            raise FactUnavailable("sampler", f"it belongs to boot {seen.boot_id}")
        if not said["load"]["answered"]:
            raise FactUnavailable("sampler", "the service answered none of the requests meanwhile")
        addresses = host.expect.model.participation.gpus or host.computing_gpus
        return tuple(_work_of(seen, address, unit) for address in addresses)

    return _part(read)


def _work_of(seen: Participation, address: str, unit: str | None) -> RankWork:
    short = short_address(address)
    there = judge_presence(seen, address, unit, short)
    active = judge_activity(seen, address, short, unit=unit, least=None)
    judged = there if there.ending == "wrong" else active
    idle = {"wrong": True, "ok": False}.get(judged.ending)
    return RankWork(f"on GPU {short}", address, idle, f"{short}: {judged.observed}")
