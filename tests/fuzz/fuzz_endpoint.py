"""Hostile servers on loopback: whatever one sends, the endpoint's items have an ending in the product's own words."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

from pytest_gpuinfra.endpoint.bad_requests import send_bad_requests
from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.engine import engine_from
from pytest_gpuinfra.endpoint.judge_answers import judge_answer
from pytest_gpuinfra.endpoint.limits import Timeouts
from pytest_gpuinfra.endpoint.prompts import read_prompts
from pytest_gpuinfra.endpoint.smoke import ask_both_ways
from pytest_gpuinfra.endpoint.speculation_run import read_speculation
from pytest_gpuinfra.errors import EndpointError
from tests.fuzz import Target

PROMPT = read_prompts()[0]
SHORT = Timeouts(connect_s=2.0, read_s=0.5, total_s=1.0)

NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([10**400, -1, 0, True, 1e308, float("nan")]),
)
TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["345", "\ud800", "²", "9" * 5000, "1e999999999", "\x1b[2J", "<think>", "\\boxed{", "[DONE]", "stop", "length"]
    ),
)
KEYS = st.one_of(
    st.sampled_from(
        [
            "data",
            "id",
            "max_model_len",
            "meta",
            "n_ctx",
            "created",
            "owned_by",
            "choices",
            "message",
            "content",
            "delta",
            "finish_reason",
            "usage",
            "prompt_tokens",
            "completion_tokens",
            "total_tokens",
            "error",
            "code",
            "type",
            "detail",
            "loc",
            "msg",
            "object",
            "status",
            "model",
            "reasoning_content",
            "tp_size",
            "internal_states",
            "avg_spec_accept_length",
            "server_args",
            "launch_command",
            "speculative",
            "default_generation_settings",
            "model_id",
            "speculate",
            "version",
            "timings",
        ]
    ),
    st.text(max_size=8),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=25,
)


def as_json(value: object) -> bytes:
    """Give JSON as a careless server writes it: NaN, half surrogate pairs and all."""
    return json.dumps(value).encode()


DEEP = st.sampled_from([b"[" * 100_000, b'{"data":' * 3000, b"[" * 900 + b"]" * 900, b'{"a":' * 70 + b"1" + b"}" * 70])
CHAT = st.builds(
    lambda content, finish, usage, rest: as_json(
        {"choices": [{"message": {"content": content}, "finish_reason": finish, **rest}], "usage": usage}
    ),
    VALUES,
    VALUES,
    VALUES,
    st.dictionaries(KEYS, VALUES, max_size=3),
)
MODELS = st.builds(
    lambda entries: as_json({"data": entries}),
    st.lists(st.dictionaries(KEYS, VALUES, max_size=5), max_size=4),
)
EVENTS = st.lists(
    st.one_of(
        st.builds(lambda value: b"data: " + as_json(value) + b"\n\n", VALUES),
        st.builds(lambda v: b"data: " + as_json({"choices": [{"delta": {"content": v}}]}) + b"\n\n", VALUES),
        st.sampled_from(
            [b": ping\n\n", b"data: [DONE]\n\n", b"data:\n\n", b"event: x\n", b"data: {", b"\r\n\r\n", b"\xff\n"]
        ),
    ),
    max_size=8,
).map(b"".join)
METRICS = st.lists(
    st.one_of(
        st.builds(
            lambda name, label, value: f'{name}{{a="{label}"}} {value}\n'.encode("utf-8", "replace"),
            st.sampled_from(["sglang:spec_verify_calls_total", "vllm:spec_decode_num_drafts_total", "x", ""]),
            TEXTS,
            st.one_of(NUMBERS.map(str), TEXTS),
        ),
        st.binary(max_size=40),
    ),
    max_size=6,
).map(b"".join)
BODIES = st.one_of(
    CHAT, MODELS, EVENTS, METRICS, DEEP, VALUES.map(as_json), st.binary(max_size=60), st.just(b"x" * 3_000_000)
)
KINDS = st.sampled_from(
    [b"application/json", b"text/event-stream", b"text/html", b"text/plain; version=0.0.4", b"", b"\xff\xfe", b"a\tb"]
)
HEADERS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                b"content-encoding: gzip, gzip", b"content-encoding: br", b"content-encoding: zstd",
                b"content-encoding: identity", b"content-encoding: ", b"transfer-encoding: gzip, chunked",
                b"transfer-encoding: chunked", b"transfer-encoding: chunked, chunked", b"content-length: -1",
                b"content-length: 5, 5", b"content-length: 99999999999999999999", b"location: http://[::",
                b"location: //\xff\xfe/", b"location: http://127.0.0.1:1/", b"set-cookie: a=b; domain=.x",
                b"connection: keep-alive", b"x: " + b"y" * 70_000, b" folded", b"no-colon", b"\x00: \x00",
                b"content-type: application/json", b"x: " + b"\xff" * 20,
            ]
        ),
        st.binary(max_size=20),
    ),
    max_size=4,
)  # fmt: skip
STATUS_LINES = st.one_of(
    st.sampled_from(
        [
            *(b"HTTP/1.1 %d X" % status for status in (100, 101, 200, 200, 204, 301, 307, 401, 404, 429, 503, 999)),
            b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"HTTP/2 200 OK", b"HTTP/1.1 -1 OK", b"HTTP/1.1 200 " + b"z" * 200_000,
            b"SSH-2.0-x", b"",
        ]
    ),
    st.binary(max_size=20),
)  # fmt: skip


@st.composite
def answers(draw: Any) -> bytes:
    """Give all bytes of one answer; half of them are well-formed around a hostile body."""
    body = draw(BODIES)
    if draw(st.booleans()):
        return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (draw(KINDS), len(body), body)
    head = [draw(STATUS_LINES), *draw(HEADERS), b"content-type: " + draw(KINDS)]
    if draw(st.booleans()):
        head.append(b"content-length: %d" % draw(st.sampled_from([len(body), len(body) + 5, 3, 0])))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


@contextmanager
def serving(answer: bytes) -> Iterator[str]:
    """Give the address of a server that sends these bytes to every request, and closes."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=16)

    def serve() -> None:
        while True:
            try:
                taken, _ = listener.accept()
            except OSError:
                return
            with taken:
                try:
                    taken.settimeout(2.0)
                    taken.recv(1 << 20)
                    taken.sendall(answer)
                    taken.shutdown(socket.SHUT_WR)
                except OSError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _tried(ask: Callable[[], object]) -> None:
    """Ask; an answer or a failure in the product's own words can be written down, and anything else is raised."""
    try:
        shown = repr(ask())
    except EndpointError as error:
        shown = f"{error}"
    shown.encode()


def ask_everything(answer: bytes) -> None:
    """Ask a server everything that a run asks; only the product's own errors may come of it."""
    with serving(answer) as address, InferenceEndpoint(address, model="m", timeouts=SHORT) as endpoint:
        _tried(lambda: endpoint.readiness().history)
        _tried(endpoint.models)
        _tried(lambda: [str(judge_answer(asked)) for asked in ask_both_ways(endpoint, PROMPT)])
        _tried(lambda: send_bad_requests(endpoint))
        _tried(lambda: read_speculation(endpoint))


def tell_engine(bodies: dict[str, str]) -> None:
    """Tell the engine from its routes."""
    repr(engine_from(bodies)).encode()


ROUTES = st.sampled_from(["/v1/models", "/metrics", "/server_info", "/props", "/slots", "/info", "/version"])


def targets() -> list[Target]:
    """Give the endpoint's targets."""
    bodies = st.dictionaries(ROUTES, BODIES.map(lambda body: body.decode("utf-8", "replace")), max_size=5)
    return [
        Target("endpoint-answers", answers(), ask_everything, examples=25),
        Target("endpoint-engine", bodies, tell_engine, examples=60),
    ]
