"""Real sshd hosts: each way of being reached badly has its own clear ending, and nothing is left there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.lab.image import LabError, require_root
from tests.lab.sshd import SshdHost
from tests.plugin.conftest import Judged, run_pytest

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module", autouse=True)
def _root() -> None:
    try:
        require_root()
    except LabError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def normal() -> Iterator[SshdHost]:
    """Give a host with nothing special about it."""
    with SshdHost("normal") as host:
        yield host


def judge(directory: Path, host: SshdHost, *arguments: str) -> Judged:
    """Judge a host by our own suites, as its user would."""
    ended = run_pytest(
        directory,
        f"--gpu-ssh-config={host.ssh_config}",
        f"--gpu-host={host.alias}",
        *("--gpu-recording=judged.json", "-p", "no:cacheprovider"),
        *arguments,
    )
    recording = json.loads((directory / "judged.json").read_text())
    assert "Traceback" not in ended.stdout + ended.stderr
    return Judged(recording, ended.returncode, ended.stdout + ended.stderr)


@pytest.fixture(scope="module")
def outcomes_of_normal(normal: SshdHost, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Give the endings of the host with nothing special about it."""
    return judge(tmp_path_factory.mktemp("normal"), normal).of_host(normal.alias).outcomes


def test_healthy_host_is_reached_in_one_round_trip(tmp_path: Path, normal: SshdHost) -> None:
    """The header says how it was reached; sshd saw one connection and one command; nothing is left there."""
    before = normal.processes()
    judged = judge(tmp_path, normal)
    assert judged.of_host(normal.alias).ended("failed") == []
    assert judged.recording["hosts"][normal.alias]["capture"]["round_trips"] == 1  # type: ignore[index]
    wait_for(lambda: normal.processes() == before, 5)
    assert normal.shell("find /tmp /var/tmp /dev/shm /root -newer /lab-init -type f").stdout == ""


BADLY = {
    "port-closed": "nothing listens on its ssh port",
    "key-refused": "the login was refused",
    "host-key-unknown": "its host key is not known here",
    "host-key-changed": "its host key is not the one in known_hosts: another machine may answer in its place",
    "no-python": "the target has no python3 in its PATH",
    "nologin": "the login worked, but python3 did not start",
    "max-sessions-0": "",
    "python-broken": "",
}


@pytest.mark.parametrize("variant", BADLY)
def test_host_that_cannot_be_asked_is_error_with_its_reason(tmp_path: Path, variant: str) -> None:
    """Never a pass, never a failure, never a traceback; the reason and the command to try by hand are there."""
    with SshdHost(variant) as host:
        judged = judge(tmp_path, host)
        outcomes = judged.of_host(host.alias)
        assert outcomes.ended("passed", "failed") == []
        assert outcomes.ended("error")
        assert judged.exit_status == 6
        message = next(message for name, message in outcomes.messages.items() if name in outcomes.ended("error"))
        assert BADLY[variant] in message
        assert "what to do:" in message
        assert f"{host.alias} NOT REACHED" in judged.output


@pytest.mark.parametrize("variant", ["silent", "hanging-shell"])
def test_host_that_never_answers_ends_at_the_deadline(tmp_path: Path, variant: str) -> None:
    """The time for connecting covers a login shell that hangs."""
    with SshdHost(variant) as host:
        started = time.monotonic()
        judged = judge(tmp_path, host, "--gpu-connect-timeout=3")
        assert time.monotonic() - started < 25
        outcomes = judged.of_host(host.alias)
        assert outcomes.ended("passed", "failed") == []
        assert outcomes.ended("error")
        assert "--gpu-connect-timeout" in judged.output or "did not answer in time" in judged.output


@pytest.mark.parametrize(
    "variant",
    [
        *("noisy", "noisy-long", "slow-shell", "csh", "no-sbin", "other-port", "max-sessions-1", "max-startups-1"),
        *("python37", "python39", "disk-full", "read-only", "no-forwarding"),
    ],
)
def test_odd_host_is_judged_like_any_other(tmp_path: Path, variant: str, outcomes_of_normal: Mapping[str, str]) -> None:
    """Noise, slowness, old Python, another shell, a full disk: the items end as on the normal host."""
    with SshdHost(variant) as host:
        assert judge(tmp_path, host).of_host(host.alias).outcomes == outcomes_of_normal


