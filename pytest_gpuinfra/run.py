"""One pytest session's run: its hosts, their captures, the targets of its items, and what became of them."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuinfra.capture import Capture, Request
from pytest_gpuinfra.connection.base import PipeConnection
from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.connection.ssh import SshConnection, close_sockets
from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.inventory import parse_inventory
from pytest_gpuinfra.recording import RecordedHost, Recording
from pytest_gpuinfra.selection import SelectedHost
from pytest_gpuinfra.targets import Target, alias_of_id, targets_of

if TYPE_CHECKING:
    from pytest_gpuinfra.gpu_runs import GpuRuns
    from pytest_gpuinfra.host import GpuHost
    from pytest_gpuinfra.participation import ParticipationRun
    from pytest_gpuinfra.serving import EmbeddedOnce, Serving

_RETRY_S = 3.0
LEVELS = ("passive", "active", "disruptive")


@dataclass(frozen=True, slots=True)
class Settings:
    """
    What the command line says of reaching hosts.

    Attributes:
        level: Highest level of checks that may run, one of LEVELS.
        sudo: Run everything through `sudo -n`, also where the inventory does not ask for it.
        ssh_config: Config file for ssh(1) in place of the user's own; None for that.
        connect_timeout_s: Seconds until the target must have started python3.
        deadline_s: Seconds for the capture, once that has started.
        parallel: Hosts captured at the same time, at most.
        endpoint: Address of the endpoint in place of the inventory's; "embedded", "none", or None for the inventory's.
        wait_s: How long to wait for an endpoint to be ready, in seconds.
        prompts: Files of prompts, beside the inventory's.
        api_key_env: Variable that holds the endpoint's key, in place of the inventory's.
        subsets: "none", "pairs" or "all": subsets of the GPUs that get all-reduces of their own.
        python: Python on the target that has torch; None for the service's, or python3.
        after_reboot: Whether every host must have booted since the baseline was recorded.
        allowed_changes: Changes since the baseline that were meant, as `compare.compare` takes them.
    """

    level: str = "active"
    sudo: bool = False
    ssh_config: str | None = None
    connect_timeout_s: float = 30.0
    deadline_s: float = 60.0
    parallel: int = 32
    endpoint: str | None = None
    wait_s: float = 0.0
    prompts: tuple[str, ...] = ()
    api_key_env: str | None = None
    subsets: str = "none"
    python: str | None = None
    after_reboot: bool = False
    allowed_changes: tuple[str, ...] = ()


@dataclass
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
        outcomes: Results by node id, on the controller only.
        gathered: What xdist's workers gathered, by alias, on the controller only.
        on_progress: Called with a line whenever long work on a host begins something.
        started_at: UTC, ISO 8601.
        baseline: An earlier recording that hosts are compared with; None without `--gpu-baseline`.
    """

    settings: Settings
    selected: Mapping[str, SelectedHost]
    extra_requests: Callable[[], Iterable[Request]] = list
    hosts: dict[str, GpuHost] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    gathered: dict[str, dict[str, Any]] = field(default_factory=dict)
    on_progress: Callable[[str], None] = lambda _: None
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    captured_in_s: float = 0.0
    baseline: Recording | None = None
    _handover: Path | None = None
    _targets: dict[str, list[Target]] = field(default_factory=dict)
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
                connection = self.connect(host)
                connection.open_early()
            else:
                begun.name, connection = host.alias, begun
            self._early[host.alias] = connection
        for begun in unused.values():
            begun.close()

    def connect(self, host: SelectedHost) -> PipeConnection:
        """Make the connection of a host; it opens with its first command."""
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
        )

    def serving(self, host: GpuHost) -> Serving | None:
        """Make the endpoint of a host; None if it has none."""
        spec = host.selected.spec
        address = self.settings.endpoint or spec.endpoint or ""
        recorded = host.selected.gathered.get("endpoint")
        if host.selected.way == "replay":
            address = recorded["address"] if recorded else ""
        if address in ("", "none"):
            return None
        from pytest_gpuinfra.serving import Serving, ServingSettings

        settings = ServingSettings(
            address,
            self.settings.wait_s,
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
        return serving

    def _tell(self, line: str) -> None:
        self.on_progress(line)

    def gpu_runs(self, host: GpuHost) -> GpuRuns | None:
        """Make the GPU programs of a host; None if it has no GPU that CUDA could use."""
        recorded = host.selected.gathered.get("gpu")
        if len(host.computing_gpus) < 1 or (host.selected.way == "replay" and recorded is None):
            return None
        from pytest_gpuinfra.gpu_runs import GpuRuns, GpuRunSettings

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
        from pytest_gpuinfra.participation import ParticipationRun
        from pytest_gpuinfra.serving import port_of
        from pytest_gpuinfra.target.sampling import SamplingPlan

        service = host.selected.spec.service
        return ParticipationRun(
            host.alias,
            gpus,
            None if service is None else service if "." in service else f"{service}.service",
            SamplingPlan(port=port_of(address)),
            load=serving.load,
            connection=lambda: host.connection,
            boot_id=lambda: host.facts.boot_id,
            recorded=recorded,
            on_progress=self._tell,
        )

    @cached_property
    def embedded(self) -> EmbeddedOnce:
        """The server that comes along, shared by the hosts of this process."""
        from pytest_gpuinfra.serving import EmbeddedOnce

        return EmbeddedOnce()

    def capture_all(self, on_done: Callable[[GpuHost, int], None]) -> None:
        """
        Capture every host, all at the same time within the limit.

        Args:
            on_done: Called in this thread for each host as it is done, with the number of those still open.
        """
        extra = list(self.extra_requests())
        done: dict[str, GpuHost] = {}
        with ThreadPoolExecutor(max(1, min(self.settings.parallel, len(self.selected)))) as pool:
            waiting = [pool.submit(self._capture, host, extra) for host in self.selected.values()]
            import pytest_gpuinfra.diagnosis_input  # noqa: F401  the summary needs it; here it costs no time of its own

            for count, future in enumerate(as_completed(waiting), 1):
                host = future.result()
                done[host.alias] = host
                on_done(host, len(waiting) - count)
        self.hosts = {alias: done[alias] for alias in self.selected}
        self.list_baseline_areas()
        self.captured_in_s = time.monotonic() - self._began

    def _capture(self, selected: SelectedHost, extra: list[Request]) -> GpuHost:
        from pytest_gpuinfra.host import GpuHost
        from pytest_gpuinfra.host_capture import capture_host

        if selected.capture is not None:
            return GpuHost(selected, selected.capture, self.connect, self.serving, self.gpu_runs, self.participation)
        deadline = time.monotonic() + self.settings.wait_s
        while True:
            connection = self._early.pop(selected.alias, None) or self.connect(selected)
            capture = capture_host(
                connection,
                selected.spec,
                extra,
                reached_by=selected.reached_by,
                timeout_s=self.settings.deadline_s,
            )
            left = deadline - time.monotonic()
            missing = self._still_missing(capture)
            if not missing or left <= 0:
                break
            connection.close()
            self._tell(f"{selected.alias}: {missing}; waiting, {left:.0f} s left")
            time.sleep(min(_RETRY_S, left))
        host = GpuHost(selected, capture, lambda _: connection, self.serving, self.gpu_runs, self.participation)
        if capture.error:
            connection.close()
            host = GpuHost(selected, capture, self.connect, self.serving, self.gpu_runs, self.participation)
        return host

    def _still_missing(self, capture: Capture) -> str:
        """Say what a host that is booting lacks; "" if it is back."""
        if capture.error:
            return "not reached" if capture.error[0] == "UnreachableError" else ""
        old = self.baseline.hosts.get(capture.alias) if self.baseline and self.settings.after_reboot else None
        if old is None:
            return ""
        from pytest_gpuinfra.host_facts import HostFacts

        try:
            same = HostFacts(capture).boot_id == HostFacts(old.capture).boot_id
        except GpuInfraError:
            return ""
        return "not rebooted yet" if same else ""

    def list_baseline_areas(self) -> None:
        """Note for each host which areas of facts the baseline holds."""
        if self.baseline is None:
            return
        from pytest_gpuinfra.snapshot import snapshot_of

        for alias, host in self.hosts.items():
            old = self.baseline.hosts.get(alias)
            if old is not None:
                found = snapshot_of(alias, old.spec, old.capture, old.gathered)
                names = [*found.facts, *found.unknown]
                host.baseline_areas = tuple(dict.fromkeys(name.partition("/")[0].replace(" ", "-") for name in names))

    def targets_for(self, kind: str) -> list[Target]:
        """Give the targets of one kind over all hosts; every test about that kind shares them."""
        if kind not in self._targets:
            self._targets[kind] = [
                target for host in self.hosts.values() for target in targets_of(host, kind, self.alias_of)
            ]
        return self._targets[kind]

    def alias_of(self, identity: str) -> str | None:
        """Tell whose a target's id is; None if it is none of this run's."""
        return alias_of_id(identity, self.selected)

    def hand_over(self) -> str:
        """Write what xdist's workers need into a private file, and give its path."""
        if self._handover is None:
            directory = Path(tempfile.mkdtemp(prefix="gpuinfra-run-"))
            self._handover = directory / "captures.json"
            hosts = [
                {
                    "alias": alias,
                    "way": host.selected.way,
                    "destination": host.selected.destination,
                    "spec": host.selected.spec.model_dump(mode="json", exclude_defaults=True, exclude={"group"}),
                    "expectation_from": host.expectation_from,
                    "capture": host.capture.to_json(),
                    "gathered": dict(host.selected.gathered),
                }
                for alias, host in self.hosts.items()
            ]
            self._handover.write_text(json.dumps(hosts), encoding="utf-8")
        return str(self._handover)

    @classmethod
    def taken_over(cls, settings: Settings, path: str) -> Run:
        """Rebuild the run in a worker from `hand_over`'s file; no host is touched."""
        from pytest_gpuinfra.host import GpuHost

        run = cls(settings, {})
        selected: dict[str, SelectedHost] = {}
        for data in json.loads(Path(path).read_text(encoding="utf-8")):
            alias = data["alias"]
            spec = parse_inventory({"hosts": {alias: data["spec"]}}, "hand-over").hosts[alias]
            selected[alias] = SelectedHost(
                alias, data["way"], data["destination"], spec, data["expectation_from"], None, data["gathered"]
            )
            run.hosts[alias] = GpuHost(
                selected[alias],
                Capture.from_json(alias, data["capture"]),
                run.connect,
                run.serving,
                run.gpu_runs,
                run.participation,
            )
        run.selected = selected
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
        return Recording(hosts, results, self.started_at, plugin)

    @property
    def key_variables(self) -> set[str]:
        """Variables of this process's environment that hold API keys of endpoints."""
        names = {host.spec.api_key_env for host in self.selected.values()} | {self.settings.api_key_env}
        return {name for name in names if name}

    def close(self) -> None:
        """End all connections and remove the private files."""
        for host in self.hosts.values():
            host.close()
        for connection in self._early.values():
            connection.close()
        if "embedded" in self.__dict__:
            self.embedded.close()
        close_sockets()
        if self._handover is not None:
            shutil.rmtree(self._handover.parent, ignore_errors=True)
            self._handover = None
