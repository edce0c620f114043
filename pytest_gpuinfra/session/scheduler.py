"""
Hosts on xdist's workers: each host on one worker, in order, and each worker with no more hosts than it needs to know.

xdist's own schedulers want the same collection on every worker, which costs each of them the time and memory of all
items; and its `loadgroup` carries the group in the node id's end, which pytest 9.2 no longer lets it write.
Here a worker is dealt hosts before it collects, and reports with its items which host each is about. Of few hosts,
every worker knows all, and takes from the others when it has nothing left; of many, it knows its own share alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

KNOWN_TO_ALL = 32
"""Hosts of a run, at most, that every worker collects."""

_AHEAD = 2
"""Items that a worker must have before it: xdist runs one only when it knows the next."""


class Unit(NamedTuple):
    """
    What runs on one worker as a whole.

    Attributes:
        host: Alias; None for items that are about no host.
        file: Where those are, as node ids begin; "" for a host.
    """

    host: str | None
    file: str = ""


class Identity(NamedTuple):
    """
    One item, whichever worker collected it: two hosts may have the same node id, and one collection has some twice.

    Attributes:
        unit: What it runs together with.
        nodeid: pytest's name of it.
        nth: How many of the same unit and name are collected before it.
    """

    unit: Unit
    nodeid: str
    nth: int


class Deal:
    """
    Which worker is to collect which hosts.

    Args:
        aliases: All hosts of the run, in order.
    """

    def __init__(self, aliases: Sequence[str]) -> None:
        self.aliases = tuple(aliases)
        self._own: dict[str, tuple[str, ...]] = {}
        self._left: list[tuple[str, ...]] = []

    @property
    def workers(self) -> Sequence[str]:
        """xdist's names of all workers that were dealt hosts, those that are gone included."""
        return tuple(self._own)

    def deal(self, worker: str, workers: int) -> tuple[str, ...]:
        """
        Give the hosts that a worker is to collect, in order.

        The first workers get equal shares; one that takes a crashed one's place gets what that one had.

        Args:
            worker: xdist's name for it.
            workers: How many there are at the start.
        """
        begun = len(self._own)
        share = self.aliases[begun::workers] if begun < workers else ()
        self._own[worker] = self._left.pop(0) if self._left else share
        return self.known(worker)

    def crashed(self, worker: str) -> None:
        """Take down that a worker is gone; the next one takes its place."""
        self._left.append(self._own.get(worker, ()))

    def own(self, worker: str) -> tuple[str, ...]:
        """Give the hosts that a worker begins with."""
        return self._own.get(worker, ())

    def known(self, worker: str) -> tuple[str, ...]:
        """Give the hosts that a worker collects."""
        return self.aliases if len(self.aliases) <= KNOWN_TO_ALL else self.own(worker)


