"""
A service in a real docker container, its user hostile: nothing of it runs with more than the container's process has.

systemd does not run in a container without --privileged. What it would report of the unit comes from a stand-in for
systemctl of the container's root; the processes, users, capabilities, namespaces and filters are docker's own.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.conftest import run_pytest

from .docker import DockerHost
from .test_rights import GPUS, SERVE, SPACES, build, more, parse

pytestmark = pytest.mark.lab
NAME = "gpuinfra-rights"
OP = "1000:1000"
LIBRARIES, DRIVER = "usr/lib/x86_64-linux-gnu", ("libcuda.so.1", "libnvidia-ml.so.1")
DROP = "setpriv --reuid=1000 --regid=1000 --clear-groups"
SYSTEMCTL = """#!/bin/sh
id >>/marks/systemctl
pid=$(cat /run/service.pid)
case "$*" in
*UnitPath*) echo UnitPath=/etc/systemd/system;;
*show-environment*|*list-units*) ;;
*) printf '%s\\n' Id=serve.service LoadState=loaded ActiveState=active SubState=running Type=simple \\
    FragmentPath=/etc/systemd/system/serve.service NeedDaemonReload=no InvocationID= "MainPID=$pid" \\
    "ControlGroup=$(cut -d: -f3 /proc/$pid/cgroup | head -1)";;
esac
"""
START = """
umask 000
{drop} env LD_PRELOAD=/w/libpreload.so NCCL_NET_PLUGIN=/w/libpreload.so NCCL_P2P_DISABLE=1 GPUINFRA_MARKS=/marks \\
    /w/venv/bin/python /w/serve.py &
echo $! >/run/service.pid
wait
"""
KINDS: dict[str, tuple[list[str], str, str]] = {
    "user": (["--user", OP], "", ""),
    "root": ([], "", ""),
    "dropped": ([], DROP, "EACCES"),
    "dropped, traceable": (["--cap-add=SYS_PTRACE"], DROP, ""),
}
"""Options of docker, how the service is started, and why it is not run as; "" where it is."""
PLANT = """
set -e
mkdir -p /marks /w/venv/bin {packages} /etc/systemd/system
chmod 777 /run /marks
ln -sf /usr/bin/python3 /w/venv/bin/python
echo 'home = /usr/bin' >/w/venv/pyvenv.cfg
echo 'import ctypes; ctypes.CDLL("/w/libpreload.so")' >{packages}/evil.pth
printf '[Service]\\nExecStart=/w/venv/bin/python /w/serve.py\\n' >/etc/systemd/system/serve.service
chown -R 1000 /w
""".format(packages="/w/venv/lib/python3.11/site-packages")


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerHost]:
    """Give this machine with a docker daemon of its own, and an image "planted:1" in which everything lies."""
    with DockerHost() as host, pytest.MonkeyPatch.context() as patch:
        for name, value in host.environment.items():
            patch.setenv(name, value)
        folder = tmp_path_factory.mktemp("planted")
        build(folder)
        tree = tmp_path_factory.mktemp("tree")
        for place in ("w/libnccl.so.2", "w/libpreload.so", *(f"{LIBRARIES}/{name}" for name in DRIVER)):
            (tree / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / Path(place).name, tree / place)
        for place, text in (("w/serve.py", SERVE), ("w/plant.sh", PLANT), ("usr/bin/systemctl", SYSTEMCTL)):
            (tree / place).parent.mkdir(parents=True, exist_ok=True)
            (tree / place).write_text(text)
            (tree / place).chmod(0o755)
        host.docker("create", "--name", "planting", "--network=none", "ct:1", "sh", "/w/plant.sh")
        host.docker("cp", f"{tree}/.", "planting:/")
        host.docker("start", "-a", "planting")
        host.docker("commit", "planting", "planted:1")
        yield host
        host.docker("rm", "-f", "planting", NAME, check=False)


def own(docker: DockerHost) -> dict[str, str]:
    """Give what the service's process is, as this machine sees it."""
    inside = docker.docker("exec", NAME, "cat", "/run/service.pid")
    shown = docker.docker("inspect", "-f", "{{.State.Pid}}", NAME)
    (pid,) = [
        one
        for one in Path(f"/proc/{shown}/task/{shown}/children").read_text().split()
        if parse(Path(f"/proc/{one}/status").read_text())["NSpid"].split()[-1] == inside
    ]
    spaces = {f"ns/{one}": os.readlink(f"/proc/{pid}/ns/{one}") for one in SPACES}
    return {
        **parse(Path(f"/proc/{pid}/status").read_text()),
        **spaces,
        "root": str(os.stat(f"/proc/{pid}/root").st_ino),
    }


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, docker: DockerHost) -> Iterator[str]:
    """A running container of each kind."""
    options, drop, _ = KINDS[request.param]
    docker.docker(
        "run", "-d", "--name", NAME, "--network=none", "--cgroupns=host", *options, "planted:1", "sh", "-c",
        START.format(drop=drop),
    )  # fmt: skip
    limit = time.monotonic() + 20
    while "ready" not in docker.docker("exec", NAME, "ls", "/marks"):
        assert time.monotonic() < limit, docker.docker("logs", NAME)
        time.sleep(0.1)
    yield request.param
    docker.docker("rm", "-f", NAME)


def judge(docker: DockerHost, folder: Path, level: str) -> tuple[Mapping[str, dict[str, str]], list[dict[str, Any]]]:
    """Run the plugin as a user does; gives the marks by file, and the results."""
    docker.docker("exec", "--user=root", NAME, "sh", "-c", "rm -f /marks/*")
    (folder / "gpuinfra.toml").write_text(
        f"[hosts.x]\naddress = 'local'\ncontainer = 'docker:{NAME}'\nservice = 'serve'\n"
        "[hosts.x.expect]\npeer_access = 'blocked'\n[hosts.x.expect.service.environment]\nNCCL_PROTO = false\n"
        f"[[hosts.x.expect.devices]]\npci = {json.dumps(list(GPUS))}\ndriver = 'nvidia'\n"
    )
    ended = run_pytest(
        folder,
        *("--gpu-host=x", f"--gpu-level={level}", "--gpu-recording=judged.json", "-p", "no:cacheprovider", "-q"),
        *("-k", "all_reduce or torch or environment or variable or python"),
    )
    assert (folder / "judged.json").exists(), ended.stdout + ended.stderr
    names = docker.docker("exec", NAME, "sh", "-c", "ls /marks | grep ^lib || true").split()
    marks = {name: parse(docker.docker("exec", NAME, "cat", f"/marks/{name}")) for name in names}
    return marks, json.loads((folder / "judged.json").read_text())["results"]


@pytest.mark.parametrize("level", ["passive", "active"])
def test_nothing_of_a_containers_service_ran_with_more(
    level: str, kind: str, docker: DockerHost, tmp_path: Path
) -> None:
    """Each mark of its .pth, its LD_PRELOAD and its NCCL is as its process is, no more."""
    marks, results = judge(docker, tmp_path, level)
    service, reason = own(docker), KINDS[kind][2]

    wrong = {name: more(mark, service) for name, mark in marks.items()}
    assert {name: names for name, names in wrong.items() if names} == {}
    if reason:
        assert marks == {}
        assert any(one["outcome"] == "error" and reason in one["message"] for one in results), results
        assert not [one for one in results if one["outcome"] == "passed" and "all_reduce" in one["id"]]
    else:
        assert any("libpreload" in name for name in marks), results
        assert level == "passive" or any("libnccl" in name for name in marks), results