def test_commands_work_beside_each_other_where_sshd_allows_one_session(tmp_path: Path) -> None:
    """MaxSessions 1: a second command at the same time finds its way."""
    code = (
        "import sys, threading\n"
        "from pytest_gpuinfra.connection.ssh import SshConnection, close_sockets\n"
        "c = SshConnection('h', sys.argv[2], config=sys.argv[1]); out = []\n"
        "def one(n): out.append(c.run(['sh', '-c', f'sleep 1; echo {n}']).stdout.strip())\n"
        "threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]; c.close(); close_sockets()\n"
        "print(sorted(out))"
    )
    with SshdHost("max-sessions-1") as host:
        ended = subprocess.run(
            [sys.executable, "-c", code, str(host.ssh_config), host.alias], capture_output=True, text=True, check=False
        )
        assert ended.stdout == "['0', '1', '2', '3']\n", ended.stderr


NEED_THE_WHOLE_LOG = (
    "test_no_gpu_fault_without_a_known_device[]",
    "test_no_fault_by_another_device[]",
    "test_no_machine_check_and_no_memory_kill[]",
    "test_no_fault_that_no_other_check_judges[]",
    "test_every_error_by_a_driver_is_known[]",
)
"""ERROR on a machine whose ring buffer has lost its beginning, as this one's may have."""


def test_one_bad_host_never_disturbs_the_others(tmp_path: Path, normal: SshdHost) -> None:
    """A host that does not exist is ERROR for itself; the other is judged; the exit status is not zero."""
    (tmp_path / "gpuinfra.toml").write_text("[defaults.expect]\nkernel_release = '*'\n")
    ended = run_pytest(
        tmp_path,
        f"--gpu-ssh-config={normal.ssh_config}",
        *("--gpu-host=nosuchhost.invalid", f"--gpu-host={normal.alias}", "--gpu-host=local"),
        *("--gpu-recording=judged.json", "-q", "-p", "no:cacheprovider"),
    )
    judged = Judged(json.loads((tmp_path / "judged.json").read_text()), ended.returncode, ended.stdout)
    assert judged.exit_status != 0
    assert judged.of_host("nosuchhost.invalid").ended("passed", "failed") == []
    assert judged.of_host("nosuchhost.invalid").ended("error")
    assert judged.of_host("local").ended("failed") == []
    assert set(judged.of_host("local").ended("error")) <= set(NEED_THE_WHOLE_LOG)
    assert "test_kernel_release_is_the_expected_one[]" in judged.of_host("local").ended("passed")
    assert "test_kernel_release_is_the_expected_one[]" in judged.of_host(normal.alias).ended("passed")
    assert "no such host name" in judged.output


def test_what_needs_root_is_error_for_a_user_and_read_by_sudo(tmp_path: Path) -> None:
    """As a plain user, what cannot be read says what would make it readable; with --gpu-sudo it is read."""
    (tmp_path / "test_own.py").write_text(
        "def test_it(gpu_facts, gpu_evidence):\n"
        "    text = gpu_facts.answer('mine')['shadow'].require(remedy='look by --gpu-sudo')\n"
        "    gpu_evidence.attach('shadow', str(len(text)))\n"
        "    assert text\n"
    )
    (tmp_path / "conftest.py").write_text(
        "from pytest_gpuinfra.capture.capture import file, node\n"
        "def pytest_gpuinfra_requests(config):\n    return [node('mine', file('shadow', '/etc/shadow'))]\n"
    )
    with SshdHost("sudo") as host:
        plain = judge(tmp_path, host, "test_own.py")
        assert plain.of_host(host.alias).outcomes == {"test_it[]": "error"}
        assert "EACCES" in plain.of_host(host.alias).messages["test_it[]"]
        assert "as uid 1000" in plain.output
        by_sudo = judge(tmp_path, host, "--gpu-sudo", "test_own.py")
        assert by_sudo.of_host(host.alias).outcomes == {"test_it[]": "passed"}
    with SshdHost("sudo-password") as host:
        refused = judge(tmp_path, host, "--gpu-sudo", "test_own.py")
        assert refused.of_host(host.alias).outcomes == {"test_it[]": "error"}
        assert "sudo -n refused" in refused.output


