"""An endpoint is asked where the service runs, over real ssh, and the way there leaves nothing open."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.image import LabError, require_root
from tests.lab.sshd import SshdHost
from tests.plugin.conftest import Judged, run_pytest
from tests.plugin.test_interrupts import ENDINGS, SLOW_TEST, interrupted, started, wait_for_file

pytestmark = pytest.mark.lab
SERVER = Path(__file__).with_name("tiny_server.py")
ADDRESS, PORT = "127.0.0.2", 30077


@pytest.fixture(scope="module", autouse=True)
def _root() -> None:
    try:
        require_root()
    except LabError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def host() -> Iterator[SshdHost]:
    """Give a host in whose network the model "right" is served."""
    with SshdHost("normal") as host:
        host.shell("cat >/run/server.py", stdin=SERVER.read_text())
        host.shell("printf '127.0.0.2 inference.internal\\n' >>/etc/hosts")
        serve = f"python3 -S /run/server.py 0.0.0.0 {PORT} right --closes-after-refusal"
        listens = f"(: </dev/tcp/127.0.0.1/{PORT}) 2>/dev/null"
        script = f"setsid {serve} </dev/null &>/dev/null & for n in {{1..200}}; do {listens} && exit; sleep 0.05; done"
        host.shell(["bash", "-c", f"{script}; exit 1"])
        yield host


def judge(directory: Path, host: SshdHost, address: str, *arguments: str) -> Judged:
    """Judge an endpoint of the host."""
    (directory / "gpuinfra.toml").write_text(
        f"[hosts.{host.alias}]\nendpoint = '{address}'\n[hosts.{host.alias}.expect.model]\nid = 'right'\n"
    )
    ended = run_pytest(
        directory,
        *(f"--gpu-ssh-config={host.ssh_config}", f"--gpu-host={host.alias}", "--gpu-recording=out.json"),
        *("-p", "no:cacheprovider", "-k", "endpoint", *arguments),
    )
    assert "Traceback" not in ended.stdout + ended.stderr
    return Judged(json.loads((directory / "out.json").read_text()), ended.returncode, ended.stdout + ended.stderr)


@contextmanager
def stranger() -> Iterator[None]:
    """Serve the model "wrong" under the same address and port on this machine."""
    process = subprocess.Popen([sys.executable, str(SERVER), ADDRESS, str(PORT), "wrong"])
    try:
        for _ in range(200):
            try:
                socket.create_connection((ADDRESS, PORT), 1.0).close()
                break
            except OSError:
                assert process.poll() is None
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", [ADDRESS, "inference.internal", "10.77.0.0"])
def test_address_is_the_one_of_the_host_and_not_of_the_controller(tmp_path: Path, host: SshdHost, name: str) -> None:
    """A server of this machine under the same address is not asked; names are resolved on the host."""
    address = host.address if name.startswith("10.") else name
    with stranger():
        judged = judge(tmp_path, host, f"http://{address}:{PORT}")
    outcomes = judged.of_host(host.alias)
    assert "test_model_is_the_expected_one[]" in outcomes.ended("passed"), judged.output
    assert outcomes.ended("failed", "error") == [], judged.output


def test_name_that_only_the_controller_knows_is_not_reached(tmp_path: Path, host: SshdHost) -> None:
    """What is not there where the service runs is not there."""
    outcomes = judge(tmp_path, host, f"http://nowhere.invalid:{PORT}").of_host(host.alias)
    assert outcomes.ended("failed") == ["test_endpoint_is_ready[]"]
    assert "gaierror" in outcomes.messages["test_endpoint_is_ready[]"]


def test_healthy_host_ends_well_where_every_warning_is_an_error(tmp_path: Path, host: SshdHost) -> None:
    """Four runs through a tunnel, to a server that closes after each refusal: every socket is closed by us."""
    for _ in range(4):
        judged = judge(tmp_path, host, f"http://127.0.0.1:{PORT}", "-Werror")
        assert judged.of_host(host.alias).ended("failed", "error") == [], judged.output
        assert judged.exit_status == 0, judged.output
    held = host.shell("ss -Htan state established state close-wait '( sport = :30077 or dport = :30077 )'").stdout
    assert held == ""


@pytest.mark.parametrize("signals", ENDINGS)
def test_interrupted_over_ssh(tmp_path: Path, host: SshdHost, signals: tuple[signal.Signals, ...]) -> None:
    """A command on a real host: what it started there is gone, and so is the connection here."""
    (tmp_path / "test_own.py").write_text(SLOW_TEST)
    before = host.processes()
    options = (f"--gpu-ssh-config={host.ssh_config}", f"--gpu-host={host.alias}")
    with started(tmp_path, *options, "test_own.py") as (process, private):
        wait_for_file(tmp_path / "up", process)
        assert any("sleep 4733" in line for line in host.processes())
        ended = interrupted(tmp_path, process, private, *signals)
    assert ended.status == pytest.ExitCode.INTERRUPTED
    assert [result["outcome"] for result in ended.recording["results"]] == ["passed"]  # type: ignore[attr-defined]
    limit = time.monotonic() + 10
    while host.processes() != before and time.monotonic() < limit:
        time.sleep(0.05)
    assert host.processes() == before
    assert host.shell("find /tmp /var/tmp /dev/shm /root -newer /run/server.py -type f").stdout == ""


@pytest.mark.parametrize("signals", ENDINGS)
def test_interrupted_in_a_request_through_the_tunnel(
    tmp_path: Path, host: SshdHost, signals: tuple[signal.Signals, ...]
) -> None:
    """A server that answers nothing: the run does not wait for it, and its connection is closed there."""
    script = f"import socket, time; s = socket.create_server(('127.0.0.1', {PORT + 1})); time.sleep(1e9)"
    host.shell(f'setsid python3 -S -c "{script}" </dev/null >/dev/null 2>&1 &')
    before = host.processes()
    options = (f"--gpu-ssh-config={host.ssh_config}", f"--gpu-host={host.alias}", "-k", "endpoint")
    with started(tmp_path, *options, f"--gpu-endpoint=http://127.0.0.1:{PORT + 1}") as (process, private):
        limit = time.monotonic() + 60
        while f":{PORT + 1}" not in host.shell("ss -Htn state established").stdout:
            assert time.monotonic() < limit
            time.sleep(0.05)
        ended = interrupted(tmp_path, process, private, *signals)
    assert ended.status == pytest.ExitCode.INTERRUPTED
    limit = time.monotonic() + 10
    while set(host.processes()) - set(before) and time.monotonic() < limit:
        time.sleep(0.05)
    assert set(host.processes()) - set(before) == set()
    host.shell("pkill -f '[c]reate_server'; true")
