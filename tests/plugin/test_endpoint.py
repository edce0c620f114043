"""The endpoint as a user has it judged: embedded, through a tunnel, becoming ready, and replayed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuinfra.endpoint.embedded import EmbeddedServer, ServerSettings
from tests.plugin.conftest import Judged, run_pytest


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """Give a real llama.cpp server that drafts with its own model."""
    with EmbeddedServer(ServerSettings(speculation="draft")) as running:
        yield running


def judge(directory: Path, *arguments: str, name: str = "judged.json") -> Judged:
    """Judge an endpoint by our own suites."""
    ended = run_pytest(directory, f"--gpu-recording={name}", "-p", "no:cacheprovider", "-k", "endpoint", *arguments)
    assert (directory / name).exists(), ended.stdout + ended.stderr
    return Judged(json.loads((directory / name).read_text()), ended.returncode, ended.stdout + ended.stderr)


def test_embedded_endpoint_passes(tmp_path: Path) -> None:
    """README's first command: a newcomer without a GPU sees real answers judged."""
    judged = judge(tmp_path, "--gpu-host=local", "--gpu-endpoint=embedded")
    outcomes = judged.of_host("local")
    assert outcomes.ended("failed", "error") == [], judged.output
    assert len(outcomes.ended("passed")) >= 12
    assert judged.exit_status == 0


def test_embedded_endpoint_is_the_same_in_the_next_run(tmp_path: Path) -> None:
    """Its port is another each time, which is no change; its speed is whatever else this machine does."""
    judge(tmp_path, "--gpu-host=local", "--gpu-endpoint=embedded")
    compared = judge(
        tmp_path,
        *("--gpu-host=local", "--gpu-endpoint=embedded", "--gpu-baseline=judged.json"),
        name="again.json",
    )
    outcomes = compared.of_host("local")
    name = "test_nothing_changed_beside_what_was_meant[endpoint]"
    assert outcomes.outcomes[name] in ("passed", "failed"), compared.output
    assert "endpoint/address" not in outcomes.messages.get(name, "") + compared.output


def test_expected_model_is_judged(tmp_path: Path, server: EmbeddedServer) -> None:
    """Id, context, speculation and speed against the inventory: right ones pass, wrong ones fail, each alone."""
    right = "id = 'tiny-times'\nmax_model_len = 512\nspeculation = { mean_accepted_length_min = 2.0 }"
    wrong = "max_model_len = 262144\nspeculation = { enabled = false }\nthroughput = { one_stream_tokens_per_s = 1e9 }"
    endings = {}
    for alias, model in (("right", right), ("wrong", wrong), ("other", "id = 'qwen'")):
        (tmp_path / "gpuinfra.toml").write_text(
            f"[hosts.{alias}]\naddress = 'local'\nendpoint = '{server.base_url}'\n"
            f"[hosts.{alias}.expect.model]\n{model}\n"
        )
        endings[alias] = judge(tmp_path, f"--gpu-host={alias}").of_host(alias)
    assert endings["right"].ended("failed", "error") == []
    assert {
        "test_model_is_the_expected_one[]",
        "test_context_length_is_the_expected_one[]",
        "test_speculation_is_as_expected[]",
    } <= set(endings["right"].ended("passed"))
    assert endings["wrong"].ended("failed") == [
        "test_context_length_is_the_expected_one[]",
        "test_one_stream_is_as_fast_as_before[]",
        "test_speculation_is_as_expected[]",
    ]
    assert "262144" in endings["wrong"].messages["test_context_length_is_the_expected_one[]"]
    assert endings["other"].ended("failed") == ["test_endpoint_is_ready[]"]
    assert "tiny-times" in endings["other"].messages["test_endpoint_is_ready[]"]
    assert endings["other"].ended("passed") == []


