"""
All-reduces over real hosts, each with sshd and a network of its own: healthy, cut off, hanging, and summing wrongly.

The ranks sum by gloo on the CPU; the same program runs NCCL on GPUs (tests/gpu/hosts_on_device.sh).
"""

from __future__ import annotations

import json
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.plugin.conftest import Judged, judge_recording, run_pytest

from .sshd import SshdHost, many_hosts

pytestmark = pytest.mark.lab
pytest.importorskip("torch")
ALIASES = ("node-001", "node-002", "node-003")
BAD = ALIASES[2]
WHOLE = "test_hosts_sum_right_together[rack]"
ITEMS = "hosts_sum or hosts_use or hosts_are or two_hosts"
# The host's own Python: torch from here, and a sitecustomize that stops, spoils or cuts off a sum as /fault says.
PYTHON = '#!/bin/sh\nPYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/opt/fault:/opt/site exec python3 "$@"\n'
FAULT = """
import os, signal
try:
    kind = open("/fault").read().strip()
except OSError:
    kind = ""
if kind:
    import torch.distributed
    right = torch.distributed.all_reduce

    def all_reduce(values, *arguments, **options):
        if kind == "stop" and len(values) > 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "cut" and len(values) > 1:
            os.system("/cut")
        if kind == "drop" and len(values) > 1:
            os.system("ip link set eth0 down")
        right(values, *arguments, **options)
        if kind == "spoil":
            values[-1] += 1

    torch.distributed.all_reduce = all_reduce
"""


@dataclass
class Rack:
    """Three hosts that reach each other through this machine."""

    hosts: list[SshdHost]
    folder: Path

    def prepare(self) -> None:
        """Lay routes between the hosts, and torch into each of them."""
        for host in self.hosts:
            gateway = host.address.rpartition(".")[0] + ".1"
            for other in self.hosts:
                if other is not host:
                    host.shell(f"ip route replace {other.address}/32 via {gateway}")
            others = " ".join(other.address for other in self.hosts if other is not host)
            cut = f"#!/bin/sh\nfor a in {others}; do ip route replace blackhole $a/32; ip route flush cache; done\n"
            mend = f"#!/bin/sh\nip link set eth0 up\nfor a in {others}; do ip route replace $a/32 via {gateway}; done\n"
            host.shell("mkdir -p /opt/site /opt/fault")
            for path, text in (
                ("/opt/python", PYTHON),
                ("/opt/fault/sitecustomize.py", FAULT),
                ("/cut", cut),
                ("/mend", mend),
            ):
                host.shell(f"cat >{path}; chmod +x {path}", stdin=text)
            root = f"{host.folder}/mnt/root"
            subprocess.run(
                [
                    *("nsenter", f"--mount=/proc/{host._find_init()}/ns/mnt", "mount", "--bind", "-o", "ro"),
                    *(sysconfig.get_path("purelib"), f"{root}/opt/site"),
                ],
                check=True,
            )

    def judge(
        self, name: str, *, hosts: Sequence[str] = ALIASES, asked: Sequence[str] = (), more: str = "", **keys: object
    ) -> Judged:
        """Run the group's items, as a user does, over all its hosts or those asked, and keep the recording."""
        text = more
        lines = {"backend": "gloo", "join_timeout_s": 15.0, "stall_timeout_s": 5.0, **keys}
        text += "".join(f'[hosts.{host.alias}]\naddress = "root@{host.address}"\n' for host in self.hosts)
        text += f"[collectives.rack]\nhosts = {list(hosts)}\n"
        text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
        (self.folder / "gpuinfra.toml").write_text(text)
        ended = run_pytest(
            self.folder,
            *(f"--gpu-host={alias}" for alias in asked or hosts),
            f"--gpu-ssh-config={self.hosts[0].ssh_config}",
            *(
                "--gpu-python=/opt/python",
                "--gpu-connect-timeout=8",
                f"--gpu-recording={name}.json",
                "-p",
                "no:cacheprovider",
                "-k",
                ITEMS,
            ),
        )
        file = self.folder / f"{name}.json"
        assert file.exists(), ended.stdout + ended.stderr
        return Judged(json.loads(file.read_text()), ended.returncode, ended.stdout + ended.stderr)

    def left(self) -> list[str]:
        """Give what is left on the hosts of any run: processes of ours, and files."""
        found = []
        for host in self.hosts:
            found += [line for line in host.processes() if "python" in line]
            found += host.shell("ls -A /tmp /dev/shm | grep -v : | grep .", check=False).stdout.split()
        return found


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """Three hosts with torch, which can sum."""
    with many_hosts(len(ALIASES)) as hosts:
        made = Rack(hosts, tmp_path_factory.mktemp("rack"))
        made.prepare()
        yield made


@pytest.fixture
def bad(rack: Rack) -> Iterator[SshdHost]:
    """The third host, which is to have a fault, and none afterwards."""
    host = rack.hosts[2]
    yield host
    host.shell("rm -f /fault; /mend")


