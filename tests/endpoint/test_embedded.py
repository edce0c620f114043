"""The embedded server: real llama.cpp, started and ended as a user's run does."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.embedded import MODEL_FILE, EmbeddedServer, ServerSettings, check_model
from pytest_gpuinfra.endpoint.failures import NoAnswer
from pytest_gpuinfra.endpoint.judge_readiness import judge_readiness
from pytest_gpuinfra.errors import EndpointError
from tests.endpoint.servers import unused_port


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"


def test_it_is_ready_within_seconds_and_leaves_no_process():
    with EmbeddedServer() as server:
        pid = server.pid
        assert pid is not None
        assert server.ready_s is not None
        with InferenceEndpoint(server.base_url) as endpoint:
            assert endpoint.ask("What is 15*23? Answer briefly.").answer == "345"
            assert server.ready_s < 10

    assert not _alive(pid)


def test_it_dies_with_its_parent():
    code = (
        "import time; from pytest_gpuinfra.endpoint.embedded import EmbeddedServer\n"
        "server = EmbeddedServer(); server.start(); server.wait(); print(server.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    assert _alive(pid)

    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()

    deadline = time.monotonic() + 5
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(pid)


def test_the_ladder_sees_it_load():
    """A context of 262,144 tokens takes a second to set up: long enough to see 503 from real llama.cpp."""
    port = unused_port()
    server = EmbeddedServer(ServerSettings(port=port, context=1 << 18))
    lines: list[str] = []
    starter = threading.Timer(0.3, server.start)
    starter.start()
    try:
        with InferenceEndpoint(f"http://127.0.0.1:{port}") as endpoint:
            readiness = endpoint.readiness(wait_s=30, model="tiny-times", on_progress=lines.append)
    finally:
        starter.join()
        server.close()

    assert judge_readiness(readiness).ok, judge_readiness(readiness).message
    assert "refused" in readiness.history[0]
    assert any("Loading model" in line for line in readiness.history), readiness.history
    moments = [rung.reached_s for rung in readiness.rungs]
    assert moments == sorted(moments)
    assert readiness.rung("port").reached_s < readiness.rung("token").reached_s
    assert lines[-1].endswith("ready")


def test_its_api_key_is_needed_under_v1_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("THE_KEY", "sesame-opens-nothing-else")
    with EmbeddedServer(ServerSettings(api_key="sesame-opens-nothing-else")) as server:
        with InferenceEndpoint(server.base_url) as without:
            assert without.get("/health").status == 200
            with pytest.raises(NoAnswer) as refused:
                without.ask("15*23")
            verdict = judge_readiness(without.readiness(wait_s=5))
        with InferenceEndpoint(server.base_url, api_key_env="THE_KEY") as endpoint:
            assert endpoint.ask("What is 15*23?").answer == "345"
            shown = f"{endpoint!r} {endpoint.client.headers!r} {endpoint.limits!r}"

    assert refused.value.kind == "unauthorized"
    assert verdict.ending == "error"
    assert "api_key_env" in verdict.action
    assert "sesame" not in shown


def test_a_damaged_model_is_named(tmp_path: Path):
    damaged = tmp_path / "tiny-times.gguf"
    damaged.write_bytes(MODEL_FILE.read_bytes()[:-1] + b"\0")

    with pytest.raises(EndpointError, match="SHA-256"):
        check_model(damaged)


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path):
    nothing = tmp_path / "nothing.gguf"
    nothing.write_bytes(b"GGUF")
    server = EmbeddedServer(ServerSettings(model=str(nothing)))
    server.start()

    with pytest.raises(EndpointError, match="the end of its log"):
        server.wait()
    server.close()


def test_a_missing_xllamacpp_gives_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(EndpointError) as missing:
        EmbeddedServer().start()

    assert "pip install 'pytest-gpuinfra[demo]'" in str(missing.value)
