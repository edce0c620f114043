"""The inference endpoint: speculation and speed, by what was counted around our own requests."""

from collections.abc import Callable

import pytest

from pytest_gpuinfra.endpoint.judge_refusals import judge_throughput
from pytest_gpuinfra.endpoint.judge_speculation import judge_speculation
from pytest_gpuinfra.gather.endpoint import Serving
from pytest_gpuinfra.subjects.verdict import Verdict

pytestmark = pytest.mark.gpu_level("active")
Judge = Callable[[Callable[[], Verdict]], Verdict]


@pytest.fixture
def speculation(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge the speculation counters' difference around requests of our own."""
    expect = gpu_serving.expect.speculation
    return gpu_judge(
        lambda: judge_speculation(
            gpu_serving.speculation,
            expected=expect.enabled,
            algorithm=expect.algorithm,
            mean_length_min=expect.mean_accepted_length_min,
        )
    )


@pytest.fixture
def one_stream(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge the speed of one request at a time."""
    expect = gpu_serving.expect.throughput
    return gpu_judge(
        lambda: judge_throughput(
            gpu_serving.throughput(1), expect.one_stream_tokens_per_s, slower_max=expect.slower_max
        )
    )


@pytest.fixture
def eight_streams(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge the speed of eight requests at the same time."""
    expect = gpu_serving.expect.throughput
    return gpu_judge(
        lambda: judge_throughput(
            gpu_serving.throughput(8), expect.eight_streams_tokens_per_s, slower_max=expect.slower_max
        )
    )


@pytest.mark.gpu_judges(
    "model.speculation.enabled", "model.speculation.algorithm", "model.speculation.mean_accepted_length_min"
)
def test_speculation_is_as_expected(speculation: Verdict) -> None:
    """
    Speculative decoding drafts, and its drafts are accepted.

    A flag in a unit file is not speculating: a wrong draft head answers everything rightly, and slowly.
    """
    assert speculation.ok, speculation.message


@pytest.mark.gpu_judges("model.throughput.one_stream_tokens_per_s")
def test_one_stream_is_as_fast_as_before(one_stream: Verdict) -> None:
    """
    One request at a time is as fast as the stored baseline.

    A path that fell back to host memory is right, and slow.
    """
    assert one_stream.ok, one_stream.message


@pytest.mark.gpu_judges("model.throughput.eight_streams_tokens_per_s")
def test_eight_streams_are_as_fast_as_before(eight_streams: Verdict) -> None:
    """
    Eight requests at the same time are as fast as the stored baseline.

    A rank that idles or a link that trained down shows under load first.
    """
    assert eight_streams.ok, eight_streams.message
