"""The cases about reporting (C114 to C117), arising in the product's own runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.subjects.gpu.smi_query import parse_gpu_query
from tests.plugin.conftest import run_pytest

ENDINGS = """
import pytest
from pytest_gpuinfra.errors import UnreachableError

@pytest.fixture
def copy():
    raise UnreachableError("host1", "ssh: connect to host host1 port 22: Connection refused")

def test_gpu_copy_of_a_host_that_is_away(copy):
    pass

def test_gpu_copy():
    assert False, "copy 0 -> 1 lost the data"

@pytest.mark.xfail(strict=True, reason="known: GNS on RTX 5090")
def test_p2p():
    assert False
"""

ONE_HOST = """
import os, pathlib

def _note(host):
    path = pathlib.Path(os.environ["WHO"]) / f"{os.getpid()}-{os.urandom(4).hex()}"
    path.write_text(os.environ.get("PYTEST_XDIST_WORKER", "none"))

def test_copy_0_to_1(gpu_host, gpu_kernel_release):
    _note(gpu_host)

def test_copy_1_to_0(gpu_host, gpu_kernel_release):
    _note(gpu_host)
"""


def allure_results(folder: Path) -> dict[str, Any]:
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*-result.json")]
    return {result["name"].partition("[")[0]: result for result in found}


def test_c114_and_c115_unobserved_wrong_and_known_are_three_things(tmp_path: Path) -> None:
    (tmp_path / "test_endings.py").write_text(ENDINGS, encoding="utf-8")
    ended = run_pytest(tmp_path, "--alluredir=allure", "-p", "no:cacheprovider", "-rA")
    results = allure_results(tmp_path / "allure")

    assert "1 failed" in ended.stdout, ended.stdout + ended.stderr
    assert "1 error" in ended.stdout
    assert "1 xfailed" in ended.stdout
    assert results["test_gpu_copy_of_a_host_that_is_away"]["status"] == "broken"
    assert results["test_gpu_copy"]["status"] == "failed"
    assert results["test_p2p"]["status"] == "skipped"
    assert "known: GNS on RTX 5090" in results["test_p2p"]["statusDetails"]["message"]


def test_c116_one_hosts_gpus_are_never_used_by_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    who = tmp_path / "who"
    who.mkdir()
    monkeypatch.setenv("WHO", str(who))
    (tmp_path / "test_copy.py").write_text(ONE_HOST, encoding="utf-8")
    ended = run_pytest(tmp_path, "--gpu-host=local", "-n", "2", "test_copy.py", "-p", "no:cacheprovider")

    workers = [path.read_text(encoding="utf-8") for path in who.iterdir()]

    assert len(workers) == 2, ended.stdout + ended.stderr
    assert len(set(workers)) == 1


def test_c117_a_tool_that_is_not_there_is_an_error() -> None:
    missing = Reading("nvidia-smi", "", exit_status=127, stderr="bash: nvidia-smi: command not found\n")

    with pytest.raises(FactUnavailable, match="command not found"):
        parse_gpu_query(missing)