def test_healthy_hosts_sum_right_and_leave_nothing(rack: Rack) -> None:
    """World size 6, exact sums, a speed; no pair is tried; the recording is judged alike; nothing stays."""
    live = rack.judge("healthy", ranks=2, busbw_gb_s_min=0.0001)
    outcomes = live.of_host(ALIASES[0])
    assert outcomes.outcomes[WHOLE] == "passed", outcomes.messages[WHOLE]
    assert outcomes.outcomes["test_hosts_are_as_fast_together_as_before[rack]"] == "passed"
    assert outcomes.outcomes["test_hosts_use_the_network_that_was_built_for_it[rack]"] == "skipped"
    pairs = [name for name in outcomes.outcomes if name.startswith("test_two_hosts")]
    assert len(pairs) == 3
    assert {outcomes.outcomes[name] for name in pairs} == {"skipped"}
    assert rack.left() == []

    again = judge_recording(rack.folder, "healthy.json", "-k", ITEMS).of_host(ALIASES[0])
    assert again.outcomes == outcomes.outcomes


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("cut before", ("partition, node-003 is cut off", "node-003 never met the others")),
        ("cut", ("partition, node-003 is cut off", "node-001 does not reach node-003 any more")),
        ("stop", ("hang, the others wait for: rank", "on node-003, stopped by a signal, in: calling an all-reduce")),
        ("spoil", ("wrong sums: rank", "node-003, CPU 0) holds 1 wrong")),
    ],
)
def test_bad_host_is_named(rack: Rack, bad: SshdHost, fault: str, words: tuple[str, ...]) -> None:
    """Partition, hang and wrong sum are told apart; the pairs without the bad host are right, the others fail."""
    if fault == "cut before":
        bad.shell("/cut")
    else:
        bad.shell(f"echo {fault} >/fault")
    judged = rack.judge(fault.replace(" ", "-"))
    outcomes = judged.of_host(ALIASES[0])
    if fault == "cut":  # it stays cut after the first run
        words = words[:1]
    assert outcomes.outcomes[WHOLE] == "failed", outcomes.messages[WHOLE]
    assert [word for word in words if word not in outcomes.messages[WHOLE]] == [], outcomes.messages[WHOLE]
    assert f"pairs: {BAD} fails with every other host" in outcomes.messages[WHOLE]
    pairs = {name: end for name, end in outcomes.outcomes.items() if name.startswith("test_two_hosts")}
    assert pairs == {
        "test_two_hosts_sum_right_together[rack-node-001+node-002]": "passed",
        "test_two_hosts_sum_right_together[rack-node-001+node-003]": "failed",
        "test_two_hosts_sum_right_together[rack-node-002+node-003]": "failed",
    }, outcomes.messages
    assert rack.left() == []


def test_host_whose_link_drops_is_named_by_the_others(rack: Rack, bad: SshdHost) -> None:
    """Its ssh is gone with it: what the others saw proves the partition; its pairs are unknown, the other one right."""
    bad.shell("echo drop >/fault")
    outcomes = rack.judge("drop").of_host(ALIASES[0])
    message = outcomes.messages[WHOLE]
    assert outcomes.outcomes[WHOLE] == "failed", message
    assert "partition, node-003 is cut off" in message
    assert "does not reach node-003 any more" in message
    assert outcomes.ended("passed") == ["test_two_hosts_sum_right_together[rack-node-001+node-002]"]
    assert len(outcomes.ended("error")) == 2
    bad.shell("/mend")
    assert rack.left() == []


def test_host_without_torch_is_unknown(rack: Rack) -> None:
    """Nobody summed: ERROR, with the host and its Python; no pair passes."""
    rack.hosts[1].shell("mv /opt/python /opt/kept; ln -s /usr/bin/python3 /opt/python")
    try:
        outcomes = rack.judge("no-torch", hosts=ALIASES[:2], join_timeout_s=8.0).of_host(ALIASES[0])
    finally:
        rack.hosts[1].shell("mv /opt/kept /opt/python")
    assert outcomes.outcomes[WHOLE] == "error"
    assert "node-002: /opt/python has no usable torch" in outcomes.messages[WHOLE]
    assert outcomes.ended("passed", "failed") == []


def test_group_of_which_a_host_is_not_reached_is_unknown(rack: Rack) -> None:
    """It is not partitioned from the others as far as anybody saw: ERROR with why we do not reach it."""
    nobody = rack.hosts[0].address.rpartition(".")[0] + ".250"
    outcomes = rack.judge("gone", hosts=(*ALIASES[:2], "gone"), more=f'[hosts.gone]\naddress = "root@{nobody}"\n')
    of_first = outcomes.of_host(ALIASES[0])
    assert of_first.outcomes[WHOLE] == "error"
    assert "gone: " in of_first.messages[WHOLE]
    assert of_first.ended("passed", "failed") == []


def test_group_of_which_a_host_is_not_in_the_run_is_unknown(rack: Rack) -> None:
    """Two of three hosts prove nothing of the group."""
    outcomes = rack.judge("short", asked=ALIASES[:2]).of_host(ALIASES[0])
    assert outcomes.outcomes[WHOLE] == "error"
    assert "this run is not about node-003" in outcomes.messages[WHOLE]
