"""Bodies of each engine: health, errors, chat, streams, metrics."""

from __future__ import annotations

import json

import pytest

from pytest_gpuinfra.endpoint.chat import parse_chat
from pytest_gpuinfra.endpoint.error_body import ErrorBody, parse_error_body
from pytest_gpuinfra.endpoint.failures import BrokenAnswer
from pytest_gpuinfra.endpoint.health import parse_health
from pytest_gpuinfra.endpoint.metrics import parse_metrics, pick_metrics
from pytest_gpuinfra.endpoint.stream import StreamAnswer, StreamReader
from pytest_gpuinfra.errors import ParseError


@pytest.mark.parametrize(
    ("status", "body", "state"),
    [
        (200, "", "ok"),
        (200, '{"status":"ok"}', "ok"),
        (200, "OK", "ok"),
        (200, '"ok"', "ok"),
        (200, '{"status":"unhealthy"}', "unhealthy"),
        (200, "<!DOCTYPE html><title>Sign in</title>", "foreign"),
        (503, "", "starting"),
        (503, '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', "loading"),
        (503, '{"status": "loading model"}', "loading"),
        (503, '{"status": "no slot available","slots_idle":0}', "busy"),
        (503, '{"error":"unhealthy","error_type":"healthcheck"}', "unhealthy"),
        (503, '{"status":"unhealthy","reason":"cb_worker_dead"}', "unhealthy"),
        (502, "<html><h1>502 Bad Gateway</h1>", "starting"),
        (500, "Internal Server Error", "unhealthy"),
        (401, '{"error":"Unauthorized"}', "unauthorized"),
        (404, '{"detail":"Not Found"}', "absent"),
        (302, "", "redirect"),
        (429, "", "throttled"),
    ],
)
def test_health(status: int, body: str, state: str):
    assert parse_health(status, body).state == state


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ('{"object":"error","message":"no","type":"BadRequestError","param":null,"code":400}', ("no", 400)),
        ('{"error":{"message":"no","type":"Bad Request","param":null,"code":400}}', ("no", 400)),
        ('{"error":{"message":"no","code":"model_not_found"}}', ("no", None)),
        ('{"error":{"message":"no","code":"404"}}', ("no", 404)),
        ('{"error":"no","error_type":"validation"}', ("no", None)),
        ('{"detail":"no"}', ("no", None)),
        ('{"detail":[{"loc":["body","messages"],"msg":"no","type":"missing"}]}', ("body.messages: no", None)),
        ('{"message":"no"}', ("no", None)),
        ('{"error":{"message":""}}', None),
        ('{"error":null,"choices":[]}', None),
        ('{"choices":[],"message":"x"}', None),
        ("Internal Server Error", None),
        ("[]", None),
        ("", None),
    ],
)
def test_error_bodies(body: str, error: tuple[str, int | None] | None):
    found = parse_error_body(body)

    assert (found and (found.message, found.code)) == error


def parse_stream(text: str) -> StreamAnswer:
    """Read a whole stream."""
    reader = StreamReader()
    for line in text.split("\n"):
        reader.feed(line)
    return reader.close()


def _chat(**message: object) -> str:
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}})


@pytest.mark.parametrize(
    ("body", "answer", "reasoning"),
    [
        (_chat(content="\n\n345", reasoning_content="\n15*23\n"), "345", "15*23"),
        (_chat(content="345", reasoning="15*23"), "345", "15*23"),
        (_chat(content="<think>\n15*23\n</think>\n\n345", reasoning_content=None), "345", "15*23"),
        (_chat(content="[THINK]15*23[/THINK]345"), "345", "15*23"),
        (_chat(content=None, reasoning_content="15*23"), "", "15*23"),
        (_chat(content=[{"type": "text", "text": "345"}]), "345", ""),
        ('{"object":"text_completion","choices":[{"text":" 345"}]}', "345", ""),
    ],
)
def test_chat(body: str, answer: str, reasoning: str):
    found = parse_chat(body)

    assert (found.answer, found.reasoning) == (answer, reasoning)
    assert found.usage.completion_tokens is None


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ('{"choices":[{"mess', "not-json"),
        ("", "not-json"),
        ('{"choices":[]}', "shape"),
        ('{"choices":[{"message":null}]}', "shape"),
        ("[]", "shape"),
        ('{"object":"error","message":"out of memory"}', "stream-error"),
    ],
)
def test_chat_that_is_none(body: str, kind: str):
    with pytest.raises(BrokenAnswer) as caught:
        parse_chat(body)
    assert caught.value.kind == kind