class HostScheduling:
    """
    Deals out hosts: all items of a host go to the same worker. It is one of xdist's schedulers (xdist.scheduler).

    Items that are about no host go by their file, as in xdist's `loadfile`.

    Args:
        deal: Who collects which hosts.
        hosts_of: Gives the alias of each item that a worker collected, None for an item about no host, by the worker's
            name and the items' node ids. Shape (n,).
        on_total: Called with the number of different items, whenever more are known.
    """

    def __init__(
        self,
        deal: Deal,
        hosts_of: Callable[[str, Sequence[str]], Sequence[str | None]],
        on_total: Callable[[int], None],
    ) -> None:
        self._deal = deal
        self._hosts_of = hosts_of
        self._on_total = on_total
        self._collected: dict[WorkerController, dict[Unit, dict[Identity, int]]] = {}
        self._running: dict[WorkerController, dict[int, Identity]] = {}
        self._reported: set[str] = set()
        self._gone: set[str] = set()
        self._known: dict[Unit, set[Identity]] = {}
        self._waiting: dict[Unit, list[Identity]] = {}
        self._crashed_in: dict[str, str | None] = {}

    @property
    def nodes(self) -> list[WorkerController]:
        """Workers that are there."""
        return list(self._running)

    @property
    def collection_is_completed(self) -> bool:
        """Whether there is something to run: a worker begins as soon as its own collection is there."""
        return bool(self._collected)

    @property
    def tests_finished(self) -> bool:
        """Whether every worker has collected and everything has run that a worker can run."""
        if self.has_pending or self._some_still_collect:
            return False
        able = [units for node, units in self._collected.items() if not node.shutting_down]
        return not any(self._to_run(unit, units) for unit in self._waiting for units in able)

    @property
    def has_pending(self) -> bool:
        """Whether a worker has something to run."""
        return any(self._running.values())

    @property
    def _some_still_collect(self) -> bool:
        return not self._reported.union(self._gone).issuperset(self._deal.workers)

    def add_node(self, node: WorkerController) -> None:
        """Take down that a worker is there and begins to collect."""
        self._running[node] = {}

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Take down what a worker collected; index and id of each item. Items that no other has are to be run, too."""
        units: dict[Unit, dict[Identity, int]] = {}
        hosts = self._hosts_of(node.gateway.id, collection)
        for index, (nodeid, host) in enumerate(zip(collection, hosts, strict=True)):
            unit = Unit(None, nodeid.partition("::")[0]) if host is None else Unit(host)
            items = units.setdefault(unit, {})
            nth = 0
            while (identity := Identity(unit, nodeid, nth)) in items:
                nth += 1
            items[identity] = index
        self._collected[node] = units
        self._reported.add(node.gateway.id)
        for unit, items in units.items():
            known = self._known.setdefault(unit, set())
            more = [identity for identity in items if identity not in known]
            if more:
                known.update(more)
                self._waiting.setdefault(unit, []).extend(more)
        self._on_total(sum(map(len, self._known.values())))

    def schedule(self) -> None:
        """Give every worker something to run that has nothing."""
        for node in self.nodes:
            self._refill(node)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Take down that an item has run."""
        del self._running[node][item_index]
        self._refill(node)
        if not self._waiting:
            self.schedule()

    def mark_test_pending(self, item: str) -> None:
        """Not offered: nothing asks for an item to be run again."""
        raise NotImplementedError

    def remove_pending_tests_from_node(self, node: WorkerController, indices: Sequence[int]) -> None:
        """Not offered: nothing is taken back from a worker."""
        raise NotImplementedError

    def remove_node(self, node: WorkerController) -> str | None:
        """
        Take down that a worker is gone; what it has not run is to be run by another.

        Returns:
            The item that it was running; None if it was idle.
        """
        left = list(self._running.pop(node).values())
        self._collected.pop(node, None)
        self._gone.add(node.gateway.id)
        back: dict[Unit, list[Identity]] = {}
        for identity in left[1:]:
            back.setdefault(identity.unit, []).append(identity)
        for unit in back:
            back[unit] += self._waiting.pop(unit, [])
        self._waiting = {**back, **self._waiting}
        self.schedule()
        if not left:
            return None
        self._crashed_in[left[0].nodeid] = left[0].unit.host
        return left[0].nodeid

    def host_of_crashed(self, nodeid: str) -> str | None:
        """Tell whose item it was that a worker died in last under this node id; None if it was about no host."""
        return self._crashed_in.get(nodeid)

    def not_run(self) -> list[Identity]:
        """Give the items that were collected and were run by no worker."""
        return [identity for waiting in self._waiting.values() for identity in waiting] + [
            identity for running in self._running.values() for identity in running.values()
        ]

    def not_collected(self) -> list[str]:
        """Give the hosts whose items no worker collected, in order."""
        collected = {alias for worker in self._reported for alias in self._deal.known(worker)}
        return [alias for alias in self._deal.aliases if alias not in collected]

    def _refill(self, node: WorkerController) -> None:
        units = self._collected.get(node)
        if units is None or node.shutting_down:
            return
        while len(self._running[node]) <= _AHEAD:
            unit = self._next_unit(node, units)
            if unit is None:
                if not self._some_still_collect:  # else a unit of a slower worker may yet become known
                    node.shutdown()
                return
            waiting, indices = self._waiting.pop(unit), units[unit]
            others = [identity for identity in waiting if identity not in indices]
            if others:
                self._waiting[unit] = others
            mine = {indices[identity]: identity for identity in waiting if identity in indices}
            self._running[node].update(mine)
            node.send_runtest_some(list(mine))

    def _next_unit(self, node: WorkerController, units: Mapping[Unit, Mapping[Identity, int]]) -> Unit | None:
        """Choose what a worker runs next: its own hosts, files, and, once all workers are there, hosts of others."""
        own = {None, *self._deal.own(node.gateway.id)}
        can = [unit for unit in self._waiting if self._to_run(unit, units)]
        mine = next((unit for unit in can if unit.host in own), None)
        if mine is not None or self._some_still_collect:
            return mine
        return can[-1] if can else None

    def _to_run(self, unit: Unit, units: Mapping[Unit, Mapping[Identity, int]]) -> bool:
        """Whether some of a unit's waiting items are among what a worker collected."""
        indices = units.get(unit)
        return indices is not None and any(identity in indices for identity in self._waiting[unit])