def test_nothing_listens_is_a_failure_of_readiness_and_unknown_for_the_rest(tmp_path: Path) -> None:
    """A server that is not there was observed: it is not ready; what it would answer is unknown."""
    outcomes = judge(tmp_path, "--gpu-host=local", "--gpu-endpoint=http://127.0.0.1:1").of_host("local")
    assert outcomes.ended("failed") == ["test_endpoint_is_ready[]"]
    assert outcomes.ended("passed") == []
    assert "test_answer_is_right[15-times-23]" in outcomes.ended("error")


def test_wait_covers_a_server_that_becomes_ready(tmp_path: Path) -> None:
    """With --gpu-wait the ladder is climbed until it is ready; the times of its rungs are in the report."""
    settings = ServerSettings(port=_free_port())
    code = (
        "import sys, time; from pytest_gpuinfra.endpoint.embedded import EmbeddedServer, ServerSettings\n"
        f"time.sleep(6)\nwith EmbeddedServer(ServerSettings(port={settings.port})): time.sleep(600)"
    )
    late = subprocess.Popen([sys.executable, "-c", code])
    try:
        started = time.monotonic()
        judged = judge(
            tmp_path,
            "--gpu-host=local",
            f"--gpu-endpoint=http://127.0.0.1:{settings.port}",
            "--gpu-wait=60",
            "-k",
            "endpoint_is_ready or right",
        )
        assert time.monotonic() - started < 60
    finally:
        late.kill()
        late.wait()
    assert judged.of_host("local").ended("failed", "error") == [], judged.output
    rungs = judged.recording["hosts"]["local"]["gathered"]["endpoint"]["readiness"]["rungs"]  # type: ignore[index]
    assert [rung["name"] for rung in rungs] == ["port", "health", "models", "token"]
    assert all(rung["reached_s"] > 1 for rung in rungs)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_replayed_endpoint_ends_the_same(tmp_path: Path, server: EmbeddedServer) -> None:
    """Every answer is in the recording; judged again without a server, each item ends the same, also under xdist."""
    live = judge(tmp_path, "--gpu-host=local", f"--gpu-endpoint={server.base_url}", "-n", "2")
    again = judge(tmp_path, "--gpu-host=replay:judged.json", name="again.json")
    assert dict(again.of_host("local").outcomes) == dict(live.of_host("local").outcomes)
    assert "test_answers_at_the_same_time_are_right[]" in again.of_host("local").ended("passed")


def test_api_key_is_never_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key opens the endpoint, and stands in no recording, no JUnit file, no output."""
    key = "sk-gpuinfra-0123456789abcdef"
    monkeypatch.setenv("OUR_KEY", key)
    with EmbeddedServer(ServerSettings(api_key=key)) as locked:
        arguments = ("--gpu-host=local", f"--gpu-endpoint={locked.base_url}", "--junitxml=junit.xml")
        opened = judge(tmp_path, *arguments, "--gpu-api-key-env=OUR_KEY")
        assert opened.of_host("local").ended("failed", "error") == [], opened.output
        written = json.dumps(opened.recording) + (tmp_path / "junit.xml").read_text() + opened.output
        assert key not in written
        refused = judge(tmp_path, *arguments)
        assert refused.of_host("local").ended("passed") == []
        assert "test_endpoint_is_ready[]" in refused.of_host("local").ended("error")


def test_users_own_test_has_the_endpoint(tmp_path: Path, server: EmbeddedServer) -> None:
    """`gpu_endpoint` is ready and warm when a test gets it."""
    (tmp_path / "test_own.py").write_text(
        "def test_it(gpu_endpoint, gpu_evidence):\n"
        "    answer = gpu_endpoint.ask('What is 12*12? Answer briefly.')\n"
        "    gpu_evidence.attach('answer', answer.answer)\n    assert answer.answer == '144'\n"
    )
    ended = run_pytest(
        tmp_path, "--gpu-host=local", f"--gpu-endpoint={server.base_url}", "--gpu-recording=none", "test_own.py"
    )
    assert ended.returncode == 0, ended.stdout
