"""Ctrl-C and SIGTERM at many moments: what was gathered is written, no traceback of ours, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_gpuinfra.record.recording import RecordedHost, Recording, read_recording, write_recording
from tests.endpoint.servers import Reply, Server
from tests.plugin.conftest import REFERENCE, STRICT, strict_environment

GIVES_UP_S = 30.0
"""Until a run that was interrupted must be over on a machine under any load; it takes less than 3 s on an idle one."""


@dataclass(frozen=True)
class Ended:
    """A run that was interrupted."""

    status: int
    output: str
    took_s: float
    directory: Path

    @property
    def recording(self) -> Mapping[str, object]:
        """What it wrote."""
        found: Mapping[str, object] = json.loads((self.directory / "out.json").read_text())
        return found


@contextmanager
def started(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a real pytest in a session of its own; gives it and its folder for temporary files."""
    with tempfile.TemporaryDirectory(prefix="gi-", dir="/tmp") as private:
        with (directory / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pytest", *STRICT, "-p", "no:cacheprovider", "--gpu-recording=out.json"),
                    *("--junitxml=junit.xml", "--gpu-summary=page.md", *arguments),
                ],
                cwd=directory,
                env={**strict_environment(), "TMPDIR": private, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process, Path(private)
        finally:
            process.kill()
            process.wait()


def wait_for_file(path: Path, process: subprocess.Popen[bytes], text: str = "") -> None:
    """Wait until a run has come to a moment."""
    limit = time.monotonic() + 60
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < limit
        assert process.poll() is None, (path.parent / "output.txt").read_text()
        time.sleep(0.01)


def wait_for_local_answer(process: subprocess.Popen[bytes]) -> None:
    """Wait until this machine has answered: the session with it is over."""
    limit = time.monotonic() + 60
    while any("fromhex" in line for line in processes_of(process.pid, children=True)):
        assert time.monotonic() < limit
        time.sleep(0.05)
    time.sleep(0.5)


def interrupted(
    directory: Path, process: subprocess.Popen[bytes], private: Path, *signals: signal.Signals, group: bool = False
) -> Ended:
    """Send signals, wait for the end, and see that nothing is left of the run."""
    began = time.monotonic()
    for number in signals:
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        time.sleep(0.1)
    status = process.wait(GIVES_UP_S)
    took_s = time.monotonic() - began
    output = (directory / "output.txt").read_text()
    print(f"ended {took_s:.2f} s after {', '.join(number.name for number in signals)}")
    assert "Traceback" not in output, output
    assert "ResourceWarning" not in output, output
    assert "may take traffic" not in output + (directory / "page.md").read_text()
    limit = time.monotonic() + 5  # the watchdog of the control sockets ends beside the run
    while (left := list(private.glob("gpuinfra-*"))) and time.monotonic() < limit:
        time.sleep(0.05)
    assert left == []
    assert processes_of(process.pid) == []
    ElementTree.parse(directory / "junit.xml")
    return Ended(status, output, took_s, directory)


def processes_of(session: int, *, children: bool = False) -> list[str]:
    """Give the command lines of what runs in a session, or as a child of its first process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[1 if children else 3]) == session:
                found.append((entry / "cmdline").read_text())
    return found


SLOW_TEST = """
import pathlib, time
def test_first(gpu_kernel_release):
    assert gpu_kernel_release
def test_slow(gpu_host, gpu_evidence):
    gpu_host.run("sh", "-c", "sleep 4733 & echo up; wait", on_output=lambda *_: pathlib.Path("up").touch())
"""

ENDINGS = [
    pytest.param((signal.SIGINT,), id="once"),
    pytest.param((signal.SIGINT, signal.SIGINT), id="twice"),
    pytest.param((signal.SIGTERM,), id="SIGTERM"),
]


@pytest.mark.parametrize("signals", ENDINGS)
def test_during_a_command(tmp_path: Path, signals: tuple[signal.Signals, ...]) -> None:
    """What passed before is written, and the host is not said to be judged; the command is gone."""
    (tmp_path / "test_own.py").write_text(SLOW_TEST)
    with started(tmp_path, "--gpu-host=local", "test_own.py") as (process, private):
        wait_for_file(tmp_path / "up", process)
        ended = interrupted(tmp_path, process, private, *signals)
    assert ended.status == pytest.ExitCode.INTERRUPTED
    assert ended.recording["exit_status"] == pytest.ExitCode.INTERRUPTED
    assert [result["outcome"] for result in ended.recording["results"]] == ["passed"]  # type: ignore[attr-defined]
    assert "interrupted, not judged in full" in ended.output
    assert "interrupted, not judged in full" in (tmp_path / "page.md").read_text()
    assert not any("4733" in line for line in subprocess.check_output(["ps", "-eo", "args="], text=True).splitlines())


@pytest.fixture
def hanging_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with an ssh that hangs in its login and takes no SIGTERM; each call leaves a mark."""
    stand_in = tmp_path / "bin" / "ssh"
    stand_in.parent.mkdir()
    stand_in.write_text('#!/bin/sh\ntrap "" TERM\necho called >>"$0.called"\nexec sleep 4744\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}:{os.environ['PATH']}")
    return stand_in.parent


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.parametrize("signals", ENDINGS)
def test_during_captures(
    tmp_path: Path, hanging_ssh: Path, signals: tuple[signal.Signals, ...], workers: tuple[str, ...]
) -> None:
    """Logins of forty hosts hang; the host that had answered is in the recording, the others with why they are not."""
    (tmp_path / "gpuinfra.toml").write_text("[hosts.here]\naddress = 'local'\n[hosts.'node[01-40]']\n")
    with started(tmp_path, "--gpu-host=all", *workers) as (process, private):
        wait_for_file(hanging_ssh / "ssh.called", process, "called\n" * 30)
        wait_for_local_answer(process)
        ended = interrupted(tmp_path, process, private, *signals)
    hosts = ended.recording["hosts"]
    assert ended.status == pytest.ExitCode.INTERRUPTED
    assert len(hosts) == 41  # type: ignore[arg-type]
    assert hosts["here"]["capture"]["error"] is None  # type: ignore[index]
    assert "the run was interrupted" in hosts["node07"]["capture"]["error"][1]  # type: ignore[index]
    assert not any("4744" in line for line in subprocess.check_output(["ps", "-eo", "args="], text=True).splitlines())


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.parametrize("signals", ENDINGS)
def test_during_requests(tmp_path: Path, signals: tuple[signal.Signals, ...], workers: tuple[str, ...]) -> None:
    """A server that is silent: what it had answered to is in the recording."""
    began = tmp_path / "began"

    def answer(request: object) -> Reply:
        began.touch()
        return Reply(wait_s=600)

    with (
        Server(answer) as server,
        started(tmp_path, "--gpu-host=local", f"--gpu-endpoint={server.base_url}", *workers) as (process, private),
    ):
        wait_for_file(began, process)
        ended = interrupted(tmp_path, process, private, *signals)
    assert ended.status == pytest.ExitCode.INTERRUPTED
    assert "interrupted, not judged in full" in ended.output


def test_ctrl_c_of_a_terminal_reaches_workers_too(tmp_path: Path) -> None:
    """A terminal sends the signal to all processes of the run, once both workers have collected."""
    (tmp_path / "test_own.py").write_text(SLOW_TEST)
    (tmp_path / "conftest.py").write_text(
        "import os, pathlib\n"
        "def pytest_collection_finish():\n"
        "    pathlib.Path(os.environ.get('PYTEST_XDIST_WORKER', 'controller')).touch()\n"
    )
    with started(tmp_path, "--gpu-host=local", "-n", "2", "test_own.py") as (process, private):
        for name in ("up", "gw0", "gw1"):
            wait_for_file(tmp_path / name, process)
        ended = interrupted(tmp_path, process, private, signal.SIGINT, signal.SIGINT, group=True)
    assert ended.status == pytest.ExitCode.INTERRUPTED
    assert [result["outcome"] for result in ended.recording["results"]] == ["passed"]  # type: ignore[attr-defined]


def test_while_reports_are_written_changes_nothing(tmp_path: Path) -> None:
    """They are written to their end, and the run ends as it would have."""
    recorded = read_recording(REFERENCE / "recording.json").hosts["node-a"]
    write_recording(tmp_path / "hosts.json", Recording({"node-a": RecordedHost(recorded.spec, recorded.capture)}))
    (tmp_path / "conftest.py").write_text(
        "import os, signal, pytest\n"
        "@pytest.hookimpl(wrapper=True)\n"
        "def pytest_terminal_summary():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n    os.kill(os.getpid(), signal.SIGINT)\n    yield\n"
    )
    with started(tmp_path, "--gpu-host=replay:hosts.json", "-k", "kernel_release") as (process, _):
        assert process.wait(60) in (0, 1, 6)
    output = (tmp_path / "output.txt").read_text()
    assert "Traceback" not in output
    assert "recording: out.json" in output