def _sse(*chunks: object, end: str = "data: [DONE]\n\n") -> str:
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end


def _delta(finish_reason: str | None = None, **delta: object) -> dict[str, object]:
    return {"model": "m", "choices": [{"delta": delta, "finish_reason": finish_reason}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23}}


@pytest.mark.parametrize(
    ("text", "complete", "done"),
    [
        pytest.param(
            _sse(
                _delta(role="assistant", content=""),
                _delta(reasoning="r"),
                _delta(content="345"),
                _delta("stop"),
                USAGE,
            ),
            True,
            True,
            id="vllm",
        ),
        pytest.param(
            _sse(_delta(reasoning_content="r"), _delta("stop", content="345") | {"usage": USAGE["usage"]}, end=""),
            True,
            False,
            id="transformers-serve-sends-no-done",
        ),
        pytest.param(
            ": ping\r\n\r\n"
            + _sse(_delta(reasoning_content="r", content=None), _delta(content="345"), USAGE).replace("\n", "\r\n"),
            True,
            True,
            id="comments-and-crlf",
        ),
        pytest.param(_sse(_delta(reasoning="r"), _delta(content="345"), USAGE, end=""), False, False, id="cut"),
        pytest.param(
            _sse(_delta(reasoning="r"), _delta(content="345"), USAGE, end='data: {"cho'), False, False, id="cut-inside"
        ),
    ],
)
def test_streams(text: str, complete: bool, done: bool):
    stream = parse_stream(text)

    assert (stream.answer.answer, stream.answer.reasoning) == ("345", "r")
    assert (stream.complete, stream.done) == (complete, done)
    assert stream.answer.usage.completion_tokens == 3


def test_an_error_inside_a_stream():
    stream = parse_stream(_sse(_delta(content="3"), {"error": {"message": "CUDA error", "code": 500}}))

    assert stream.error == ErrorBody("CUDA error", 500)
    assert not stream.complete


def test_an_event_that_is_no_json():
    with pytest.raises(BrokenAnswer, match="no JSON"):
        parse_stream("data: {oops}\n\ndata: [DONE]\n\n")


def test_metrics_labels_and_values():
    metrics = parse_metrics(
        '# HELP x ...\nx{a="1",b="q\\"uo,te\\n"} 1.5\nx{a="2"} 2 1790000000\n'
        'x_total 3 # {trace="t"} 1\ny{le="+Inf"} NaN\n'
    )

    assert metrics.total("x") == 3.5
    assert metrics.gauge("x") == 1.5
    assert metrics.total("x_total") == 3
    assert metrics.named("x")[0].labels == {"a": "1", "b": 'q"uo,te\n'}
    assert metrics.total("z") is None


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', "x{a=1} 2", "x", "x y", '<html lang="en">'])
def test_what_is_no_metrics_text(text: str):
    with pytest.raises(ParseError):
        parse_metrics(text)


def test_metrics_are_looked_for_in_two_places():
    found = pick_metrics([("/metrics", 200, "[]"), ("/prometheus/metrics", 200, 'x{model_name="m"} 1\n')])

    assert found is not None
    assert (found.path, found.label("model_name")) == ("/prometheus/metrics", "m")
    assert pick_metrics([("/metrics", 501, "x 1"), ("/prometheus/metrics", 404, "")]) is None
    assert pick_metrics([("/metrics", 200, "# nothing yet\n")]) is None
