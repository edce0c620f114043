"""A host that answers what it likes is in ERROR, and the hosts beside it are judged and reported as ever."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.fuzz.hostile import TOKEN, frame, last, output, probe_output, session, write_ssh
from tests.plugin.conftest import run_pytest

BOOT = {"": {"id": {"t": "b"}}}
DEEP = b"[" * 100000 + b"]" * 100000
WAYS = {
    "last-frame-empty-object": session(probe_output({}), end=frame(b"x", b"{}")),
    "last-frame-list": session(probe_output({}), end=frame(b"x", b"[]")),
    "last-frame-no-utf8": session(probe_output({}), end=frame(b"x", b"\xff\xfe")),
    "last-frame-deep": session(probe_output({}), end=frame(b"x", DEEP[:60000])),
    "last-frame-null-status": session(probe_output({}), end=last(None)),
    "last-frame-text-status": session(probe_output({}), end=last("0")),
    "last-frame-nan": session(probe_output({}), end=frame(b"x", b'{"status": NaN, "timed_out": false, "error": null}')),
    "last-frame-huge-number": session(probe_output({}), end=frame(b"x", b'{"status": ' + b"9" * 5000 + b"}")),
    "no-last-frame": session(probe_output({}), end=b""),
    "frame-of-4-gib": TOKEN + b"o\xff\xff\xff\xff" + b"x" * 100,
    "frame-of-no-kind": TOKEN + frame(b"?", b""),
    "no-token": b"hello\n",
    "nothing": b"",
    "noise-flood": b"x" * (9 << 20),
    "answer-deep": session(output(DEEP)),
    "answer-3000-brackets": session(
        output(b'{"schema": 1, "python": "3", "uid": 0, "answers": {"boot": ' + DEEP[:3000] + DEEP[-3000:] + b"}}")
    ),
    "answer-nested-reading": session(probe_output({"boot": {"": {"boot_id": {"t": [[["x"]]]}}}})),
    "answer-list": session(output(b"[]")),
    "answer-null": session(output(b"null")),
    "answer-no-utf8": session(output(b'{"schema": 1, "answers": {"\xff": 1}}')),
    "answer-surrogate": session(probe_output({"boot": {"": {"boot_id": {"t": "\ud800"}}}})),
    "answer-surrogate-name": session(probe_output({"boot": {"\udfff": {"boot_id": {"t": ""}}}})),
    "answer-of-another": session(probe_output({"nobody-asked": BOOT})),
    "answer-entries-list": session(probe_output({"boot": []})),
    "answer-node-text": session(probe_output({"boot": {"": "text"}})),
    "answer-reading-number": session(probe_output({"boot": {"": {"boot_id": 7}}})),
    "answer-text-and-error": session(probe_output({"boot": {"": {"boot_id": {"t": "a", "e": "b"}}}})),
    "answer-cut-below-zero": session(probe_output({"boot": {"": {"boot_id": {"t": "a", "cut": -1}}}})),
    "answer-refused-without-reason": session(probe_output({"boot": {"!": {}}})),
    "answer-without-readings": session(probe_output({"boot": {"": {}}})),
    "answer-without-answers": session(output(b'{"schema": 1, "python": "3", "uid": 0}')),
    "answer-infinite": session(probe_output({}, took_s=float("inf"))),
    "answer-flood": session(output(b" " * (17 << 20))),
    "status-1-with-noise": session(frame(b"e", b"\xff\x1b[31m" * 100), end=last(1)),
}
TEST = """
def test_kernel_release(gpu_kernel_release):
    assert gpu_kernel_release

def test_command_line(gpu_kernel_command_line):
    assert gpu_kernel_command_line
"""
CONFTEST = """
from pytest_gpuinfra.capture.capture import file, node

def pytest_gpuinfra_requests(config):
    return [node("mine", file("release", "/proc/sys/kernel/osrelease"))]
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_every_hostile_host_is_an_error_and_spoils_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    """All ways at once beside one good host: its items pass, all others are ERROR, and every report is written."""
    write_ssh(tmp_path / "bin", WAYS)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TEST)
    ended = run_pytest(
        tmp_path,
        *(f"--gpu-host={alias}" for alias in ("good", *WAYS)),
        *("test_it.py", "-q", "-p", "no:cacheprovider", "--gpu-connect-timeout=20", *workers),
        *("--gpu-recording=run.json", "--junitxml=junit.xml", "--alluredir=allure", "--gpu-summary=page.html"),
    )
    shown = ended.stdout + ended.stderr
    assert "INTERNALERROR" not in shown, shown[-3000:]
    assert "Traceback" not in shown, shown[-3000:]

    recording = json.loads((tmp_path / "run.json").read_bytes().decode())
    outcomes = {(one["host"], one["id"].partition("[")[0].rpartition("::")[2]): one for one in recording["results"]}
    assert len(outcomes) == 2 * (len(WAYS) + 1)
    for (alias, name), one in outcomes.items():
        assert one["outcome"] == ("passed" if alias == "good" else "error"), (alias, name, one)
    for (alias, _), one in outcomes.items():
        assert alias == "good" or "what to do" in one["message"] or alias in one["message"], one["message"]

    cases = ET.fromstring((tmp_path / "junit.xml").read_bytes()).findall(".//testcase")
    assert len(cases) == len(outcomes)
    results = [json.loads(file.read_bytes().decode()) for file in (tmp_path / "allure").glob("*-result.json")]
    assert sorted(one["status"] for one in results) == ["broken"] * 2 * len(WAYS) + ["passed"] * 2
    page = (tmp_path / "page.html").read_bytes().decode()
    assert all(alias in page for alias in ("good", *WAYS))