def test_killed_controller_leaves_nothing_on_the_target(tmp_path: Path, normal: SshdHost) -> None:
    """kill -9 of pytest in the middle of a command: no process of it is left there, and no control socket here."""
    (tmp_path / "test_own.py").write_text(
        "def test_it(gpu_host):\n"
        "    gpu_host.run('sh', '-c', 'sleep 4711 & setsid sleep 4712 & echo up; wait',\n"
        "                 on_output=lambda *_: open('up', 'w').close())\n"
    )
    undisturbed = normal.processes()
    with tempfile.TemporaryDirectory(prefix="gi-", dir="/tmp") as private:
        controller = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_own.py"),
                *(f"--gpu-ssh-config={normal.ssh_config}", f"--gpu-host={normal.alias}"),
            ],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": private},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for((tmp_path / "up").exists, 30)
        assert any("sleep 4712" in line for line in normal.processes())
        assert list(Path(private).glob("gpuinfra-*/*"))
        controller.send_signal(signal.SIGKILL)
        controller.wait()
        wait_for(lambda: normal.processes() == undisturbed, 10)
        wait_for(lambda: not list(Path(private).glob("gpuinfra-*")), 10)


def wait_for(condition: Callable[[], bool], timeout_s: float) -> None:
    """Wait until a condition holds; fail at the deadline."""
    limit = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_login_begun_before_a_usage_error_is_ended(
    tmp_path: Path, normal: SshdHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad option shows itself once the login has begun: no session stays there, no control socket here."""
    undisturbed = normal.processes()
    with tempfile.TemporaryDirectory(prefix="gi-", dir="/tmp") as private:
        monkeypatch.setenv("TMPDIR", private)
        ended = run_pytest(
            tmp_path,
            *(f"--gpu-ssh-config={normal.ssh_config}", f"--gpu-host={normal.alias}", "--gpu-baseline=nosuch.json"),
        )
        assert ended.returncode == pytest.ExitCode.USAGE_ERROR
        assert "nosuch.json" in ended.stderr
        wait_for(lambda: not list(Path(private).glob("gpuinfra-*")), 5)
    wait_for(lambda: normal.processes() == undisturbed, 5)


def test_replay_gives_the_same_endings_item_by_item(tmp_path: Path, normal: SshdHost) -> None:
    """The recording of a live run, judged again, ends the same, in the same order; errors and skips included."""
    (tmp_path / "gpuinfra.toml").write_text(
        f"[hosts.{normal.alias}.expect]\nkernel_release = 'no such'\nkernel_command_line = {{ has = ['nosuch=1'] }}\n"
        "driver_parameters = { DmaRemapPeerMmio = 1 }\nunits = { 'ssh.service' = 'active' }\n"
        f"files_absent = ['/etc/passwd', '/nope']\n[[hosts.{normal.alias}.expect.devices]]\npci = ['01:00.0']\n"
        "driver = 'nvidia'\n"
    )
    live = judge(tmp_path, normal)
    assert {"passed", "failed", "error", "skipped"} == set(live.of_host(normal.alias).outcomes.values())
    ended = run_pytest(
        tmp_path, "--gpu-host=replay:judged.json", "--gpu-recording=again.json", "-q", "-p", "no:cacheprovider"
    )
    again = Judged(json.loads((tmp_path / "again.json").read_text()), ended.returncode, ended.stdout)
    assert list(again.of_host(normal.alias).outcomes.items()) == list(live.of_host(normal.alias).outcomes.items())
    assert again.of_host(normal.alias).messages == live.of_host(normal.alias).messages
