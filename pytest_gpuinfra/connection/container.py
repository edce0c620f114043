"""
Containers on a host: their names in the inventory, what enters them, and what tells their state.

Source: pct(1) of Proxmox VE 8, lxc-attach(1) and lxc-info(1) of LXC 5, `incus exec` and `lxc exec` of Incus 6 and
LXD 5, docker-exec(1), podman-exec(1), machinectl(1) and nsenter(1).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuinfra.connection.destination import FORMS as DESTINATIONS
from pytest_gpuinfra.connection.destination import refusal

KINDS = ("pct", "lxc", "incus", "lxd", "docker", "podman", "nspawn", "ssh")
FORMS = "takes KIND:NAME, where KIND is one of " + ", ".join(KINDS)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

# systemd-nspawn: the leader by machined if that knows it, else the child of the nspawn that has this name.
_NSPAWN = r"""
import os, subprocess, sys
if os.geteuid() == 0:
    os.environ["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin"
name, command = sys.argv[1], sys.argv[2:]
def read(path):
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""
leader = ""
try:
    ask = ["machinectl", "show", name, "-p", "Leader", "--value"]
    leader = subprocess.run(ask, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode().strip()
except OSError:
    pass
pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
for pid in pids if leader in ("", "0") else []:
    words = read("/proc/" + pid + "/cmdline").decode(errors="replace").split(chr(0))
    if os.path.basename(words[0]) != "systemd-nspawn":
        continue
    given = [w.partition("=")[2] for w in words if w.startswith("--machine=")]
    given += [words[i + 1] for i, w in enumerate(words[:-1]) if w in ("-M", "--machine")]
    given += [os.path.basename(w.partition("=")[2]) for w in words if w.startswith("--directory=") and not given]
    given += [os.path.basename(words[i + 1]) for i, w in enumerate(words[:-1]) if w == "-D" and not given]
    if name in given:
        for child in pids:
            fields = read("/proc/" + child + "/stat").rpartition(b")")[2].split()
            pid_in = read("/proc/" + child + "/status").partition(b"NSpid:")[2].splitlines()[:1]
            if len(fields) > 1 and fields[1] == pid.encode() and pid_in and pid_in[0].split()[-1:] == [b"1"]:
                leader = child
if leader in ("", "0"):
    sys.exit("no machine " + name + " is running")
enter = ["nsenter", "--target=" + leader] + ["--" + n for n in "mount uts ipc net pid cgroup".split()]
if os.readlink("/proc/" + leader + "/ns/user") != os.readlink("/proc/self/ns/user"):
    enter += ["--user"]
enter += ["--root", "--wd=/proc/" + leader + "/root", "--"]
os.execvp("nsenter", enter + command)
"""


@dataclass(frozen=True, slots=True)
class Container:
    """
    A container as the inventory names it.

    Attributes:
        kind: One of KINDS.
        name: Its name or number there; of the kind "ssh" what ssh(1) takes, reached through the host.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def enter(self) -> tuple[str, ...]:
        """
        What runs a command in it from the host, up to the command; () of the kind "ssh".

        No word holds a quote, backslash or anything else that double quotes would not keep.
        """
        name = self.name
        return {
            "pct": ("pct", "exec", name, "--"),
            "lxc": ("lxc-attach", "-n", name, "--"),
            "incus": ("incus", "exec", name, "-T", "--"),
            "lxd": ("lxc", "exec", name, "-T", "--"),
            "docker": ("docker", "exec", "-i", name),
            "podman": ("podman", "exec", "-i", name),
            "nspawn": ("python3", "-ISB", "-c", _RUN_HEX, _NSPAWN.encode().hex(), name),
            "ssh": (),
        }[self.kind]

    @property
    def tell(self) -> dict[str, tuple[str, ...]]:
        """Commands on the host that tell its state and set-up, by what they tell; {} of the kind "ssh"."""
        name = self.name
        lxd_list = ("list", f"^{name}$", "--format", "json")
        told: dict[str, dict[str, tuple[str, ...]]] = {
            "pct": {"state": ("pct", "status", name), "config": ("pct", "config", name)},
            "lxc": {"state": ("lxc-info", "-n", name, "-s", "-H")},
            "incus": {"state": ("incus", *lxd_list)},
            "lxd": {"state": ("lxc", *lxd_list)},
            "docker": {"state": ("docker", "container", "inspect", "--format", _INSPECT, name)},
            "podman": {"state": ("podman", "container", "inspect", "--format", _INSPECT, name)},
            "nspawn": {
                "state": ("machinectl", "show", name, "-p", "State,Leader"),
                "boot": ("systemctl", "is-enabled", f"systemd-nspawn@{name}.service"),
            },
            "ssh": {},
        }
        return told[self.kind]

    @property
    def files(self) -> dict[str, str]:
        """Files on the host that hold its set-up, by what they tell; {} where commands tell it."""
        return {"config": f"/var/lib/lxc/{self.name}/config"} if self.kind == "lxc" else {}

    @property
    def remedy(self) -> str:
        """What a person can do when it cannot be entered."""
        return {
            "pct": f"see `pct status {self.name}`, and start it by `pct start {self.name}`",
            "lxc": f"see `lxc-info -n {self.name}`, and start it by `lxc-start -n {self.name}`",
            "incus": f"see `incus info {self.name}`, and start it by `incus start {self.name}`",
            "lxd": f"see `lxc info {self.name}`, and start it by `lxc start {self.name}`",
            "docker": f"see `docker ps -a`, and start it by `docker start {self.name}`",
            "podman": f"see `podman ps -a`, and start it by `podman start {self.name}`",
            "nspawn": f"see `machinectl list`, and start it by `machinectl start {self.name}`",
            "ssh": f"try by hand: ssh -J HOST {self.name}",
        }[self.kind]


_RUN_HEX = "import sys;exec(bytes.fromhex(sys.argv.pop(1)).decode())"
# Config.Env is left out: it may hold secrets.
_INSPECT = (
    '{"state":{{json .State.Status}},"pid":{{json .State.Pid}},"started":{{json .State.StartedAt}},'
    '"restart":{{json .HostConfig.RestartPolicy.Name}},"restarts":{{json .RestartCount}}}'
)


def parse_container(text: str) -> Container:
    """
    Read "pct:129".

    Raises:
        ValueError: It has another form; the text says which are legal.
    """
    kind, sign, name = text.partition(":")
    if not sign or kind not in KINDS:
        raise ValueError(FORMS)
    if kind == "ssh":
        if refusal(name):
            raise ValueError(f"{FORMS}, and of the kind ssh NAME is {DESTINATIONS}: {refusal(name)}")
    elif not _NAME.fullmatch(name):
        raise ValueError(f"{FORMS}, and NAME holds letters, digits, '.', '_' and '-' only")
    if kind == "pct" and not name.isdigit():
        raise ValueError("takes pct:NUMBER, the number of the container")
    return Container(kind, name)


def entered_by(enter: Sequence[str]) -> Container | None:
    """Tell which container is entered by what `Container.enter` gave, in any version of ours; None if none is."""
    asked = _plain(enter)
    for kind in KINDS:
        for word in asked:
            container = Container(kind, word)
            if _plain(container.enter or ("ssh", word)) == asked:
                return container
    return None


def _plain(argv: Sequence[str]) -> list[str]:
    """Give the words of an argv that are no program text."""
    return [word for word in argv if len(word) <= 200 and re.fullmatch(r"[\w.@:%\[\]/-]+", word)]
