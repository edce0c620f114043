"""--gpu-reboot: where it is refused, and how long and for what a host is waited for; nothing is rebooted here."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import pytest

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.connection.pipe import PipeConnection
from pytest_gpuinfra.connection.ssh import SshConnection
from pytest_gpuinfra.errors import ProbeError, UnreachableError
from pytest_gpuinfra.gather.reboot import (
    Standing,
    Waiting,
    _missing,
    look,
    not_back,
    own_boot_id,
    reboot,
    reboot_and_wait,
)
from pytest_gpuinfra.inventory.inventory import HostSpec, parse_inventory
from tests.plugin.conftest import run_pytest
from tests.report.made import REFERENCE

NOTHING = parse_inventory({"hosts": {"here": {}}}, "x").hosts["here"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu-host=root@192.0.2.1"], "--gpu-reboot needs --gpu-level=disruptive"),
        (["--gpu-host=root@192.0.2.1", "--gpu-level=active"], "--gpu-reboot needs --gpu-level=disruptive"),
        (["--gpu-host=local", "--gpu-level=disruptive"], "local is this machine"),
        ([f"--gpu-host=replay:{REFERENCE}", "--gpu-level=disruptive"], "node-a is replayed from a recording"),
        (["--gpu-host=here", "--gpu-level=disruptive"], "here is this machine"),
        (["--gpu-host=root@192.0.2.1", "--gpu-level=disruptive", "--collect-only"], "--collect-only"),
    ],
)
def test_reboot_is_refused_before_any_host_is_touched(arguments: list[str], words: str, tmp_path: Path) -> None:
    """Status 4, with what is wrong; also for a declared host whose address is "local"."""
    (tmp_path / "gpuinfra.toml").write_text('[hosts.here]\naddress = "local"\n')
    ended = run_pytest(tmp_path, "--gpu-reboot", "--gpu-recording=none", "-p", "no:cacheprovider", *arguments)
    assert ended.returncode == 4, ended.stdout + ended.stderr
    assert words in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


def test_host_that_is_not_reached_is_not_rebooted_and_is_error(tmp_path: Path) -> None:
    """Nothing is done to it; the run is not judged."""
    ended = run_pytest(
        tmp_path,
        *("--gpu-host=ssh://root@127.0.0.1:1", "--gpu-level=disruptive", "--gpu-reboot", "--gpu-recording=out.json"),
        *("-q", "-p", "no:cacheprovider", "-k", "rebooted"),
    )
    (result,) = json.loads((tmp_path / "out.json").read_text())["results"]
    assert (ended.returncode, result["outcome"]) == (6, "error")
    assert "not rebooted, since it was not reached: nothing listens on its ssh port" in result["message"]


def here() -> PipeConnection:
    """Give a connection to this machine."""
    return LocalConnection("here")


def waiting(seconds: float, told: list[str], spec: HostSpec = NOTHING) -> Waiting:
    """Wait for this machine."""
    return Waiting(here, spec, time.monotonic() + seconds, told.append)


def test_look_tells_the_boot_and_what_is_missing() -> None:
    """Of this machine, and of one without a container that is declared."""
    connection = here()
    try:
        assert look(connection, NOTHING).boot_id == own_boot_id() != ""
        declared = parse_inventory({"hosts": {"here": {"container": "nspawn:nobody"}}}, "x").hosts["here"]
        standing = look(connection, declared)
    finally:
        connection.close()
    assert standing.container_missing
    assert "nspawn:nobody cannot be entered" in standing.missing


@pytest.mark.parametrize(
    ("jobs", "own", "missing"),
    [
        ("", "", "systemd is starting"),
        ("1 a.service start running\n2 b.service start waiting\n", "", "systemd is starting, 2 jobs left: a.service, "),
        ("1 mine.service start running\n2 b.target start waiting\n", "mine.service", ""),
        ("1 mine.service start running\n2 b.service start running\n", "mine.service", "systemd is starting, 1 jobs"),
    ],
)
def test_unit_that_judges_at_boot_does_not_wait_for_itself(jobs: str, own: str, missing: str) -> None:
    """It is one of the jobs of the start, as systemd lists them, and others may wait for it."""
    readings = {"system": Reading("", "starting\n"), "jobs": Reading("", jobs)}
    assert _missing(readings, "systemd", own).startswith(missing)
    assert bool(_missing(readings, "systemd", own)) is bool(missing)


def test_wait_for_another_boot_is_bounded() -> None:
    """A machine that does not reboot is given up, and told as it is."""
    told: list[str] = []
    connection, standing = waiting(8.0, told).until_back(not_boots=(own_boot_id(),))
    connection.close()
    assert standing.missing == f"not rebooted yet, still the boot {own_boot_id()}"
    assert standing.error is None
    assert told
    assert all("not rebooted yet" in line and "s left" in line for line in told)


def test_slow_login_is_waited_for_and_missing_python_is_not() -> None:
    """The first comes to an end while a host boots, the second does not."""
    reasons = {
        "a: no python3 had started there within 30 s": False,
        "a: nothing listens on its ssh port": False,
        "a: the target has no python3 in its PATH": True,
    }
    for reason, hopeless in reasons.items():
        assert Standing("", reason, ("ProbeError", reason, "")).hopeless is hopeless, reason


def test_wait_ends_when_it_is_stopped() -> None:
    """Ctrl-C does not wait for the deadline."""
    stopped = threading.Event()
    waits = Waiting(here, NOTHING, time.monotonic() + 600, lambda line: stopped.set(), stopped)
    connection, standing = waits.until_back(not_boots=(own_boot_id(),))
    connection.close()
    assert standing.boot_id == own_boot_id()


def test_this_machine_is_never_told_to_reboot() -> None:
    """Whatever it is called."""
    connection = here()
    try:
        with pytest.raises(ProbeError, match="boot id of the machine that pytest runs on"):
            reboot(connection, own_boot_id())
    finally:
        connection.close()
    with pytest.raises(ProbeError, match="boot id of the machine that pytest runs on"):
        reboot_and_wait(waiting(1.0, []), "here")


def test_closed_port_is_waited_for_and_told() -> None:
    """Nothing listens; the last thing seen is told, and that the host is not back."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    told: list[str] = []
    waits = Waiting(
        lambda: SshConnection("away", f"ssh://root@127.0.0.1:{port}"), NOTHING, time.monotonic() + 8.0, told.append
    )
    connection, standing = waits.until_back()
    connection.close()
    assert standing.error is not None
    assert "nothing listens on its ssh port" in standing.missing
    assert told
    error = not_back("away", standing, 900.4)
    assert isinstance(error, UnreachableError)
    assert "rebooted, and not back within 900 s; last seen: nothing listens on its ssh port" in error.reason
    assert "--gpu-wait" in error.remedy
