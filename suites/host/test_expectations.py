"""The inventory against the run: nothing is expected that no check has looked at."""

from collections.abc import Mapping

from pytest_gpuinfra import GpuHost, explain


def test_every_expectation_was_judged(gpu_host: GpuHost, gpu_expectations: Mapping[str, int]) -> None:
    """
    Each key that the inventory declares of the host was judged by at least one check of this run.

    What is written down and looked at by nobody reads as fulfilled: a floor without a GPU, a model without an endpoint.
    """
    missed = [key for key, items in gpu_expectations.items() if not items]
    assert not missed, explain(
        f"{gpu_host.alias}: expectations",
        observed=f"judged by no check: {', '.join(missed)}",
        expected="each judged by a check",
        why="nobody has looked at what they ask for",
        action="make them observable, or take them out of the inventory",
    )
