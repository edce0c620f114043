"""
One host on one xdist worker, in order.

xdist's own `loadgroup` carries the group in the node id's end, which pytest 9.2 no longer lets it write;
this scheduler reads the host out of the id instead.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]


class HostScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """
    Deals out hosts: all items of a host go to the same worker.

    Items that are about no host go by their file, as in xdist's `loadfile`.
    """

    def __init__(self, config: pytest.Config, log: object, alias_of: Callable[[str], str | None]) -> None:
        super().__init__(config, log)
        self._alias_of = alias_of

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.endswith("]"):
            parameters = nodeid.rpartition("::")[2].partition("[")[2][:-1]
            alias = self._alias_of(parameters)
            if alias is not None:
                return f"host {alias}"
        return nodeid.split("::", 1)[0]
