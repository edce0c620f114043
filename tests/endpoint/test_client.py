"""The client against servers that misbehave on the wire: each ends in the failure that says what it was."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable

import pytest

from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.connection.tunnel import Tunnel
from pytest_gpuinfra.endpoint.address import parse_address
from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.failures import BrokenAnswer, NoAnswer
from pytest_gpuinfra.endpoint.limits import Timeouts
from pytest_gpuinfra.endpoint.transport import make_transport
from pytest_gpuinfra.errors import EndpointError
from tests.endpoint.servers import RawServer, Reply, Request, Server, as_json, unused_port

SHORT = Timeouts(connect_s=1.0, read_s=0.4, total_s=0.6)


def _failure(base_url: str, **options: object) -> NoAnswer | BrokenAnswer:
    with (
        InferenceEndpoint(base_url, timeouts=SHORT, **options) as endpoint,
        pytest.raises((NoAnswer, BrokenAnswer)) as caught,
    ):
        endpoint.models()
    return caught.value


def test_refused():
    failure = _failure(f"http://127.0.0.1:{unused_port()}")

    assert (type(failure), failure.kind) == (NoAnswer, "refused")
    assert "is the service started" in str(failure)


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        pytest.param([b""], "closed", id="closed-without-a-word"),
        pytest.param([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], "not-http", id="ssh-on-this-port"),
        pytest.param([b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"], "truncated", id="half-a-body"),
        pytest.param(
            [b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{"da'], "truncated", id="half-a-chunk"
        ),
        pytest.param([b'HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{"data"'], "not-json-list", id="half-a-json"),
    ],
)
def test_answers_that_are_none(pieces: list[bytes], kind: str):
    with RawServer(pieces) as server:
        failure = _failure(server.base_url)

    assert failure.kind == ("shape" if kind == "not-json-list" else kind)
    assert type(failure) is (NoAnswer if kind == "closed" else BrokenAnswer)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([b"HTTP/1.1 200 OK\r\n"] + [b"x-header: y\r\n"] * 90, id="headers-that-never-end"),
        pytest.param([b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n"] + [b" "] * 90, id="a-body-that-drips"),
    ],
)
def test_the_whole_request_has_a_deadline(pieces: list[bytes]):
    with RawServer(pieces, pause_s=0.05) as server:
        before = time.monotonic()
        failure = _failure(server.base_url)
        took_s = time.monotonic() - before

    assert (type(failure), failure.kind) == (NoAnswer, "deadline")
    assert "0.6 s" in failure.reason
    assert took_s < 1.5


def test_silence_ends_at_the_read_deadline():
    with Server(lambda _: Reply(wait_s=30)) as server:
        failure = _failure(server.base_url)

    assert (type(failure), failure.kind) == (NoAnswer, "deadline")
    assert "0.4 s" in failure.reason


def test_a_huge_answer_is_not_read():
    sent = []

    def huge() -> object:
        for _ in range(100):
            sent.append(1)
            yield b"x" * 1_000_000

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        Server(lambda _: Reply(body=huge())) as server,
        InferenceEndpoint(server.base_url) as endpoint,
        pytest.raises(BrokenAnswer) as caught,
    ):
        endpoint.models()
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024

    assert caught.value.kind == "too-large"
    assert len(sent) < 40
    assert grown_mb < 60


@pytest.mark.parametrize(
    ("reply", "failure", "kind", "says"),
    [
        (as_json({"error": "Unauthorized"}, 401), NoAnswer, "unauthorized", "api_key_env"),
        (Reply(429, b""), NoAnswer, "throttled", "quieter"),
        (Reply(302, b"", headers={"location": "https://login.example/"}), BrokenAnswer, "redirect", "login.example"),
        (Reply(200, b"<!doctype html>", "text/html; charset=utf-8"), BrokenAnswer, "content-type", "web page"),
        (as_json({"error": {"message": "boom", "code": 500}}, 500), BrokenAnswer, "status", "boom"),
        (as_json({"detail": "Not Found"}, 404), BrokenAnswer, "status", "Not Found"),
        (as_json([]), None, "", ""),
    ],
)
def test_statuses(reply: Reply, failure: type[EndpointError] | None, kind: str, says: str):
    with Server(lambda _: reply) as server, InferenceEndpoint(server.base_url) as endpoint:
        if failure is None:
            assert endpoint.models().ids == ()
            return
        with pytest.raises(failure) as caught:
            endpoint.models()
    assert caught.value.kind == kind
    assert says in str(caught.value)


def test_a_redirect_is_not_followed_with_the_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("THE_KEY", "sesame-0123456789")
    with Server(lambda _: as_json({"data": []})) as elsewhere:
        away = Reply(307, b"", headers={"location": f"{elsewhere.base_url}/v1/models"})
        with Server(lambda _: away) as server, InferenceEndpoint(server.base_url, api_key_env="THE_KEY") as endpoint:
            with pytest.raises(BrokenAnswer):
                endpoint.models()
            assert server.seen[0].headers["authorization"] == "Bearer sesame-0123456789"
            assert elsewhere.seen == []
            endpoint.client.get(f"{elsewhere.base_url}/v1/models")
        assert "authorization" not in elsewhere.seen[0].headers


def test_the_key_is_masked_wherever_the_server_says_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("THE_KEY", "sesame-0123456789")

    def echo(request: Request) -> Reply:
        return as_json({"error": {"message": f"bad key {request.headers['authorization']}"}}, 400)

    with Server(echo) as server, InferenceEndpoint(server.base_url, api_key_env="THE_KEY") as endpoint:
        answer = endpoint.get("/v1/models")
        with pytest.raises(BrokenAnswer) as caught:
            endpoint.models()

    shown = f"{answer} {answer!r} {caught.value} {caught.value.text} {endpoint!r} {vars(endpoint)!r}"
    assert "[masked]" in shown
    assert "sesame" not in shown


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{unused_port()}")
    with Server(lambda _: as_json({"data": [{"id": "m"}]})) as server, InferenceEndpoint(server.base_url) as endpoint:
        assert endpoint.models().ids == ("m",)


@pytest.mark.parametrize("text", ["127.0.0.1:30000", "ftp://host", "http://", "http://[::"])
def test_what_is_no_address(text: str):
    with pytest.raises(EndpointError, match="is no address"):
        InferenceEndpoint(text)


def test_v1_and_password_are_taken_off_the_address():
    with InferenceEndpoint("http://user:secret-word@127.0.0.1:30000/v1/") as endpoint:
        assert endpoint.base_url == "http://127.0.0.1:30000"
        assert "secret-word" not in repr(endpoint)


def test_a_key_that_is_not_there_is_said():
    with pytest.raises(EndpointError, match="NO_SUCH_KEY is not set"):
        InferenceEndpoint("http://127.0.0.1:1", api_key_env="NO_SUCH_KEY")


@pytest.mark.parametrize(("ids", "says"), [([], "0 models"), (["a", "b"], "2 models: a, b")])
def test_which_model_to_ask_must_be_clear(ids: list[str], says: str):
    answer: Callable[[Request], Reply] = lambda _: as_json({"data": [{"id": id} for id in ids]})  # noqa: E731
    with Server(answer) as server, InferenceEndpoint(server.base_url) as endpoint, pytest.raises(NoAnswer) as caught:
        endpoint.ask("15*23")

    assert says in str(caught.value)
    assert "expect.model.id" in str(caught.value)


def test_the_whole_request_has_a_deadline_through_a_tunnel_too():
    drips = [b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n"] + [b" "] * 300
    connection = LocalConnection("here")
    with RawServer(drips, pause_s=0.05) as server:
        port = int(server.base_url.rpartition(":")[2])
        with Tunnel(connection, "127.0.0.1", port) as tunnel:
            transport = make_transport(parse_address(server.base_url), uds=tunnel.path)
            failure = _failure(server.base_url, transport=transport)
    connection.close()

    assert (type(failure), failure.kind) == (NoAnswer, "deadline")
    assert "0.6 s" in failure.reason


def test_a_closed_endpoint_cuts_what_is_under_way():
    with Server(lambda _: Reply(wait_s=30)) as server:
        endpoint = InferenceEndpoint(server.base_url)
        threading.Timer(0.3, endpoint.close).start()
        with pytest.raises(NoAnswer, match="the run ends"):
            endpoint.models()
        with pytest.raises(NoAnswer, match="the run ends"):
            endpoint.models()


def test_a_server_that_closes_every_connection_is_observed():
    with Server(lambda _: None) as server, InferenceEndpoint(server.base_url) as endpoint:
        with pytest.raises(NoAnswer) as caught:
            endpoint.models()
        assert len(server.seen) == 2
        with pytest.raises(NoAnswer):
            endpoint.post("/v1/chat/completions", {})
        assert len(server.seen) == 3, "what may change something is asked once"

    assert caught.value.kind == "closed"
