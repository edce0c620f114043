"""
What the processes of a session tell each other under xdist, by files of the spool.

UTF-8 JSON: aliases.json, all aliases in order; ALIAS.host.json, how a host is reached, what is expected of it, and what
the session knows of it; WORKER.items.json, [node id, alias or null] of each item that a worker collected, in order;
WORKER.gathered.json, by alias, what one that was interrupted had gathered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.capture.selected import SelectedHost
from pytest_gpuinfra.capture.spool import Spool
from pytest_gpuinfra.inventory.inventory import parse_inventory
from pytest_gpuinfra.record.recording import RecordedHost

if TYPE_CHECKING:
    from pytest_gpuinfra.host.host import GpuHost
    from pytest_gpuinfra.inventory.inventory import HostSpec
    from pytest_gpuinfra.session.scheduler import Deal, HostScheduling
    from pytest_gpuinfra.session.session import Session


class HandOver:
    """
    Between the controller and xdist's workers.

    Args:
        session: The controller's, or a worker's.

    Attributes:
        deal: Which worker has which hosts; None without xdist, and in a worker.
        scheduling: Which items the workers have run; None without xdist, and in a worker.
        aliases: In a worker, all hosts of the session, in order; else empty.
    """

    def __init__(self, session: Session) -> None:
        self.deal: Deal | None = None
        self.scheduling: HostScheduling | None = None
        self.aliases: Mapping[str, None] = {}
        self._session = session

    def give(self, worker: str, workers: int) -> dict[str, Any]:
        """
        Write down what workers need, once, and deal one of them its hosts.

        Args:
            worker: xdist's name for it.
            workers: How many there are at the start.
        """
        session = self._session
        if self.deal is None:
            from pytest_gpuinfra.session.scheduler import Deal

            self.deal = Deal(tuple(session.hosts))
            session.spool.write("aliases.json", list(session.hosts))
            for alias, host in session.hosts.items():
                host.capture = session.spool.put(host.capture)
                session.spool.write(f"{alias}.host.json", self._plain(host))
        return {"directory": str(session.spool.directory), "hosts": list(self.deal.deal(worker, workers))}

    def _plain(self, host: GpuHost) -> dict[str, Any]:
        baseline = self._session.baseline
        before = baseline.before.get(host.alias)
        collectives: list[dict[str, Any]] = []
        if host.collectives:
            from pytest_gpuinfra.session.groups import plain

            collectives = plain(host.collectives)
        return {
            "way": host.selected.way,
            "destination": host.selected.destination,
            "spec": host.selected.spec.plain(),
            "expectation_from": host.expectation_from,
            "capture": {**host.capture.to_json(), "answers": {}},
            "gathered": dict(host.selected.gathered),
            "collectives": collectives,
            "before": [before.spec, before.capture.to_json(), before.gathered] if before else None,
            "boot_before": baseline.boots_before.get(host.alias),
            "waited_s": self._session.factory.waited_s.get(host.alias, 0.0),
        }

    def take(self, handed: Mapping[str, Any]) -> None:
        """In a worker, make its hosts of what `give` wrote; no host is touched."""
        session = self._session
        session.spool = Spool(Path(handed["directory"]))
        self.aliases = dict.fromkeys(session.spool.read("aliases.json"))
        specs: dict[str, HostSpec] = {}
        session.selected = {
            alias: _selected(alias, session.spool.read(f"{alias}.host.json"), specs) for alias in handed["hosts"]
        }
        for alias, selected in session.selected.items():
            data = session.spool.read(f"{alias}.host.json")
            if data["before"]:
                spec, capture, gathered = data["before"]
                session.baseline.before[alias] = RecordedHost(spec, Capture.from_json(alias, capture), gathered)
            if data["boot_before"]:
                session.baseline.boots_before[alias] = data["boot_before"]
            session.factory.waited_s[alias] = data["waited_s"]
            lent = session.spool.lend(Capture.from_json(alias, data["capture"]))
            host = session.hosts[alias] = session.parsed.watch(session.factory.host(selected, lent))
            if data["collectives"]:
                from pytest_gpuinfra.session.groups import from_plain

                connect, tell = session.factory.connect, session.factory.tell
                host.collectives = from_plain(data["collectives"], connect=connect, on_progress=tell)

    def report_items(self, worker: str, items: Sequence[tuple[str, str | None]]) -> None:
        """In a worker, write down the node id of each collected item and the host that it is about."""
        self._session.spool.write(f"{worker}.items.json", items)

    def reported_items(self, worker: str) -> list[tuple[str, str | None]]:
        """Read the node id of each item that a worker collected and the alias of its host, None for no host."""
        return [(nodeid, alias) for nodeid, alias in self._session.spool.read(f"{worker}.items.json")]

    def leave(self, worker: str, gathered: Mapping[str, Any]) -> None:
        """In a worker that was interrupted, write down what was gathered: the controller listens no more."""
        spool = self._session.spool
        spool.write(f"{worker}.part", gathered)
        (spool.directory / f"{worker}.part").rename(spool.directory / f"{worker}.gathered.json")

    def take_left(self, *, timeout_s: float) -> None:
        """Take over what interrupted workers leave, within so many seconds."""
        spool = self._session.spool
        limit, waiting = time.monotonic() + timeout_s, set(self.deal.workers if self.deal else ())
        while waiting and time.monotonic() < limit:
            for worker in [one for one in waiting if (spool.directory / f"{one}.gathered.json").exists()]:
                self._session.gathered.update(spool.read(f"{worker}.gathered.json"))
                waiting.discard(worker)
            time.sleep(0.02)


def _selected(alias: str, data: Mapping[str, Any], specs: dict[str, HostSpec]) -> SelectedHost:
    """Make a host of a session again; `specs` holds what several of them share, by its text."""
    key = json.dumps(data["spec"])
    if key not in specs:
        specs[key] = parse_inventory({"hosts": {alias: data["spec"]}}, "hand-over").hosts[alias]
    return SelectedHost(
        alias, data["way"], data["destination"], specs[key], data["expectation_from"], None, data["gathered"]
    )
