"""Whatever of a service's own is run, at every level, runs as the service: users, capabilities, namespaces, root."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import SHAM
from tests.gpu.sham.build import build_sham
from tests.plugin.conftest import run_pytest

from .nspawn import NspawnHost

pytestmark = pytest.mark.lab
WITNESS = Path(__file__).parent / "witness.c"
SPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
GPUS = ("0000:01:00.0", "0000:11:00.0")
ENDS = "rank_die,rank=1"
"""A rank ends at the first sum: what is looked at has been written down by then."""

# Maps a planted NCCL, and writes over its own command line, as setproctitle does.
SERVE = """
import ctypes, os, sys, time
held = ctypes.CDLL("/w/libnccl.so.2")
if len(sys.argv) > 1:
    name = sys.argv[1].replace("PID", str(os.getpid())).encode()
    with open("/proc/self/stat") as file:
        start = int(file.read().rpartition(")")[2].split()[45])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(name + b"\\0")
open(os.environ["GPUINFRA_MARKS"] + "/ready", "w").close()
time.sleep(3600)
"""
SERVICE = "[Service]\nEnvironment=NCCL_P2P_DISABLE=1\nEnvironment="
PAD = "x" * 60  # room for a longer name
CAGE = (
    "RootDirectory=/srv/cage\nMountAPIVFS=yes\nPrivateTmp=yes\nCapabilityBoundingSet=\nNoNewPrivileges=yes\n"
    "BindPaths=/marks\nBindReadOnlyPaths=/usr /etc /w\n"
)
UNITS: dict[str, tuple[str, str]] = {
    "plain": ("User=op\n", "/w/venv/bin/python /w/serve.py"),
    "preload": (
        "User=op\nEnvironment=LD_PRELOAD=/w/libpreload.so NCCL_NET_PLUGIN=/w/libpreload.so\n",
        "/w/venv/bin/python /w/serve.py",
    ),
    "caged": (CAGE, f"@/usr/bin/python3 /tmp/evil /w/serve.py /tmp/evil {PAD}"),
    "liar": (CAGE, f"/usr/bin/python3 /w/serve.py /proc/PID/root/w/evil {PAD}"),
    "ambient": (
        "User=op\nSupplementaryGroups=audio video\nAmbientCapabilities=CAP_NET_BIND_SERVICE CAP_SYS_NICE\n",
        "/w/venv/bin/python /w/serve.py",
    ),
    "users": ("User=op\nPrivateUsers=yes\n", "/w/venv/bin/python /w/serve.py"),
    "network": ("User=op\nPrivateNetwork=yes\nLimitNOFILE=200\n", "/w/venv/bin/python /w/serve.py"),
}  # fmt: skip
REFUSED = {
    "filtered": (
        "User=op\nSystemCallFilter=~ptrace\n", "/w/venv/bin/python /w/serve.py", "seccomp filters",
    ),
}  # fmt: skip
SCRIPT = '#!/bin/sh\nid >>/marks/unknown/evil-$$; exec /usr/bin/python3 "$@"\n'


@dataclass
class Marked:
    """What the services' code wrote down while a level was run, and what each service is itself."""

    marks: Mapping[str, list[dict[str, str]]]
    names: Mapping[str, list[str]]
    services: Mapping[str, dict[str, str]]
    recording: Mapping[str, Any]
    output: str
    level: str


def parse(text: str) -> dict[str, str]:
    """Read lines of "name: value"."""
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def build(folder: Path) -> None:
    """Build what is planted: libnccl.so.2 and libpreload.so, which write down who loads them, and the sham driver."""
    build_sham(folder)
    for name, sources in (("libnccl.so.2", [str(SHAM / "sham_nccl.c")]), ("libpreload.so", [])):
        flags = ["-shared", "-fPIC", "-O2", "-Wno-unused-function", "-pthread", f'-DNAME="{name}"', f"-I{SHAM}"]
        flags.append(f'-DFAULTS_OF_HOST="{ENDS}"')
        subprocess.run(["gcc", *flags, "-o", str(folder / name), str(WITNESS), *sources], check=True)


