"""Logins that begin before all else: no more hosts than were asked for, no more at once, and none twice."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.plugin.conftest import run_pytest

NOTING = """#!/bin/sh
for word; do host=$last; last=$word; done
echo "+ $host" >>{log}
sleep 0.5
{ssh} "$@"
status=$?
echo "- $host" >>{log}
exit $status
"""
"""The real client, with a note of when it begins and ends, and for whom."""

TEST = "def test_release(gpu_kernel_release):\n    assert gpu_kernel_release\n"
HOSTS = tuple(f"u@127.0.0.{number}" for number in range(1, 9))


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a directory with a test, hosts on a port that nobody listens on, and a client that takes notes."""
    client = shutil.which("ssh")
    if client is None:
        pytest.skip("there is no ssh client")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(NOTING.format(ssh=client, log=tmp_path / "log"))
    (tmp_path / "bin" / "ssh").chmod(0o755)
    (tmp_path / "config").write_text("Host *\n  Port 1\n")
    (tmp_path / "test_own.py").write_text(TEST)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return tmp_path


def reached(directory: Path, *arguments: str) -> tuple[Counter[str], int, set[str]]:
    """Judge all hosts; gives the logins of each, the most at the same time, and the hosts that have results."""
    ended = run_pytest(
        directory,
        *(f"--gpu-host={host}" for host in HOSTS),
        *(f"--gpu-ssh-config={directory}/config", "--gpu-recording=judged.json", "-p", "no:cacheprovider"),
        *(*arguments, "test_own.py"),
    )
    assert ended.returncode == 6, ended.stdout + ended.stderr
    logins: Counter[str] = Counter()
    running = most = 0
    for line in (directory / "log").read_text().splitlines():
        sign, _, host = line.partition(" ")
        if host in HOSTS:
            logins[host] += sign == "+"
            running += 1 if sign == "+" else -1
            most = max(most, running)
    results = json.loads((directory / "judged.json").read_text())["results"]
    assert {result["outcome"] for result in results} == {"error"}
    return logins, most, {result["host"] for result in results}


def test_every_host_is_logged_in_to_once(directory: Path) -> None:
    """The login that began early is the one that the capture uses."""
    logins, most, judged = reached(directory)
    assert set(logins) == set(HOSTS)
    assert set(logins.values()) == {1}
    assert most > 2
    assert len(judged) == len(HOSTS)


def test_no_more_at_once_than_asked_for(directory: Path) -> None:
    """--gpu-parallel holds for them, too."""
    logins, most, _ = reached(directory, "--gpu-parallel=2")
    assert set(logins.values()) == {1}
    assert len(logins) == len(HOSTS)
    assert most <= 2


def test_hosts_of_other_shares_are_left_alone(directory: Path) -> None:
    """--gpu-shard: nobody logs in to what another process judges."""
    logins, _, judged = reached(directory, "--gpu-shard=1/2")
    assert 0 < len(logins) < len(HOSTS)
    assert {host.removeprefix("u@") for host in logins} == judged


def test_workers_log_in_to_none_again(directory: Path) -> None:
    """With xdist the controller captures, once."""
    logins, _, judged = reached(directory, "-n2")
    assert set(logins.values()) == {1}
    assert len(logins) == len(judged) == len(HOSTS)
