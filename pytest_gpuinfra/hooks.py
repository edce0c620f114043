"""Hooks that a conftest or another plugin may implement; the two extension points of pytest-gpuinfra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest


@pytest.hookspec
def pytest_gpuinfra_inventory(config: pytest.Config) -> Mapping[str, Any] | None:
    """
    Give hosts from elsewhere, in the form of the inventory file: {"hosts": {alias: {...}}, ...}.

    They join the file's hosts; an alias in both is an error.
    """


@pytest.hookspec
def pytest_gpuinfra_requests(config: pytest.Config) -> Iterable[Mapping[str, Any]] | None:
    """
    Give more requests for the same round trip, made by the functions of `pytest_gpuinfra.capture.capture`.

    A test reads the answers by `gpu_facts.answer(id)`.
    """
