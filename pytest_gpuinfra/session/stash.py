"""Where a pytest session keeps ours, and where an item keeps what was observed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuinfra.capture.evidence import Evidence
    from pytest_gpuinfra.session.interrupt import Interrupts
    from pytest_gpuinfra.session.items import Target
    from pytest_gpuinfra.session.session import Session

SESSION: pytest.StashKey[Session] = pytest.StashKey()
INTERRUPTS: pytest.StashKey[Interrupts] = pytest.StashKey()
OBSERVED: pytest.StashKey[list[Evidence]] = pytest.StashKey()
TARGET_FIXTURE = "_gpu_target"
WORKER_KEY = "gpuinfra"
"""What a worker of xdist is told, and tells, stands under this word in its input and output."""


def session_of(config: pytest.Config) -> Session | None:
    """Give our session; None without `--gpu-host`."""
    return config.stash.get(SESSION, None)


def target_of(item: pytest.Item) -> Target | None:
    """Give what an item is about; None if it is about no host."""
    parameters: dict[str, Target] = getattr(getattr(item, "callspec", None), "params", {})
    return parameters.get(TARGET_FIXTURE)
