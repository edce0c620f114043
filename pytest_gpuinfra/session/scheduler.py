"""
Hosts on xdist's workers: each host on one worker, in order, and each worker with no more hosts than it needs to know.

xdist's own schedulers want the same collection on every worker, which costs each of them the time and memory of all
items; and its `loadgroup` carries the group in the node id's end, which pytest 9.2 no longer lets it write.
Here a worker is dealt hosts before it collects, and the scheduler reads the host out of each id. Of few hosts, every
worker knows all, and takes from the others when it has nothing left; of many, it knows its own share alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

KNOWN_TO_ALL = 32
"""Hosts of a run, at most, that every worker collects."""

_AHEAD = 2
"""Items that a worker must have before it: xdist runs one only when it knows the next."""


class Deal:
    """
    Which worker is to collect which hosts.

    Args:
        aliases: All hosts of the run, in order.

    Attributes:
        workers: How many there are at the start; 0 before the first is dealt its hosts.
    """

    def __init__(self, aliases: Sequence[str]) -> None:
        self.workers = 0
        self._aliases = tuple(aliases)
        self._own: dict[str, tuple[str, ...]] = {}
        self._left: list[tuple[str, ...]] = []

    def deal(self, worker: str, workers: int) -> tuple[str, ...]:
        """
        Give the hosts that a worker is to collect, in order.

        The first workers get equal shares; one that takes a crashed one's place gets what that one had.

        Args:
            worker: xdist's name for it.
            workers: How many there are at the start.
        """
        self.workers, begun = workers, len(self._own)
        share = self._aliases[begun::workers] if begun < workers else ()
        self._own[worker] = self._left.pop(0) if self._left else share
        return self._aliases if len(self._aliases) <= KNOWN_TO_ALL else self._own[worker]

    def crashed(self, worker: str) -> None:
        """Take down that a worker is gone; the next one takes its place."""
        self._left.append(self._own.get(worker, ()))

    def own(self, worker: str) -> tuple[str, ...]:
        """Give the hosts that a worker begins with."""
        return self._own.get(worker, ())


class HostScheduling:
    """
    Deals out hosts: all items of a host go to the same worker. It is one of xdist's schedulers (xdist.scheduler).

    Items that are about no host go by their file, as in xdist's `loadfile`.

    Args:
        deal: Who collects which hosts.
        alias_of: Tells whose an id is: what stands between the brackets of a node id.
        on_total: Called with the number of different items, whenever more are known.
    """

    def __init__(self, deal: Deal, alias_of: Callable[[str], str | None], on_total: Callable[[int], None]) -> None:
        self._deal = deal
        self._alias_of = alias_of
        self._on_total = on_total
        self._collected: dict[Any, dict[str, dict[str, int]]] = {}
        self._running: dict[Any, dict[int, str]] = {}
        self._registered = 0
        self._waiting: dict[str, list[str]] = {}
        self._seen: dict[str, int] = {}

    @property
    def nodes(self) -> list[Any]:
        """Workers that are there."""
        return list(self._running)

    @property
    def collection_is_completed(self) -> bool:
        """Whether there is something to run: a worker begins as soon as its own collection is there."""
        return bool(self._collected)

    @property
    def tests_finished(self) -> bool:
        """Whether every worker has collected and everything has run."""
        return self._registered >= self._deal.workers and not self._waiting and not self.has_pending

    @property
    def has_pending(self) -> bool:
        """Whether a worker has something to run."""
        return any(self._running.values())

    def add_node(self, node: Any) -> None:
        """Take down that a worker is there and begins to collect."""
        self._running[node] = {}

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Take down what a worker collected; index and id of each item."""
        units: dict[str, dict[str, int]] = {}
        for index, nodeid in enumerate(collection):
            units.setdefault(self.unit_of(nodeid), {})[nodeid] = index
        self._collected[node] = units
        self._registered += 1
        for unit, items in units.items():
            if unit not in self._seen:
                self._seen[unit] = len(items)
                self._waiting[unit] = list(items)
        self._on_total(sum(self._seen.values()))

    def unit_of(self, nodeid: str) -> str:
        """Tell what an item is run together with: its host, or its file."""
        if nodeid.endswith("]"):
            alias = self._alias_of(nodeid.rpartition("::")[2].partition("[")[2][:-1])
            if alias is not None:
                return _host_unit(alias)
        return nodeid.split("::", 1)[0]

    def schedule(self) -> None:
        """Give every worker something to run that has nothing."""
        for node in self.nodes:
            self._refill(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Take down that an item has run."""
        del self._running[node][item_index]
        self._refill(node)
        if not self._waiting:
            self.schedule()

    def mark_test_pending(self, item: str) -> None:
        """Not offered: nothing asks for an item to be run again."""
        raise NotImplementedError

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> None:
        """Not offered: nothing is taken back from a worker."""
        raise NotImplementedError

    def remove_node(self, node: Any) -> str | None:
        """
        Take down that a worker is gone; what it has not run is to be run by another.

        Returns:
            The item that it was running; None if it was idle.
        """
        self._collected.pop(node, None)
        left = list(self._running.pop(node).values())
        if not left:
            return None
        back: dict[str, list[str]] = {}
        for nodeid in left[1:]:
            back.setdefault(self.unit_of(nodeid), []).append(nodeid)
        self._waiting = {**back, **self._waiting}
        return left[0]

    def _refill(self, node: Any) -> None:
        units = self._collected.get(node)
        if units is None or node.shutting_down:
            return
        while len(self._running[node]) <= _AHEAD:
            unit = self._next_unit(node, units)
            if unit is None:
                if (
                    self._registered >= self._deal.workers
                ):  # before that, a unit of a slower worker may yet become known
                    node.shutdown()
                return
            indices = [units[unit][nodeid] for nodeid in self._waiting[unit]]
            self._running[node].update(zip(indices, self._waiting.pop(unit), strict=True))
            node.send_runtest_some(indices)

    def _next_unit(self, node: Any, units: Mapping[str, Any]) -> str | None:
        """Choose what a worker runs next: its own hosts, files, and, once all workers are there, hosts of others."""
        own = {_host_unit(alias) for alias in self._deal.own(node.gateway.id)}
        can = [unit for unit in self._waiting if unit in units]
        mine = next((unit for unit in can if unit in own or not unit.startswith(_HOST)), None)
        if mine is not None or self._registered < self._deal.workers:
            return mine
        return can[-1] if can else None


_HOST = "host "


def _host_unit(alias: str) -> str:
    return f"{_HOST}{alias}"
