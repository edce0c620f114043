"""Speed, measured on real llama.cpp, and judged against a baseline only."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time

import pytest

from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.embedded import EmbeddedServer
from pytest_gpuinfra.endpoint.failures import NoAnswer
from pytest_gpuinfra.endpoint.judge_refusals import judge_throughput
from pytest_gpuinfra.endpoint.stream import StreamAnswer
from pytest_gpuinfra.endpoint.throughput import Throughput, background_load, measure_throughput
from tests.endpoint.servers import Reply, Request, Server, proxy, unused_port


@pytest.mark.parametrize("streams", [1, 4])
def test_measured(endpoint: InferenceEndpoint, streams: int):
    measured = measure_throughput(endpoint, streams=streams, requests=8)

    assert (measured.streams, measured.requests, measured.failures) == (streams, 8, ())
    assert measured.counted
    assert measured.tokens > 8 * 60
    assert measured.tokens_per_s == pytest.approx(measured.tokens / measured.wall_s)
    assert len(measured.first_token_s) == 8
    assert measured.median_first_token_s is not None
    assert 0 < measured.median_first_token_s < measured.wall_s
    assert "tokens/s" in str(measured)


def test_failures_are_counted_and_not_measured(llama: EmbeddedServer):
    numbers = itertools.count()

    def every_other(request: Request, reply: Reply) -> Reply | None:
        chat = request.path.endswith("/chat/completions")
        return None if chat and next(numbers) % 2 else reply

    with Server(proxy(llama.base_url, every_other)) as server, InferenceEndpoint(server.base_url) as endpoint:
        measured = measure_throughput(endpoint, requests=4)

    assert (measured.requests, len(measured.failures)) == (2, 2)
    assert judge_throughput(measured, 0.001).ending == "wrong"


def test_no_answer_at_all_is_an_error():
    with InferenceEndpoint(f"http://127.0.0.1:{unused_port()}", model="m") as endpoint, pytest.raises(NoAnswer):
        measure_throughput(endpoint, requests=2)


@pytest.mark.parametrize(
    ("baseline", "slower_max", "ending"),
    [(None, 0.15, "skip"), (100, 0.15, "ok"), (130, 0.15, "wrong"), (130, 0.3, "ok")],
)
def test_a_baseline_decides(baseline: float | None, slower_max: float, ending: str):
    measured = Throughput(4, 8, (), 1000, True, 10.0, (0.1,) * 8, (30.0,) * 8)

    assert judge_throughput(measured, baseline, slower_max=slower_max).ending == ending


def test_a_load_runs_until_the_block_ends(endpoint: InferenceEndpoint):
    with background_load(endpoint, streams=2) as results:
        time.sleep(0.3)
    count = len(results)
    time.sleep(0.1)

    assert count >= 2
    assert len(results) == count
    assert all(isinstance(result, StreamAnswer) for result in results)


def test_the_package_imports_nothing_heavy():
    code = "import sys, pytest_gpuinfra.endpoint; print([m for m in ('httpx', 'ssl', 'asyncio') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_pure_parts_do_not_import_httpx():
    code = (
        "import sys\nfrom pytest_gpuinfra.endpoint import chat, match, engine, health, metrics, models, prompts, "
        "readiness, server_info, smoke, speculation, speculation_logs, stream, throughput\n"
        "from pytest_gpuinfra.endpoint import judge_answers, judge_model, judge_readiness, judge_refusals\n"
        "from pytest_gpuinfra.endpoint import judge_speculation\n"
        "print('httpx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
