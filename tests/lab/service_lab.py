"""The lab's container and service with everything that the checks of them look at, and the captures of it."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.connection.ssh import SshConnection
from pytest_gpuinfra.host.capture import capture_host
from pytest_gpuinfra.inventory.inventory import HostSpec, parse_inventory

from .nspawn import NspawnHost

UNIT = "/etc/systemd/system/infer.service"
DROP_IN = "/etc/systemd/system/infer.service.d/10-lab.conf"
DROP_IN_TEXT = (
    "[Unit]\nStartLimitIntervalSec=60\nStartLimitBurst=3\n\n"
    "[Service]\nEnvironmentFile=/etc/default/infer\nRestartSec=3\n"
)
"""A pause that a capture fits into; the fourth start within a minute is refused."""
PROGRAM = "/opt/infer/infer.py"
SAVED = "/root/saved"
SITE = "/etc/python3.11/sitecustomize.py"
SITE_TEXT = 'import os\nos.environ.setdefault("NCCL_ALGO", "Ring")\nos.environ["NCCL_BUFFSIZE"] = "16777216"\n'
DEVICES = "Character devices:\n  1 mem\n  1 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
LOG = """
import socket, subprocess, sys
asked = ["systemctl", "show", "-p", "InvocationID", "--value", "infer.service"]
invocation = subprocess.run(asked, stdout=subprocess.PIPE, check=True).stdout.decode().strip()
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
    fields = "MESSAGE=%s\\nPRIORITY=%s\\nINVOCATION_ID=%s\\n" % (sys.argv[2], sys.argv[1], invocation)
    journal.sendto(fields.encode(), "/run/systemd/journal/socket")
"""


def inventory(alias: str, address: str, unit_text: str) -> dict[str, Any]:
    """Give the inventory of the prepared host, as plain data."""
    container = {
        "autostart": True,
        "device_nodes": ["/dev/nvidia-uvm"],
        "shm_min_gib": 0.01,
        "memlock": 4096,
        "open_files": 512,
        "mounted": ["/srv/model"],
        "disk_free_gib": {"/srv/model": 0.005},
    }
    service = {
        "enabled": True,
        "after": ["network.target"],
        "unit_file": "deploy/infer.service",
        "unit_file_text": unit_text,
        "drop_ins": {"10-lab.conf": "deploy/10-lab.conf"},
        "drop_in_texts": {"10-lab.conf": DROP_IN_TEXT},
        "environment": {
            "NCCL_P2P_DISABLE": "1",
            "NCCL_PROTO": "LL",
            "NCCL_ALGO": "Ring",
            "NCCL_BUFFSIZE": "16777216",
            "OMP_NUM_THREADS": "4",
            "NCCL_P2P_LEVEL": False,
        },
        "arguments": {"--tp": "2", "--mem-fraction-static": "0.75", "--enable-nothing": False},
        "ranks": 2,
        "transport": "SHM",
        "python": "/usr/bin/python3*",
    }
    expect = {"container": container, "service": service}
    return {"hosts": {alias: {"address": address, "container": "pct:101", "service": "infer", "expect": expect}}}


class ServiceLab:
    """
    A lab host whose service has a drop-in, an environment file, a sitecustomize, a model mount and a device node.

    Args:
        host: The booted host.
    """

    def __init__(self, host: NspawnHost, folder: Path) -> None:
        self.host = host
        self.unit_text = ""
        self.started_s = 0.0
        self._devices = folder / "devices"

    def prepare(self) -> None:
        """Start it afresh, and bring it into the state in which nothing is wrong."""
        self.host.reset()
        self.inside(f"mkdir -p {SAVED}; cp -a {UNIT} {PROGRAM} {SAVED}/")
        self.unit_text = self.inside(f"cat {UNIT}")
        ticks = self.inside("cat /proc/1/stat").rpartition(")")[2].split()[19]
        self.started_s = int(ticks) / 100
        self.restore()
        self.majors(DEVICES)
        self.give_node()

    def restore(self) -> None:
        """Undo what was done to the service's files and state, where the container was left running."""
        self.inside(
            f"rm -rf /run/systemd/system/infer.service.d /etc/systemd/system/infer.service.d /opt/run.sh;"
            f" mkdir -p /etc/systemd/system/infer.service.d /srv/model; cp {SAVED}/infer.service {UNIT};"
            f" cp {SAVED}/infer.py {PROGRAM}; mountpoint -q /srv/model || mount -t tmpfs -o size=16M model /srv/model;"
            " echo weights >/srv/model/model.safetensors; echo OMP_NUM_THREADS=4 >/etc/default/infer;"
            " systemctl -q enable infer; systemctl reset-failed"
        )
        self.write(SITE, SITE_TEXT)
        self.write(DROP_IN, DROP_IN_TEXT)
        self.restart()

    def inside(self, command: str, *, check: bool = True) -> str:
        """Run shell text in the container."""
        return self.host.container_shell(command, check=check).stdout

    def write(self, path: str, text: str) -> None:
        """Write a file in the container."""
        self.host.container_shell(f"cat >{path}", stdin=text)

    def restart(self, *, reload: bool = True) -> None:
        """Restart the service, and wait until its ranks are up."""
        self.inside(("systemctl daemon-reload; " if reload else "") + "systemctl restart infer")
        self.wait_for_service()

    def wait_for_service(self, ranks: int = 2) -> None:
        """Wait until the service's ranks have taken their names."""
        limit = time.monotonic() + 20
        count = "grep -las '^infer::scheduler' /proc/[0-9]*/cmdline | wc -l"
        while self.inside(count, check=False).strip() != str(ranks):
            assert time.monotonic() < limit, self.inside("systemctl status infer", check=False)
            time.sleep(0.1)

    def majors(self, text: str) -> None:
        """Let the host's /proc/devices show another list."""
        self._devices.write_text(text)
        if "/proc/devices" in self.host._bound:
            self.host.unbind("/proc/devices")
        self.host.bind(self._devices, "/proc/devices")

    def give_node(self) -> None:
        """Show a device node (the one of /dev/null, major 1) as the container's nvidia-uvm."""
        self.inside("touch /dev/nvidia-uvm; mount --bind /dev/null /dev/nvidia-uvm")

    def log(self, message: str, priority: int = 3) -> None:
        """Write a line into the service's log of this start."""
        self.host.container_shell(["python3", "-c", LOG, str(priority), message])

    def connection(self) -> SshConnection:
        """Give a connection to the host."""
        return SshConnection(self.host.alias, self.host.destination, config=str(self.host.ssh_config))

    def capture(self, spec: HostSpec, alias: str, *, timeout_s: float = 30.0) -> Capture:
        """Take the capture of the host and its container; one round trip."""
        connection = self.connection()
        try:
            capture = capture_host(connection, spec, [], reached_by="lab", timeout_s=timeout_s)
        finally:
            connection.close()
        return dataclasses.replace(capture, alias=alias)

    def spec(self, alias: str = "lab") -> HostSpec:
        """Give what is expected of it."""
        raw = inventory(alias, self.host.destination, self.unit_text)
        raw["hosts"][alias]["expect"]["container"]["starts_within_s"] = self.started_s + 0.05
        return parse_inventory(raw, "lab").hosts[alias]