class Place:
    """The lab host with all services running, and what they planted."""

    def __init__(self, host: NspawnHost) -> None:
        self.host = host

    def put(self, path: str, data: bytes) -> None:
        """Write a file in the host."""
        self.host.shell(f"mkdir -p $(dirname {path}); base64 -d >{path}", stdin=base64.b64encode(data).decode())

    def plant(self, folder: Path) -> None:
        """Put everything there, and start all services."""
        build(folder)
        for name in ("libnccl.so.2", "libpreload.so"):
            self.put(f"/w/{name}", (folder / name).read_bytes())
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            self.put(f"/usr/lib/x86_64-linux-gnu/{name}", (folder / name).read_bytes())
        self.put("/w/serve.py", SERVE.encode())
        for path in ("/w/evil", "/tmp/evil"):
            self.put(path, SCRIPT.encode())
        packages = "/w/venv/lib/python3.11/site-packages"
        self.host.shell(
            f"chmod 755 /w/evil /tmp/evil; mkdir -p /w/venv/bin {packages} /srv/cage /marks/unknown;"
            " mkdir -p /srv/cage/usr /srv/cage/etc /srv/cage/w /srv/cage/marks /srv/cage/tmp;"
            " for name in bin lib lib64 sbin; do ln -sfn usr/$name /srv/cage/$name; done;"
            " ln -sf /usr/bin/python3 /w/venv/bin/python; echo 'home = /usr/bin' >/w/venv/pyvenv.cfg;"
            f" echo 'import ctypes; ctypes.CDLL(\"/w/libpreload.so\")' >{packages}/evil.pth; chown -R op /w;"
            " chmod 1777 /marks /marks/unknown"
        )
        for name, (settings, command, *_) in {**UNITS, **REFUSED}.items():
            marks = f"/marks/{name}"
            self.put(
                f"/etc/systemd/system/{name}.service",
                f"{SERVICE}GPUINFRA_MARKS={marks}\n{settings}ExecStart={command}\n".encode(),
            )
            self.host.shell(f"mkdir -p {marks}; chmod 1777 {marks}")
        self.host.shell("systemctl daemon-reload; systemctl start " + " ".join([*UNITS, *REFUSED]))
        limit = time.monotonic() + 20
        for name in (*UNITS, *REFUSED):
            while self.host.shell(f"test -e /marks/{name}/ready", check=False).returncode:
                assert time.monotonic() < limit, self.host.shell(
                    f"systemctl status {name}; journalctl -n 20 -u {name}", check=False
                ).stdout
                time.sleep(0.1)

    def clear(self) -> None:
        """Forget what was written down so far."""
        self.host.shell("find /marks -type f -delete")

    def itself(self, name: str) -> dict[str, str]:
        """Give what a service's main process is."""
        pid = self.host.shell(f"systemctl show -p MainPID --value {name}").stdout.strip()
        look = (
            f"nsenter -t {pid} -U --preserve-credentials cat /proc/{pid}/status 2>/dev/null || cat /proc/{pid}/status"
        )
        spaces = "; ".join(f"echo ns/{one}: $(readlink /proc/{pid}/ns/{one})" for one in SPACES)
        return parse(self.host.shell(f"{look}; {spaces}; echo root: $(stat -L -c %i /proc/{pid}/root)").stdout)

    def written(self, name: str) -> tuple[list[dict[str, str]], list[str]]:
        """Give what was written down below a service's name, and the names of the files."""
        files = self.host.shell(f"find /marks/{name} -type f").stdout.split()
        return [parse(self.host.shell(["cat", file]).stdout) for file in files], [Path(file).name for file in files]

    def judge(self, folder: Path, level: str) -> Marked:
        """Run the plugin as a user does, each service as the service of a host of its own."""
        self.clear()
        lines = []
        for name in (*UNITS, *REFUSED):
            blocked = f"[hosts.{name}.expect]\npeer_access = 'blocked'\n"
            devices = f"[[hosts.{name}.expect.devices]]\npci = {json.dumps(list(GPUS))}\ndriver = 'nvidia'\n"
            expected = f"[hosts.{name}.expect.service.environment]\nNCCL_PROTO = false\n"
            host = f"[hosts.{name}]\naddress = '{self.host.destination}'\nservice = '{name}'\n"
            lines.append(host + blocked + expected + devices)
        (folder / "gpuinfra.toml").write_text("\n".join(lines))
        ended = run_pytest(
            folder,
            *(f"--gpu-host={name}" for name in (*UNITS, *REFUSED)),
            f"--gpu-ssh-config={self.host.ssh_config}",
            f"--gpu-level={level}",
            *("--gpu-recording=judged.json", "-p", "no:cacheprovider", "-q"),
            *("-k", "all_reduce or torch or environment or variable or python"),
            timeout_s=900,
        )
        written = {name: self.written(name) for name in (*UNITS, *REFUSED, "unknown")}
        assert (folder / "judged.json").exists(), ended.stdout + ended.stderr
        return Marked(
            {name: one[0] for name, one in written.items()},
            {name: one[1] for name, one in written.items()},
            {name: self.itself(name) for name in (*UNITS, *REFUSED)},
            json.loads((folder / "judged.json").read_text()),
            ended.stdout + ended.stderr,
            level,
        )


