"""
The fixtures of the inference endpoint.

This module is loaded in every pytest session: it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_gpuinfra.fixtures import GpuEvidence, value_fixture

if TYPE_CHECKING:
    from pytest_gpuinfra.endpoint.client import InferenceEndpoint
    from pytest_gpuinfra.endpoint.prompts import Prompt
    from pytest_gpuinfra.endpoint.readiness import Readiness
    from pytest_gpuinfra.host import GpuHost
    from pytest_gpuinfra.participation import ParticipationRun
    from pytest_gpuinfra.serving import Serving
    from pytest_gpuinfra.verdict.base import Verdict


@pytest.fixture(scope="session")
def gpu_serving(gpu_host: GpuHost) -> Serving:
    """Give the host's endpoint and everything that is asked of it once a session; skip where it has none."""
    if gpu_host.serving is None:
        pytest.skip(f"{gpu_host.alias} has no endpoint: name one in the inventory (endpoint) or by --gpu-endpoint")
    return gpu_host.serving


@pytest.fixture(scope="session")
def gpu_readiness(gpu_serving: Serving) -> Readiness:
    """Give how far the endpoint got within --gpu-wait: port, health, model list, one token, each with its time."""
    return gpu_serving.readiness


@pytest.fixture(scope="session")
def gpu_endpoint(gpu_serving: Serving) -> InferenceEndpoint:
    """
    Give the endpoint, ready and warm: `.ask(...)`, `.stream(...)`, `.models()`, `.client` (httpx).

    Raises:
        EndpointError: It is not ready.
    """
    return gpu_serving.ready()


gpu_serving_gpu: str = value_fixture(
    "gpu_serving_gpu", "Give the PCI address of a GPU that the service is to run on: one test for each."
)


@pytest.fixture(scope="session")
def gpu_participation(gpu_host: GpuHost) -> ParticipationRun:
    """
    Give what every GPU did while requests were under way (`.seen`), and what became of those (`.outcome`).

    It is sampled once a session, on first use; skips where the host has no endpoint or no GPU for it.
    """
    if gpu_host.participation is None:
        pytest.skip(
            f"{gpu_host.alias} has no endpoint of its own, or no GPU on the nvidia driver, expected or seen, "
            "or its recording holds no sampling under load"
        )
    return gpu_host.participation


gpu_prompt: Prompt = value_fixture("gpu_prompt", "Give a question with a known answer: one test for each.")


@pytest.fixture
def gpu_judge(gpu_evidence: GpuEvidence) -> Callable[[Callable[[], Verdict]], Verdict]:
    """
    Give a function that settles a verdict: what was observed becomes evidence, what was not ends the test.

    It takes a function that asks and judges. A broken answer is a wrong one; no answer is an error;
    a verdict that says so skips.
    """

    def settle(judge: Callable[[], Verdict]) -> Verdict:
        from pytest_gpuinfra.endpoint.failures import BrokenAnswer
        from pytest_gpuinfra.verdict.base import Verdict

        try:
            verdict = judge()
        except BrokenAnswer as error:
            verdict = Verdict(
                ending="wrong",
                subject="answer of the endpoint",
                observed=error.reason,
                expected="a whole answer in the API's form",
                why="clients get the same",
                action=error.remedy or "read the server's log at this moment",
            )
        if verdict.ending == "skip":
            pytest.skip(verdict.reason)
        settled = verdict.settled()
        gpu_evidence.attach(
            verdict.subject,
            "\n".join((f"observed: {verdict.observed}", f"expected: {verdict.expected}", *verdict.warnings)),
        )
        return settled

    return settle
