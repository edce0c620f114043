"""One pytest session: its hosts, and what became of their items."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pytest_gpuinfra.capture.selected import SelectedHost
from pytest_gpuinfra.capture.spool import Spool
from pytest_gpuinfra.connection.pipe import close_all
from pytest_gpuinfra.connection.ssh import close_sockets
from pytest_gpuinfra.host.factory import HostFactory
from pytest_gpuinfra.options import Settings
from pytest_gpuinfra.record.recording import RecordedHost, Recording
from pytest_gpuinfra.session.baseline import Baseline
from pytest_gpuinfra.session.captured import Captures
from pytest_gpuinfra.session.handover import HandOver
from pytest_gpuinfra.session.items import Target, alias_of_id, targets_of
from pytest_gpuinfra.session.parsed import ParsedHosts

if TYPE_CHECKING:
    from pytest_gpuinfra.host.host import GpuHost
    from pytest_gpuinfra.inventory.groups import CollectiveExpectation

CLOSE_S = 2.5
"""Seconds within which every connection of an interrupted session is ended."""


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
class Session:
    """
    The session.

    Attributes:
        settings: What the command line says.
        selected: Hosts by alias, in order.
        collectives: Groups of hosts that compute together, as the inventory names them.
        old: An earlier recording that hosts are compared with; None without `--gpu-baseline`.
        share_of: "share 2/8, 120 of 1000 hosts" where `--gpu-shard` was given; else "".
        no_inventory: Where no inventory was found; "" if there is one.
        spool: Where captures are written down.
        hosts: The selected hosts, once captured.
        outcomes: Results by alias and node id, on the controller only; two hosts may share a node id.
        wrong: Hosts with an item that failed or could not be judged, on the controller only.
        gathered: What xdist's workers gathered, by alias, on the controller only.
        started_at: UTC, ISO 8601.
        exit_status: pytest's own, once the session has ended.
        narrowed: Which part of all checks was run, by alias: "8 of 425 checks (-k xid)"; absent for all of them.
        stopped: Ends all waiting for hosts.
        interrupted: Whether Ctrl-C or SIGTERM has come.
    """

    settings: Settings
    selected: Mapping[str, SelectedHost]
    collectives: Mapping[str, CollectiveExpectation] = field(default_factory=dict)
    old: InitVar[Recording | None] = None
    share_of: str = ""
    no_inventory: str = ""
    spool: Spool = field(default_factory=Spool)
    hosts: dict[str, GpuHost] = field(default_factory=dict)
    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)
    gathered: dict[str, dict[str, Any]] = field(default_factory=dict)
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    exit_status: int | None = None
    narrowed: dict[str, str] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)
    interrupted: bool = False

    def __post_init__(self, old: Recording | None) -> None:
        self.factory = HostFactory(self.settings)
        self.baseline = Baseline(old, self.started_at, self.settings.allowed_changes)
        self.captures = Captures(self)
        self.handover = HandOver(self)
        self.parsed = ParsedHosts(self)
        self._targets: dict[str, list[Target]] = {}

    def targets_for(self, kind: str) -> list[Target]:
        """Give the targets of one kind over the hosts in turn; every test about that kind shares them."""
        if kind not in self._targets:
            self._targets[kind] = [
                target for host in self.hosts.values() for target in targets_of(host, kind, self._alias_of)
            ]
        return self._targets[kind]

    def _alias_of(self, identity: str) -> str | None:
        """Tell whose a target's id looks, over all hosts of the session; None if it is none of theirs."""
        return alias_of_id(identity, self.handover.aliases or self.selected)

    def recording(self, plugin: str) -> Recording:
        """Give this session as it is to be written down."""
        hosts = {
            alias: RecordedHost(host.selected.spec.plain(), host.capture, self.gathered.get(alias) or host.gathered())
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
        """End all that anything of this session waits for; what is begun afterwards ends at once, in an error."""
        self.stopped.set()
        for host in list(self.hosts.values()):
            if host.serving is not None:
                host.serving.stop()
        close_all(CLOSE_S)

    def close(self) -> None:
        """End all connections and remove the private files."""
        if self.interrupted:
            self.stop()
        for host in self.hosts.values():
            host.close()
        self.captures.close()
        self.factory.close()
        close_sockets()
        self.spool.close()