@pytest.fixture(scope="module")
def place(booted_lab_host: NspawnHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The host, prepared once."""
    booted_lab_host.reset()
    made = Place(booted_lab_host)
    made.plant(tmp_path_factory.mktemp("planted"))
    yield made
    booted_lab_host.reset()


@pytest.fixture(scope="module", params=["passive", "active"])
def marked(request: pytest.FixtureRequest, place: Place, tmp_path_factory: pytest.TempPathFactory) -> Marked:
    """One run of every level that runs something of a service's."""
    return place.judge(tmp_path_factory.mktemp(request.param), request.param)


def more(mark: Mapping[str, str], service: Mapping[str, str]) -> list[str]:
    """Give what a process that left a mark had and the service has not."""
    wrong = [name for name in ("Uid", "Gid") if mark[name].split() != service[name].split()]
    wrong += ["Groups"] if sorted(mark["Groups"].split()) != sorted(service["Groups"].split()) else []
    wrong += [name for name in CAPABILITIES if int(mark[name], 16) & ~int(service[name], 16)]
    wrong += [name for name in (*(f"ns/{space}" for space in SPACES), "root") if mark[name] != service[name]]
    return wrong + (["Seccomp"] if int(mark["Seccomp_filters"]) < int(service["Seccomp_filters"]) else [])


def endings(marked: Marked, name: str) -> list[Any]:
    """Give what became of a service's all-reduces, for messages."""
    host = marked.recording["hosts"][name]
    said = host.get("gathered", host)["gpu"]["cuda"]
    events = [json.loads(line) for line in said["lines"]]
    return [
        said.get("error"),
        *((one.get("arm"), one.get("ending"), one["reason"]) for one in events if "reason" in one),
    ]


@pytest.mark.parametrize("name", UNITS)
def test_nothing_of_a_service_ran_with_more_than_the_service_has(marked: Marked, name: str) -> None:
    """Each mark that its code wrote shows exactly its users and groups, no more capabilities, and its namespaces."""
    own = marked.services[name]
    assert marked.marks[name] or (marked.level == "passive" and name in ("caged", "liar")), endings(marked, name)
    found = {file: more(mark, own) for file, mark in zip(marked.names[name], marked.marks[name], strict=True)}
    assert {file: wrong for file, wrong in found.items() if wrong} == {}
    assert marked.level == "passive" or any("libnccl" in file for file in marked.names[name]), endings(marked, name)


def test_nothing_ran_outside_of_a_service(marked: Marked) -> None:
    """What lies where argv[0] points was started by nobody, and no library of a service's without its environment."""
    assert marked.names["unknown"] == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_had_is_refused_with_the_reason(marked: Marked, name: str) -> None:
    """A filter that a child would not have: ERROR that says so, and nothing is run."""
    assert marked.names[name] == []
    results = [one for one in marked.recording["results"] if one["host"] == name]
    assert any(one["outcome"] == "error" and REFUSED[name][2] in one["message"] for one in results), marked.output
    assert not [one for one in results if one["outcome"] == "passed" and "all_reduce" in one["id"]]
