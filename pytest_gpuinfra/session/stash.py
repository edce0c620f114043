"""Where a pytest session keeps its run, and where an item keeps what was observed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuinfra.capture.evidence import Evidence
    from pytest_gpuinfra.session.items import Target
    from pytest_gpuinfra.session.run import Run

RUN: pytest.StashKey[Run] = pytest.StashKey()
OBSERVED: pytest.StashKey[list[Evidence]] = pytest.StashKey()
TARGET_FIXTURE = "_gpu_target"


def run_of(config: pytest.Config) -> Run | None:
    """Give the run of a session; None without `--gpu-host`."""
    return config.stash.get(RUN, None)


def target_of(item: pytest.Item) -> Target | None:
    """Give what an item is about; None if it is about no host."""
    parameters: dict[str, Target] = getattr(getattr(item, "callspec", None), "params", {})
    return parameters.get(TARGET_FIXTURE)
