"""The order of items: host by host, each host's as the suites have them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pytest_gpuinfra.session.stash import TARGET_FIXTURE, target_of


def order_by_host(items: list[pytest.Item], aliases: Iterable[str]) -> None:
    """
    Bring items about hosts into the order of hosts, then of files and lines, then of targets.

    A comparison with the baseline follows what the others gather, and the ledger what all have judged.
    Items about no host keep their places.

    Args:
        items: All items of the session; changed in place.
        aliases: Hosts, in order.
    """
    targets = {index: target for index, item in enumerate(items) if (target := target_of(item)) is not None}
    rank = {alias: number for number, alias in enumerate(aliases)}
    places: dict[object, tuple[str, int]] = {}  # of each test, not of each item: finding a line is slow

    def key(index: int) -> tuple[object, ...]:
        item = items[index]
        test = (item.parent, getattr(item, "originalname", None) or item.name)
        if test not in places:
            places[test] = item.nodeid.partition("::")[0], item.location[1] or 0
        indices: dict[str, int] = getattr(getattr(item, "callspec", None), "indices", {})
        names = getattr(item, "fixturenames", ())
        last = 2 if "gpu_expectations" in names else targets[index].kind == "gpu_baseline_area"
        return rank[targets[index].host], last, *places[test], indices.get(TARGET_FIXTURE, 0)

    ordered = [items[index] for index in sorted(targets, key=key)]
    for index, item in zip(targets, ordered, strict=True):
        items[index] = item
