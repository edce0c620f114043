"""The inference endpoint: does it take requests, and for which model?"""

from collections.abc import Callable

import pytest

from pytest_gpuinfra.endpoint.judge_model import (
    judge_created,
    judge_engine_setting,
    judge_max_model_len,
    judge_model_id,
)
from pytest_gpuinfra.endpoint.judge_readiness import judge_readiness
from pytest_gpuinfra.endpoint.readiness import Readiness
from pytest_gpuinfra.gather.endpoint import Serving
from pytest_gpuinfra.subjects.verdict import Verdict

pytestmark = pytest.mark.gpu_level("active")
Judge = Callable[[Callable[[], Verdict]], Verdict]


@pytest.fixture
def readiness(gpu_readiness: Readiness, gpu_judge: Judge) -> Verdict:
    """Judge how far the ladder was climbed."""
    return gpu_judge(lambda: judge_readiness(gpu_readiness))


@pytest.fixture
def model_id(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge the id in the model list."""
    return gpu_judge(lambda: judge_model_id(gpu_serving.models, gpu_serving.expect.id or ""))


@pytest.fixture
def max_model_len(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge the context length that the server tells; the engine's own account, where the model list tells none."""

    def judge() -> Verdict:
        model = gpu_serving.ready().model_id()
        served = gpu_serving.models.get(model)
        told = served is not None and served.max_model_len is not None
        engine = None if told else gpu_serving.engine
        return judge_max_model_len(gpu_serving.models, model, gpu_serving.expect.max_model_len, engine)

    return gpu_judge(judge)


@pytest.fixture
def created(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge the model's time stamp."""
    return gpu_judge(lambda: judge_created(gpu_serving.models, gpu_serving.ready().model_id(), gpu_serving.models_at))


@pytest.fixture
def tp_size(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge the tensor parallel size that the engine tells."""
    return gpu_judge(lambda: judge_engine_setting(gpu_serving.engine, "tp_size", gpu_serving.expect.tp_size))


@pytest.fixture
def dtype(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge the precision that the engine tells."""
    return gpu_judge(lambda: judge_engine_setting(gpu_serving.engine, "dtype", gpu_serving.expect.dtype))


@pytest.fixture
def quantization(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge the quantization that the engine tells."""
    return gpu_judge(lambda: judge_engine_setting(gpu_serving.engine, "quantization", gpu_serving.expect.quantization))


@pytest.fixture
def kv_cache(gpu_serving: Serving, gpu_judge: Judge) -> Verdict:
    """Judge the precision of the KV cache that the engine tells."""
    expected = gpu_serving.expect.kv_cache_dtype
    return gpu_judge(lambda: judge_engine_setting(gpu_serving.engine, "kv_cache_dtype", expected))


@pytest.mark.gpu_judges("endpoint")
def test_endpoint_is_ready(readiness: Verdict) -> None:
    """
    The endpoint takes requests: port, health, model list, and one generated token.

    A health route can answer 200 before the model is loaded, and an empty body is no sign of either.
    """
    assert readiness.ok, readiness.message


@pytest.mark.gpu_expects("model.id")
def test_model_is_the_expected_one(model_id: Verdict) -> None:
    """
    The model list holds the declared model.

    Clients name it in every request, and another one may answer under its own name.
    """
    assert model_id.ok, model_id.message


@pytest.mark.gpu_expects("model.max_model_len")
def test_context_length_is_the_expected_one(max_model_len: Verdict) -> None:
    """
    The server's longest context is the declared one.

    A server that found too little memory for the KV cache may have shortened it by itself.
    """
    assert max_model_len.ok, max_model_len.message


def test_clock_of_the_endpoint_is_sane(created: Verdict) -> None:
    """
    The model's time stamp is in seconds and close to now.

    It says nothing about when the service started: most servers stamp each request.
    """
    assert created.ok, created.message


@pytest.mark.gpu_expects("model.tp_size")
def test_tensor_parallel_size_is_the_expected_one(tp_size: Verdict) -> None:
    """
    The engine runs over the declared number of GPUs.

    A flag in a unit file is not what the engine does.
    """
    assert tp_size.ok, tp_size.message


@pytest.mark.gpu_expects("model.dtype")
def test_precision_is_the_expected_one(dtype: Verdict) -> None:
    """
    The engine computes in the declared precision.

    A model that does not fit may have been loaded in another one.
    """
    assert dtype.ok, dtype.message


@pytest.mark.gpu_expects("model.quantization")
def test_quantization_is_the_expected_one(quantization: Verdict) -> None:
    """
    The engine computes with the declared quantization.

    Another checkpoint under the same name answers faster, and otherwise.
    """
    assert quantization.ok, quantization.message


@pytest.mark.gpu_expects("model.kv_cache_dtype")
def test_precision_of_the_kv_cache_is_the_expected_one(kv_cache: Verdict) -> None:
    """
    The KV cache has the declared precision.

    In a wider one fewer requests fit, in a narrower one answers change.
    """
    assert kv_cache.ok, kv_cache.message
