"""One pytest session's run: its hosts, their captures, the targets of its items, and what became of them."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuinfra.capture.capture import Capture, Request
from pytest_gpuinfra.capture.many import Standing, capture_many
from pytest_gpuinfra.capture.selected import SelectedHost
from pytest_gpuinfra.capture.spool import IN_MEMORY, Spool
from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.connection.pipe import PipeConnection, close_all
from pytest_gpuinfra.connection.rights import Sudo
from pytest_gpuinfra.connection.ssh import SshConnection, close_sockets
from pytest_gpuinfra.errors import GpuInfraError, ProbeError
from pytest_gpuinfra.inventory.inventory import parse_inventory
from pytest_gpuinfra.record.recording import RecordedHost, Recording
from pytest_gpuinfra.session.items import Target, alias_of_id, targets_of

if TYPE_CHECKING:
    from pytest_gpuinfra.diagnosis.diagnose import Finding
    from pytest_gpuinfra.gather.endpoint import EmbeddedOnce, Serving
    from pytest_gpuinfra.gather.gpu import GpuRuns
    from pytest_gpuinfra.gather.participation import ParticipationRun
    from pytest_gpuinfra.host.host import GpuHost
    from pytest_gpuinfra.inventory.groups import CollectiveExpectation
    from pytest_gpuinfra.inventory.inventory import HostSpec
    from pytest_gpuinfra.record.compare import HostComparison
    from pytest_gpuinfra.session.scheduler import Deal, HostScheduling

LEVELS = ("passive", "active", "disruptive")
CLOSE_S = 2.5
"""Seconds within which every connection of an interrupted run is ended."""

REBOOT_WAIT_S = 1200.0
"""How long a host that is rebooted may take where `--gpu-wait` does not say; servers count their memory for minutes."""


@dataclass(frozen=True, slots=True)
class Settings:
    """
    What the command line says of reaching hosts.

    Attributes:
        level: Highest level of checks that may run, one of LEVELS.
        sudo: Which rights everything runs with on the targets; False leaves it to the inventory.
        ssh_config: Config file for ssh(1) in place of the user's own; None for that.
        connect_timeout_s: Seconds until the target must have started python3.
        deadline_s: Seconds for the capture, once that has started.
        deadline_all_s: Seconds for the captures of all hosts together; None for no limit.
        parallel: Hosts captured at the same time, at most; those that take long are not counted.
        keep_connections: Whether what follows a capture runs in this process, so that its connection is of use.
        endpoint: Address of the endpoint in place of the inventory's; "embedded", "none", or None for the inventory's.
        wait_s: How long to wait until a host is back and its endpoint is ready, in seconds.
        prompts: Files of prompts, beside the inventory's.
        api_key_env: Variable that holds the endpoint's key, in place of the inventory's.
        subsets: "none", "pairs" or "all": subsets of the GPUs that get all-reduces of their own.
        python: Python on the target that has torch; None for the service's, or python3.
        after_reboot: Whether every host must have booted since the baseline was recorded.
        reboot: Whether every host is rebooted before it is captured.
        allowed_changes: Changes since the baseline that were meant, as `compare.compare` takes them.
    """

    level: str = "active"
    sudo: Sudo = False
    ssh_config: str | None = None
    connect_timeout_s: float = 30.0
    deadline_s: float = 60.0
    deadline_all_s: float | None = None
    parallel: int = 32
    keep_connections: bool = True
    endpoint: str | None = None
    wait_s: float = 0.0
    prompts: tuple[str, ...] = ()
    api_key_env: str | None = None
    subsets: str = "none"
    python: str | None = None
    after_reboot: bool = False
    reboot: bool = False
    allowed_changes: tuple[str, ...] = ()


@dataclass(slots=True)
class Outcome:
    """
    How one item ended.

    Attributes:
        id: Node id.
        host: Alias.
        outcome: "passed", "failed", "error" or "skipped".
        message: What pytest shows of it; "" for a pass.
        took_s: Seconds of all its phases.
    """

    id: str
    host: str
    outcome: str
    message: str = ""
    took_s: float = 0.0


@dataclass
class Run:
    """
    The run.

    Attributes:
        settings: What the command line says.
        selected: Hosts by alias, in order.
        hosts: The same, once captured.
        outcomes: Results by alias and node id, on the controller only; two hosts may share a node id.
        wrong: Hosts with an item that failed or could not be judged, on the controller only.
        gathered: What xdist's workers gathered, by alias, on the controller only.
        on_progress: Called with a line whenever long work on a host begins something.
        collectives: Groups of hosts that compute together, as the inventory names them.
        started_at: UTC, ISO 8601.
        baseline: An earlier recording that hosts are compared with; None without `--gpu-baseline` and `--gpu-reboot`.
        before: Hosts as they were before this run rebooted them, by alias; empty if it had a baseline.
        boots_before: Ids of the boots that this run ended, by alias.
        waited_s: Seconds that this run waited for a host before its capture, by alias.
        stopped: Ends all waiting for hosts.
        interrupted: Whether Ctrl-C or SIGTERM has come.
        compared: The last comparison of a host with the baseline, by alias and size of what had been gathered.
        share_of: "share 2/8, 120 of 1000 hosts" where `--gpu-shard` was given; else "".
        no_inventory: Where no inventory was found; "" if there is one.
        portion: Hosts whose items are made next; None for all.
        deal: Which of xdist's workers has which hosts; None without xdist, and in a worker.
        scheduling: Which items xdist's workers have run; None without xdist, and in a worker.
        all_aliases: In a worker of xdist, all hosts of the run; else empty.
        exit_status: pytest's own, once the session has ended.
        narrowed: Which part of all checks was run, by alias: "8 of 425 checks (-k xid)"; absent for all of them.
        spool: Where captures are written down.
    """

    settings: Settings
    selected: Mapping[str, SelectedHost]
    extra_requests: Callable[[], Iterable[Request]] = list
    hosts: dict[str, GpuHost] = field(default_factory=dict)
    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)
    gathered: dict[str, dict[str, Any]] = field(default_factory=dict)
    on_progress: Callable[[str], None] = lambda _: None
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    collectives: Mapping[str, CollectiveExpectation] = field(default_factory=dict)
    captured_in_s: float = 0.0
    baseline: Recording | None = None
    before: dict[str, RecordedHost] = field(default_factory=dict)
    boots_before: dict[str, str] = field(default_factory=dict)
    waited_s: dict[str, float] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)
    interrupted: bool = False
    compared: dict[tuple[str, int], HostComparison] = field(default_factory=dict)
    share_of: str = ""
    no_inventory: str = ""
    portion: tuple[str, ...] | None = None
    deal: Deal | None = None
    scheduling: HostScheduling | None = None
    all_aliases: Mapping[str, None] = field(default_factory=dict)
    exit_status: int | None = None
    narrowed: dict[str, str] = field(default_factory=dict)
    spool: Spool = field(default_factory=Spool)
    _targets: dict[str, list[Target]] = field(default_factory=dict)
    _parsed: deque[GpuHost] = field(default_factory=deque)
    _diagnosed: dict[str, tuple[dict[str, Any], tuple[Finding, ...]]] = field(default_factory=dict)
    _capturing: dict[str, PipeConnection] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _early: dict[str, PipeConnection] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def open_early(self, opened: Mapping[str, SshConnection]) -> None:
        """
        Begin to log in to the first hosts, which takes longer than all that is to be prepared before a capture.

        Args:
            opened: Logins that were begun already, by destination.
        """
        live = [host for host in self.selected.values() if host.way != "replay"]
        unused = dict(opened)
        for host in live[: self.settings.parallel]:
            begun = unused.pop(host.destination, None)
            if begun is None:
                connection = self.connect(host, shared=self._lasting)
                connection.open_early()
            else:
                begun.name, connection = host.alias, begun
            self._early[host.alias] = connection
        for begun in unused.values():
            begun.close()

    def connect(self, host: SelectedHost, *, shared: bool = True) -> PipeConnection:
        """Make the connection of a host; it opens with its first command, and stays if it is to be shared by more."""
        sudo = self.settings.sudo or host.spec.sudo
        timeout_s = self.settings.connect_timeout_s
        if host.way == "local":
            return LocalConnection(host.alias, sudo=sudo, connect_timeout_s=timeout_s)
        return SshConnection(
            host.alias,
            host.destination,
            config=self.settings.ssh_config,
            sudo=sudo,
            connect_timeout_s=timeout_s,
            shared=shared,
        )

    def serving(self, host: GpuHost) -> Serving | None:
        """Make the endpoint of a host; None if it has none."""
        spec = host.selected.spec
        address = self.settings.endpoint or spec.endpoint or ""
        recorded = host.selected.gathered.get("endpoint")
        if recorded is None and host.selected.way == "replay":
            address = ""
        elif recorded is not None and not address:
            address = "embedded" if recorded.get("embedded") else recorded["address"]
        if address in ("", "none"):
            return None
        from pytest_gpuinfra.gather.endpoint import Serving, ServingSettings

        settings = ServingSettings(
            address,
            max(0.0, self.settings.wait_s - self.waited_s.get(host.alias, 0.0)),
            (*spec.prompts, *self.settings.prompts),
            self.settings.api_key_env or spec.api_key_env,
            spec.expect.model,
        )
        serving = Serving(
            host.alias,
            settings,
            connection=lambda: host.service_connection,
            local=host.selected.way == "local" and spec.container is None,
            embedded=self.embedded,
            recorded=recorded,
        )
        serving.on_progress = self._tell
        if spec.service is not None and host.selected.way != "replay" and address != "embedded":
            from pytest_gpuinfra.gather.unit_watch import UnitWatch

            serving.unit_state = UnitWatch(lambda: host.service_connection, spec.service)
        return serving

    def _tell(self, line: str) -> None:
        self.on_progress(line)

    def gpu_runs(self, host: GpuHost) -> GpuRuns | None:
        """Make the GPU programs of a host; None if it has no GPU that CUDA could use."""
        recorded = host.selected.gathered.get("gpu")
        if len(host.computing_gpus) < 1 or (host.selected.way == "replay" and recorded is None):
            return None
        from pytest_gpuinfra.gather.gpu import GpuRuns, GpuRunSettings

        arms = ("shm",) if host.expect.peer_access in ("blocked", "any") else ("shm", "p2p")
        return GpuRuns(
            host.alias,
            GpuRunSettings(
                host.computing_gpus,
                arms,
                self.settings.subsets,
                self.settings.python,
                peers=host.expect.peer_access != "blocked",
            ),
            connection=lambda: host.service_connection,
            host_connection=lambda: host.connection,
            baseline=lambda: host.facts.kernel_log,
            boot_id=lambda: host.facts.boot_id,
            recorded=recorded,
            on_progress=self._tell,
            service=None if host.selected.spec.service is None else lambda: host.facts.service,
        )

    def participation(self, host: GpuHost) -> ParticipationRun | None:
        """Make the sampling of a host's GPUs under load; None if it has no endpoint of its own, or no GPU for it."""
        serving, recorded = host.serving, host.selected.gathered.get("participation")
        if serving is None or (host.selected.way == "replay" and recorded is None):
            return None
        address = serving.settings.address
        gpus = serving.expect.participation.gpus or host.computing_gpus
        if not gpus or (recorded is None and address == "embedded"):
            return None
        from pytest_gpuinfra.gather.endpoint import port_of
        from pytest_gpuinfra.gather.participation import ParticipationRun
        from pytest_gpuinfra.on_target.sampling import SamplingPlan

        return ParticipationRun(
            host.alias,
            gpus,
            host.selected.spec.service,
            SamplingPlan(port=port_of(address)),
            load=serving.load,
            connection=lambda: host.connection,
            boot_id=lambda: host.facts.boot_id if serving.held is None or recorded else "",
            recorded=recorded,
            on_progress=self._tell,
        )

    @cached_property
    def embedded(self) -> EmbeddedOnce:
        """The server that comes along, shared by the hosts of this process."""
        from pytest_gpuinfra.gather.endpoint import EmbeddedOnce

        return EmbeddedOnce()

    def capture_all(
        self,
        on_done: Callable[[GpuHost], None] = lambda _: None,
        on_look: Callable[[Standing], None] = lambda _: None,
    ) -> None:
        """
        Capture every host, all at the same time within the limit; of many, the answers are written down at once.

        Args:
            on_done: Called in this thread for each host as it is done.
            on_look: Called in this thread twice a second with how far the captures are.
        """
        extra = list(self.extra_requests())
        done: dict[str, GpuHost] = {}

        def take_down(host: GpuHost) -> None:
            done[host.alias] = self.held(host)
            on_done(host)

        def look(standing: Standing) -> None:
            import pytest_gpuinfra.diagnosis.gather  # noqa: F401  the summary needs it; here it costs no time of its own

            on_look(standing)

        try:
            capture_many(
                list(self.selected.values()),
                lambda host: self._capture(host, extra),
                limit=self.settings.parallel,
                deadline_s=self.settings.deadline_all_s,
                give_up=self._give_up,
                on_done=take_down,
                on_look=look,
            )
        finally:
            self.hosts = {alias: done[alias] for alias in self.selected if alias in done}
        self.selected = {alias: host.selected for alias, host in self.hosts.items()}
        self.list_baseline_areas()
        self.form_collectives()
        self.captured_in_s = time.monotonic() - self._began

    def _give_up(self, selected: SelectedHost, begun: bool) -> GpuHost:
        """End a capture that the deadline for all has overtaken, or Ctrl-C; gives the host as one without answers."""
        self.stopped.set()
        with self._lock:
            self._given_up.add(selected.alias)
            connection = self._capturing.get(selected.alias)
        if connection is not None:
            threading.Thread(target=connection.close, daemon=True).start()  # which takes its time to end politely
        state = "its capture was not done" if begun else "its turn to be captured had not come"
        when, remedy = "the run was interrupted", "run again, and let it come to its end"
        if not self.interrupted:
            when = f"the {self.settings.deadline_all_s or 0:g} s for all hosts were over"
            remedy = "raise --gpu-deadline-all or --gpu-parallel, or deal the hosts out by --gpu-shard"
        return self._unanswered(selected, ProbeError(f"{selected.alias}: {state} when {when}", remedy=remedy))

    def _unanswered(self, selected: SelectedHost, error: GpuInfraError) -> GpuHost:
        from pytest_gpuinfra.host.host import GpuHost

        why = (type(error).__name__, error.reason, error.remedy)
        capture = Capture(selected.alias, selected.reached_by, (), error=why, taken_at=self.started_at)
        return GpuHost(selected, capture, self.connect, self.serving, self.gpu_runs, self.participation)

    def _capture(self, selected: SelectedHost, extra: list[Request]) -> GpuHost:
        from pytest_gpuinfra.host.capture import capture_host
        from pytest_gpuinfra.host.host import GpuHost

        def made(capture: Capture, connect: Callable[[SelectedHost], PipeConnection]) -> GpuHost:
            here = selected
            if len(self.selected) > IN_MEMORY:
                capture, here = self.spool.put(capture), dataclasses.replace(selected, capture=None)
            return GpuHost(here, capture, connect, self.serving, self.gpu_runs, self.participation)

        if selected.capture is not None:
            return made(selected.capture, self.connect)

        def take(connection: PipeConnection) -> Capture:
            return capture_host(
                connection,
                selected.spec,
                extra,
                reached_by=selected.reached_by,
                timeout_s=self.settings.deadline_s,
            )

        began = time.monotonic()
        try:
            connection = self._connection_to_capture(selected, take)
        except GpuInfraError as error:
            return self._unanswered(selected, error)
        self.waited_s[selected.alias] = time.monotonic() - began
        capture = take(connection)
        with self._lock:
            self._capturing.pop(selected.alias, None)
        if capture.error or not self._lasting:
            connection.close()
            return made(capture, self.connect)
        return made(capture, lambda _: connection)

    @property
    def _lasting(self) -> bool:
        """Whether the connection of a capture stays for what comes after; of many hosts it does not."""
        return self.settings.keep_connections and len(self.selected) <= self.settings.parallel

    def _connection_to_capture(
        self, selected: SelectedHost, take: Callable[[PipeConnection], Capture]
    ) -> PipeConnection:
        """
        Give the connection that a host is captured over; first reboot it and wait for it, where that is asked for.

        Raises:
            GpuInfraError: It was to be rebooted, and was not, or has not come back.
        """

        def connect() -> PipeConnection:
            connection = self._early.pop(selected.alias, None) or self.connect(selected, shared=self._lasting)
            with self._lock:
                self._capturing[selected.alias] = connection
                if selected.alias in self._given_up:
                    connection.close()
            return connection

        if not self.settings.reboot and not self.settings.wait_s:
            return connect()
        from pytest_gpuinfra.gather.reboot import Waiting, reboot_and_wait

        def tell(line: str) -> None:
            self._tell(f"{selected.alias}: {line}")

        deadline = time.monotonic() + self.settings.wait_s
        waiting = Waiting(connect, selected.spec, deadline, tell, self.stopped)
        if self.settings.reboot:

            def before(connection: PipeConnection) -> None:
                if self.baseline is None:
                    spec = selected.spec.model_dump(mode="json", exclude_defaults=True, exclude={"group"})
                    self.before[selected.alias] = RecordedHost(spec, take(connection))

            connection, self.boots_before[selected.alias] = reboot_and_wait(waiting, selected.alias, before=before)
            return connection
        connection, standing = waiting.until_back(not_boots=self._boots_of_the_baseline(selected.alias))
        if standing.error is not None:
            connection.close()
        return connection if standing.error is None else self.connect(selected)

    def _boots_of_the_baseline(self, alias: str) -> tuple[str, ...]:
        """Give the boot that must be over; () if none must."""
        old = self.baseline.hosts.get(alias) if self.baseline and self.settings.after_reboot else None
        if old is None:
            return ()
        from pytest_gpuinfra.host.facts import HostFacts

        try:
            return (HostFacts(old.capture).boot_id,)
        except GpuInfraError:
            return ()

    def form_collectives(self) -> None:
        """Form the groups of hosts that compute together, where the inventory or a recording has any."""
        if not self.collectives and not any(host.selected.gathered.get("collectives") for host in self.hosts.values()):
            return
        from pytest_gpuinfra.session.groups import form_collectives

        python, tell = self.settings.python, self._tell
        form_collectives(self.hosts, self.collectives, python=python, connect=self.connect, on_progress=tell)

    def list_baseline_areas(self) -> None:
        """Note for each host which areas of facts the baseline holds; hosts as they were before a reboot are one."""
        if self.baseline is None and self.before:
            self.baseline = Recording(dict(self.before), (), self.started_at)
        if self.baseline is None:
            return
        from pytest_gpuinfra.record.snapshot import snapshot_of

        for alias, host in self.hosts.items():
            old = self.baseline.hosts.get(alias)
            if old is not None:
                found = snapshot_of(alias, old.spec, old.capture, old.gathered)
                names = [*found.facts, *found.unknown]
                host.baseline_areas = tuple(dict.fromkeys(name.partition("/")[0].replace(" ", "-") for name in names))

    def targets_for(self, kind: str) -> list[Target]:
        """Give the targets of one kind over the hosts in turn; every test about that kind shares them."""
        if kind not in self._targets:
            hosts = self.hosts.values() if self.portion is None else [self.hosts[alias] for alias in self.portion]
            self._targets[kind] = [target for host in hosts for target in targets_of(host, kind, self.alias_of)]
        return self._targets[kind]

    def begin_portion(self, aliases: Sequence[str]) -> None:
        """Make targets of these hosts alone from here on."""
        self.portion = tuple(aliases)
        self._targets.clear()

    def alias_of(self, identity: str) -> str | None:
        """Tell whose a target's id looks, over all hosts of the run; None if it is none of theirs."""
        return alias_of_id(identity, self.all_aliases or self.selected)

    def held(self, host: GpuHost) -> GpuHost:
        """Keep the parsed facts of the last few hosts only, where there are many."""
        if len(self.selected) > IN_MEMORY:
            host.on_facts = self._hold
            if host.has_facts:
                self._hold(host)
        return host

    def _hold(self, host: GpuHost) -> None:
        self._parsed.append(host)
        if len(self._parsed) > IN_MEMORY:
            oldest = self._parsed.popleft()
            if oldest not in self._parsed:
                if oldest.alias in self.wrong and oldest.has_facts:
                    self._diagnosed[oldest.alias] = oldest.gathered(), self._diagnose(oldest)
                oldest.release()

    def findings(self, alias: str) -> tuple[Finding, ...]:
        """
        Say what is wrong with a host; of many, from before its facts were dropped, if nothing was gathered since.

        Returns:
            Findings, causes first; () if nothing wrong was seen. Shape (n,).
        """
        host = self.hosts[alias]
        if alias in self._diagnosed:
            gathered, found = self._diagnosed[alias]
            if gathered == host.gathered():
                return found
        return self._diagnose(host)

    def _diagnose(self, host: GpuHost) -> tuple[Finding, ...]:
        from pytest_gpuinfra.diagnosis.gather import findings_of

        return findings_of(host, self.gathered.get(host.alias))

    def hand_over(self, worker: str, workers: int) -> dict[str, Any]:
        """
        Write down what xdist's workers need, once, and deal one of them its hosts.

        Args:
            worker: xdist's name for it.
            workers: How many there are at the start.
        """
        if self.deal is None:
            from pytest_gpuinfra.session.scheduler import Deal

            self.deal = Deal(tuple(self.hosts))
            self.spool.write("aliases.json", list(self.hosts))
            for alias, host in self.hosts.items():
                host.capture = self.spool.put(host.capture)
                before = self.before.get(alias)
                self.spool.write(
                    f"{alias}.host.json",
                    {
                        "way": host.selected.way,
                        "destination": host.selected.destination,
                        "spec": host.selected.spec.model_dump(mode="json", exclude_defaults=True, exclude={"group"}),
                        "expectation_from": host.expectation_from,
                        "capture": {**host.capture.to_json(), "answers": {}},
                        "gathered": dict(host.selected.gathered),
                        "collectives": self._plain(host),
                        "before": [before.spec, before.capture.to_json(), before.gathered] if before else None,
                        "boot_before": self.boots_before.get(alias),
                        "waited_s": self.waited_s.get(alias, 0.0),
                    },
                )
        return {"directory": str(self.spool.directory), "hosts": list(self.deal.deal(worker, workers))}

    @staticmethod
    def _plain(host: GpuHost) -> list[dict[str, Any]]:
        if not host.collectives:
            return []
        from pytest_gpuinfra.session.groups import plain

        return plain(host.collectives)

    @classmethod
    def taken_over(cls, settings: Settings, handed: Mapping[str, Any]) -> Run:
        """Rebuild the run in a worker, for its hosts, from what `hand_over` wrote; no host is touched."""
        from pytest_gpuinfra.host.host import GpuHost

        run = cls(settings, {})
        run.spool = Spool(Path(handed["directory"]))
        run.all_aliases = dict.fromkeys(run.spool.read("aliases.json"))
        selected: dict[str, SelectedHost] = {}
        specs: dict[str, HostSpec] = {}
        for alias in handed["hosts"]:
            data = run.spool.read(f"{alias}.host.json")
            key = json.dumps(data["spec"])
            if key not in specs:
                specs[key] = parse_inventory({"hosts": {alias: data["spec"]}}, "hand-over").hosts[alias]
            selected[alias] = SelectedHost(
                alias, data["way"], data["destination"], specs[key], data["expectation_from"], None, data["gathered"]
            )
            if data["before"]:
                spec, capture, gathered = data["before"]
                run.before[alias] = RecordedHost(spec, Capture.from_json(alias, capture), gathered)
            if data["boot_before"]:
                run.boots_before[alias] = data["boot_before"]
            run.waited_s[alias] = data["waited_s"]
        run.selected = selected
        for alias, host in selected.items():
            capture = run.spool.lend(Capture.from_json(alias, run.spool.read(f"{alias}.host.json")["capture"]))
            run.hosts[alias] = run.held(
                GpuHost(host, capture, run.connect, run.serving, run.gpu_runs, run.participation)
            )
            groups = run.spool.read(f"{alias}.host.json")["collectives"]
            if groups:
                from pytest_gpuinfra.session.groups import from_plain

                run.hosts[alias].collectives = from_plain(groups, connect=run.connect, on_progress=run._tell)
        return run

    def recording(self, plugin: str) -> Recording:
        """Give this run as it is to be written down."""
        hosts = {
            alias: RecordedHost(
                host.selected.spec.model_dump(mode="json", exclude_defaults=True, exclude={"group"}),
                host.capture,
                self.gathered.get(alias) or host.gathered(),
            )
            for alias, host in self.hosts.items()
        }
        results: list[dict[str, Any]] = [
            {
                "id": outcome.id,
                "host": outcome.host,
                "outcome": outcome.outcome,
                "message": outcome.message,
                "took_s": round(outcome.took_s, 4),
            }
            for outcome in self.outcomes.values()
        ]
        return Recording(hosts, results, self.started_at, plugin, exit_status=self.exit_status, narrowed=self.narrowed)

    @property
    def key_variables(self) -> set[str]:
        """Variables of this process's environment that hold API keys of endpoints."""
        names = {host.spec.api_key_env for host in self.selected.values()} | {self.settings.api_key_env}
        return {name for name in names if name}

    @property
    def endpoint_addresses(self) -> set[str]:
        """Addresses of endpoints as the user wrote them, user information included."""
        return {
            address
            for address in (self.settings.endpoint, *(h.spec.endpoint for h in self.selected.values()))
            if address
        }

    def stop(self) -> None:
        """End all that anything of this run waits for; what is begun afterwards ends at once, in an error."""
        self.stopped.set()
        for host in list(self.hosts.values()):
            if host.serving is not None:
                host.serving.stop()
        close_all(CLOSE_S)

    def report_items(self, worker: str, items: Sequence[tuple[str, str | None]]) -> None:
        """In a worker, write down the node id of each collected item and the host that it is about."""
        self.spool.write(f"{worker}.items.json", items)

    def reported_items(self, worker: str) -> list[tuple[str, str | None]]:
        """Read the node id of each item that a worker collected and the alias of its host, None for no host."""
        return [(nodeid, alias) for nodeid, alias in self.spool.read(f"{worker}.items.json")]

    def leave_for_controller(self, worker: str, gathered: Mapping[str, Any]) -> None:
        """In a worker that was interrupted, write down what was gathered: the controller listens no more."""
        self.spool.write(f"{worker}.part", gathered)
        (self.spool.directory / f"{worker}.part").rename(self.spool.directory / f"{worker}.gathered.json")

    def take_from_workers(self, *, timeout_s: float) -> None:
        """Take over what interrupted workers leave, within so many seconds."""
        limit, waiting = time.monotonic() + timeout_s, set(self.deal.workers if self.deal else ())
        while waiting and time.monotonic() < limit:
            for worker in [one for one in waiting if (self.spool.directory / f"{one}.gathered.json").exists()]:
                self.gathered.update(self.spool.read(f"{worker}.gathered.json"))
                waiting.discard(worker)
            time.sleep(0.02)

    def close(self) -> None:
        """End all connections and remove the private files."""
        if self.interrupted:
            self.stop()
        for host in self.hosts.values():
            host.close()
        for connection in self._early.values():
            connection.close()
        if "embedded" in self.__dict__:
            self.embedded.close()
        close_sockets()
        self.spool.close()
