"""What an endpoint does not tell, and what tells of something else: unknown, and never passed or skipped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gpuinfra.endpoint.embedded import EmbeddedServer, ServerSettings
from tests.endpoint.servers import Reply, Request, Server
from tests.plugin.conftest import HostOutcomes, run_pytest

EXPECTED = {
    "max_model_len": ("max_model_len = 4096", "test_context_length_is_the_expected_one[]"),
    "tp_size": ("tp_size = 2", "test_tensor_parallel_size_is_the_expected_one[]"),
    "dtype": ('dtype = "bfloat16"', "test_precision_is_the_expected_one[]"),
    "quantization": ('quantization = "fp8"', "test_quantization_is_the_expected_one[]"),
    "kv_cache_dtype": ('kv_cache_dtype = "fp8_e5m2"', "test_precision_of_the_kv_cache_is_the_expected_one[]"),
    "enabled": ("speculation = { enabled = true }", "test_speculation_is_as_expected[]"),
    "disabled": ("speculation = { enabled = false }", "test_speculation_is_as_expected[]"),
    "algorithm": ('speculation = { algorithm = "EAGLE" }', "test_speculation_is_as_expected[]"),
    "length": ("speculation = { mean_accepted_length_min = 1.5 }", "test_speculation_is_as_expected[]"),
}
"""(words of expect.model, the item that judges them) by key."""
SGLANG = {"tp_size": 2, "model_path": "m", "dtype": "auto", "kv_cache_dtype": "auto", "quantization": None}
PAGE = b"<!doctype html><title>Sign in to proceed</title>"


def server(more: dict[str, Reply] | None = None) -> Callable[[Request], Reply]:
    """Give a server that answers what it must, and tells no more than it is given."""

    def answer(request: Request) -> Reply:
        if more and request.path in more:
            return more[request.path]
        if request.path == "/health":
            return Reply(200, b"", content_type=None)
        if request.path == "/v1/models":
            return Reply(200, b'{"data": [{"id": "m"}]}')
        if request.path == "/v1/chat/completions":
            choice = {"message": {"content": "345"}, "finish_reason": "stop"}
            return Reply(200, json.dumps({"choices": [choice], "usage": {"completion_tokens": 2}}).encode())
        return Reply(404, b'{"detail": "Not Found"}')

    return answer


def judge(directory: Path, hosts: dict[str, tuple[str, str]], only: str) -> dict[str, HostOutcomes]:
    """Judge endpoints, given as (address, words of expect.model) by alias."""
    (directory / "gpuinfra.toml").write_text(
        "".join(
            f"[hosts.{alias}]\naddress = 'local'\nendpoint = '{url}'\n[hosts.{alias}.expect.model]\n{words}\n"
            for alias, (url, words) in hosts.items()
        )
    )
    options = ("--gpu-host=all", "--gpu-recording=out.json", "-p", "no:cacheprovider", "-k", only)
    ended = run_pytest(directory, *options)
    assert (directory / "out.json").exists(), ended.stdout + ended.stderr
    found: dict[str, tuple[dict[str, str], dict[str, str]]] = {alias: ({}, {}) for alias in hosts}
    for result in json.loads((directory / "out.json").read_text())["results"]:
        name = result["id"].rpartition("::")[2].replace(f"[{result['host']}]", "[]")
        for kept, word in zip(found[result["host"]], ("outcome", "message"), strict=True):
            kept[name] = result[word]
    return {alias: HostOutcomes(*both) for alias, both in found.items()}


def test_expectation_that_the_engine_does_not_tell_of_is_unknown(tmp_path: Path) -> None:
    """Every key of expect.model, on a server that tells nothing, and on one that tells "auto": ERROR."""
    with Server(server()) as silent, Server(server({"/server_info": Reply(200, json.dumps(SGLANG).encode())})) as auto:
        hosts = {f"silent-{key}": (silent.base_url, words) for key, (words, _) in EXPECTED.items()}
        for key in ("dtype", "quantization", "kv_cache_dtype", "algorithm"):
            hosts[f"auto-{key}"] = (auto.base_url, EXPECTED[key][0])
        outcomes = judge(tmp_path, hosts, "expected")

    for alias in hosts:
        assert outcomes[alias].ended("error") == [EXPECTED[alias.partition("-")[2]][1]], alias
        assert outcomes[alias].ended("passed", "failed") == [], alias


def test_algorithm_of_a_speculation_that_works_is_unknown_where_it_is_not_told(tmp_path: Path) -> None:
    """llama.cpp's drafts are counted and accepted, and by which algorithm it does not say."""
    with EmbeddedServer(ServerSettings(speculation="draft")) as running:
        hosts = {"named": (running.base_url, EXPECTED["algorithm"][0]), "any": (running.base_url, "tp_size = 1")}
        outcomes = judge(tmp_path, hosts, "speculation")

    assert "does not tell its algorithm" in outcomes["named"].messages["test_speculation_is_as_expected[]"]
    assert outcomes["named"].ended("error") == ["test_speculation_is_as_expected[]"]
    assert outcomes["any"].ended("passed") == ["test_speculation_is_as_expected[]"]


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/chat/completions"])
def test_web_page_in_the_place_of_the_api_is_unknown_and_shown(tmp_path: Path, path: str) -> None:
    """What answers is something else than an inference server: nothing is known of the one that was meant."""
    with Server(server({path: Reply(200, PAGE, "text/html")})) as running:
        outcomes = judge(tmp_path, {"page": (running.base_url, "")}, "endpoint_is_ready")["page"]

    assert outcomes.ended("error") == ["test_endpoint_is_ready[]"]
    assert "Sign in to proceed" in outcomes.messages["test_endpoint_is_ready[]"]
    assert "loading" not in outcomes.messages["test_endpoint_is_ready[]"]


def test_get_on_a_connection_that_was_just_closed_is_asked_once_more(tmp_path: Path) -> None:
    """A server that closes every second connection of a GET: ready, with nothing failed and nothing unknown."""
    answer, asked = server(), [0]

    def closing(request: Request) -> Reply | None:
        asked[0] += request.method == "GET"
        return None if request.method == "GET" and asked[0] % 2 else answer(request)

    with Server(closing) as running:
        outcomes = judge(tmp_path, {"closing": (running.base_url, "")}, "endpoint_is_ready or model_is")["closing"]

    assert outcomes.ended("passed") == ["test_endpoint_is_ready[]"]
    assert outcomes.ended("failed", "error") == []
