"""Servers that answer nonsense: each is observed wrong on its own host, in bounded memory, and spoils no other."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_gpuinfra.endpoint.embedded import EmbeddedServer
from tests.endpoint.servers import Reply, Request, Server
from tests.plugin.conftest import Judged, run_pytest

MEMORY_MB = 200
"""Most that a run may take, pytest and its libraries included."""


def bomb() -> bytes:
    """Give 400 KB that unpack into 400 MB, and these into 400 GB."""
    packer = zlib.compressobj(9, wbits=31)
    once = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(400)), packer.flush()])
    return gzip.compress(once) + bytes(300_000)


def endless(piece: bytes) -> Callable[[], Iterable[bytes]]:
    """Give a body of one piece without end."""
    return lambda: iter(lambda: piece, b"")


BOMB = bomb()
HOSTILE: dict[str, Callable[[Request], Reply]] = {
    "gzip-twice": lambda _: Reply(200, BOMB, headers={"content-encoding": "gzip, gzip"}),
    "deflate": lambda _: Reply(200, zlib.compress(b"{}"), headers={"content-encoding": "deflate"}),
    "unknown-encoding": lambda _: Reply(200, b"{}", headers={"content-encoding": "x-own"}),
    "too-deep": lambda _: Reply(200, b'{"data":' + b"[" * 100_000),
    "deep-enough": lambda _: Reply(200, b'{"data":' * 900 + b"1" + b"}" * 900),
    "half-a-pair": lambda _: Reply(200, b'{"data": [{"id": "\\ud800"}]}'),
    "not-finite": lambda _: Reply(200, b'{"data": [{"id": "m", "created": 1e999}]}'),
    "a-huge-number": lambda _: Reply(200, b'{"data": [{"id": "m", "created": ' + b"9" * 5000 + b"}]}"),
    "many-headers": lambda _: Reply(200, b"{}", headers={f"x-{number}": "y" for number in range(1000)}),
    "without-end": lambda _: Reply(200, endless(b"x" * 65536)()),
    "a-list": lambda _: Reply(200, b"[1, 2, 3]"),
}


def judge(directory: Path, endpoints: dict[str, str], *arguments: str) -> tuple[Judged, float]:
    """Judge endpoints, each as one host's; gives the run and its memory in MB."""
    (directory / "conftest.py").write_text(
        "import pathlib\n"
        "def pytest_unconfigure():\n"
        "    status = pathlib.Path('/proc/self/status').read_text()\n"  # ru_maxrss is also that of who started it
        "    pathlib.Path('memory.txt').write_text(str(int(status.partition('VmHWM:')[2].split()[0]) / 1024))\n"
    )
    (directory / "gpuinfra.toml").write_text(
        "".join(f"[hosts.{alias}]\naddress = 'local'\nendpoint = '{address}'\n" for alias, address in endpoints.items())
    )
    ended = run_pytest(
        directory,
        *("--gpu-host=all", "--gpu-recording=out.json", "--junitxml=junit.xml", "--gpu-summary=page.html"),
        *("-p", "no:cacheprovider", "-k", "endpoint", *arguments),
    )
    output = ended.stdout + ended.stderr
    assert "Traceback" not in output, output
    assert "INTERNALERROR" not in output, output
    ElementTree.parse(directory / "junit.xml")
    judged = Judged(json.loads((directory / "out.json").read_text()), ended.returncode, output)
    return judged, float((directory / "memory.txt").read_text())


def test_nonsense_is_a_failure_of_its_own_host(tmp_path: Path) -> None:
    """A healthy server beside eleven hostile ones passes; each of those is not ready, and unknown for the rest."""
    with ExitStack() as stack:
        endpoints = {alias: stack.enter_context(Server(answer)).base_url for alias, answer in HOSTILE.items()}
        endpoints["healthy"] = stack.enter_context(EmbeddedServer()).base_url
        judged, memory_mb = judge(tmp_path, endpoints)
    for alias in HOSTILE:
        outcomes = judged.of_host(alias)
        assert outcomes.ended("failed") == ["test_endpoint_is_ready[]"], (alias, judged.output)
        assert outcomes.ended("passed") == [], alias
    assert judged.of_host("healthy").ended("failed", "error") == []
    assert memory_mb < MEMORY_MB


WRONG_CHAT = {
    "deep": b"[" * 5000,
    "half-a-pair": b'{"choices": [{"message": {"content": "345\\udc00"}, "finish_reason": "stop"}]}',
    "huge-number": b'{"choices": [{"message": {"content": "1e999999999"}, "finish_reason": "stop"}]}',
    "endless-line": b"data: " + b"x" * 3_000_000,
}


@pytest.mark.parametrize("body", WRONG_CHAT.values(), ids=WRONG_CHAT)
def test_nonsense_for_an_answer_is_a_wrong_answer(tmp_path: Path, body: bytes) -> None:
    """A server that is ready and then answers questions with nonsense: FAILED, item by item."""

    def answer(request: Request) -> Reply:
        if request.path == "/health":
            return Reply(200, b"", content_type=None)
        if request.path == "/v1/models":
            return Reply(200, b'{"data": [{"id": "m", "max_model_len": 4096}]}')
        if request.body and request.json.get("messages", [{}])[0]["content"] == "Hello":
            return Reply(200, b'{"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}')
        return Reply(200, body, "text/event-stream" if b'"stream": true' in request.body else "application/json")

    with Server(answer) as server:
        judged, memory_mb = judge(tmp_path, {"host": server.base_url})
    outcomes = judged.of_host("host")
    assert "test_endpoint_is_ready[]" in outcomes.ended("passed"), judged.output
    assert "test_answer_is_right[15-times-23]" in outcomes.ended("failed")
    assert "test_stream_equals_the_whole_answer[]" in outcomes.ended("failed")
    assert memory_mb < MEMORY_MB
