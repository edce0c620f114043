"""The inference endpoint: are its answers right, and the same each time?"""

from collections.abc import Callable

import pytest

from pytest_gpuinfra.endpoint.judge_answers import judge_answer
from pytest_gpuinfra.endpoint.judge_refusals import judge_refusal, judge_still_answers
from pytest_gpuinfra.endpoint.judge_stability import judge_concurrent, judge_repeats, judge_stream, judge_usage
from pytest_gpuinfra.endpoint.prompts import Prompt
from pytest_gpuinfra.gather.endpoint import Serving
from pytest_gpuinfra.subjects.verdict import Verdict

pytestmark = pytest.mark.gpu_level("active")
Judge = Callable[[Callable[[], Verdict]], Verdict]


@pytest.fixture
def answer(gpu_prompt: Prompt, gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge the answer to one question."""
    return gpu_judge(lambda: judge_answer(gpu_serving.asked(gpu_prompt)))


@pytest.fixture
def usage(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge the token counts of one answer."""
    return gpu_judge(lambda: judge_usage(gpu_serving.asked(gpu_serving.prompts[0])))


@pytest.fixture
def repeats(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge one question asked again and again."""
    return gpu_judge(lambda: judge_repeats(gpu_serving.repeats, different_max=gpu_serving.expect.different_repeats_max))


@pytest.fixture
def concurrent(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge many questions asked at the same time."""
    return gpu_judge(
        lambda: judge_concurrent(gpu_serving.concurrent, [gpu_serving.asked(prompt) for prompt in gpu_serving.prompts])
    )


@pytest.fixture
def streamed(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge one question asked as a whole and as a stream."""
    return gpu_judge(lambda: judge_stream(*gpu_serving.both_ways))


@pytest.fixture
def refusals(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge what bad requests got: the first that is not refused as it should be, or the last."""

    def judge() -> Verdict:
        verdicts = [judge_refusal(refusal) for refusal in gpu_serving.refusals]
        return next((verdict for verdict in verdicts if not verdict.ok), verdicts[-1])

    return gpu_judge(judge)


@pytest.fixture
def after_refusals(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge the answer that follows the bad requests."""
    return gpu_judge(lambda: judge_still_answers(gpu_serving.refusals, gpu_serving.after_refusals))


@pytest.mark.gpu_judges("prompts", "model.api")
def test_answer_is_right(answer: Verdict) -> None:
    """
    A question with a known answer gets it, in the content, whole.

    Corrupt copies between GPUs give fluent text and wrong numbers; nothing else tells.
    """
    assert answer.ok, answer.message


def test_usage_adds_up(usage: Verdict) -> None:
    """
    The token counts of an answer add up.

    Billing, rate limits and every measurement of speed rest on them.
    """
    assert usage.ok, usage.message


@pytest.mark.gpu_judges("model.different_repeats_max")
def test_repeats_are_identical(repeats: Verdict) -> None:
    """
    The same question, asked again alone at temperature 0, gets the same text.

    One right answer proves nothing about stability.
    """
    assert repeats.ok, repeats.message


def test_answers_at_the_same_time_are_right(concurrent: Verdict) -> None:
    """
    Questions asked at the same time get each its own right answer.

    Under load the batch is larger and the KV cache is shared.
    """
    assert concurrent.ok, concurrent.message


def test_stream_equals_the_whole_answer(streamed: Verdict) -> None:
    """
    A streamed answer is the same text, and it ends.

    Most clients stream, and most checks do not.
    """
    assert streamed.ok, streamed.message


def test_bad_requests_are_refused_with_a_message(refusals: Verdict) -> None:
    """
    A bad request gets a status from 400 to 499 and a message.

    A server that answers 500 to a client's mistake counts as an outage in every monitoring.
    """
    assert refusals.ok, refusals.message


def test_server_answers_after_bad_requests(after_refusals: Verdict) -> None:
    """
    The server still answers rightly after bad requests.

    One client's mistake must not take the service from everybody.
    """
    assert after_refusals.ok, after_refusals.message
