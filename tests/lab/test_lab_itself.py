"""The lab does what its users rely on: it boots, breaks, comes back, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .image import HERE, ensure_image, image_key, oldest_python
from .keep import RUN, wait_for_exit
from .nspawn import NspawnHost
from .sshd import VARIANTS, SshdHost, many_hosts

pytestmark = pytest.mark.lab
CHECKOUT = HERE.parents[1]


def cgroups() -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob("**/gpuinfra-lab-*"))


def interfaces() -> list[str]:
    return [name for name in os.listdir("/sys/class/net") if name.startswith(("ve-gil", "gi"))]


def test_host_is_healthy_after_start(lab_host: NspawnHost) -> None:
    answers = [
        lab_host.ssh("systemctl is-system-running", name=name).stdout
        for name in (lab_host.alias, lab_host.destination, lab_host.container_alias)
    ]

    assert answers == ["running\n"] * 3


def test_container_and_service_are_reached_from_the_host(lab_host: NspawnHost) -> None:
    get = "import urllib.request as u; print(u.urlopen('http://10.10.0.101:30000/v1/models').read().decode())"
    models = lab_host.ssh(f'pct status 101; python3 -c "{get}"').stdout

    assert models.startswith("status: running\n{")
    assert "tiny-times" in models


def test_ranks_hold_shared_memory_in_common(lab_host: NspawnHost) -> None:
    look = "for p in $(pgrep -f infer::scheduler); do ls -l /proc/$p/fd | grep -o '/dev/shm/nccl.*' | sort -u; done"

    assert lab_host.container_shell(look).stdout.split() == ["/dev/shm/nccl-lab0", "/dev/shm/nccl-lab1"] * 2


def test_reboot_gives_a_new_boot_and_keeps_the_journal(lab_host: NspawnHost) -> None:
    first = lab_host.boot_id
    second = lab_host.reboot()
    boots = lab_host.ssh("journalctl --list-boots --no-pager -q").stdout

    assert first != second
    assert [first.replace("-", "") in boots, second.replace("-", "") in boots] == [True, True]


@pytest.mark.parametrize(
    "fault",
    [
        "lxc-attach -n 101 -- systemctl stop infer",
        "lxc-attach -n 101 -- systemctl restart infer",
        "pct stop 101",
        "touch /root/left-behind",
        "systemctl stop ssh",
        "mount -t tmpfs x /mnt",
        "systemctl poweroff",
    ],
)
def test_reset_undoes_a_fault(lab_host: NspawnHost, fault: str) -> None:
    lab_host.shell(fault)

    assert lab_host.reset()
    assert lab_host.ssh("ls /root; pct status 101").stdout == "status: running\n"


def test_reset_after_looking_only_is_no_restart(lab_host: NspawnHost) -> None:
    before = lab_host.boot_id
    lab_host.ssh("ps -ef; journalctl -n 5; systemctl status ssh")

    assert not lab_host.reset()
    assert lab_host.boot_id == before


def test_bound_trees_are_seen_over_ssh_until_reset(lab_host: NspawnHost, tmp_path: Path) -> None:
    (tmp_path / "7/devices").mkdir(parents=True)
    (tmp_path / "7/type").write_text("DMA-FQ\n")
    (tmp_path / "7/devices/0000:01:00.0").symlink_to("../../../../devices/pci0000:00/0000:01:00.0")
    cmdline = tmp_path / "cmdline"
    cmdline.write_text("root=/dev/sda amd_iommu=on\n")

    before = lab_host.ssh("cat /proc/cmdline").stdout
    lab_host.bind(tmp_path / "7", "/sys/kernel/iommu_groups")
    lab_host.bind(cmdline, "/proc/cmdline")
    seen = lab_host.ssh("cat /sys/kernel/iommu_groups/type /proc/cmdline; ls /sys/kernel/iommu_groups/devices").stdout
    lab_host.reset()

    assert seen == "DMA-FQ\nroot=/dev/sda amd_iommu=on\n0000:01:00.0\n"
    assert lab_host.ssh("cat /proc/cmdline").stdout == before != cmdline.read_text()


def test_two_hosts_run_side_by_side(lab_host: NspawnHost) -> None:
    with NspawnHost("lab-b") as other:
        names = [host.ssh("hostname; pct status 101").stdout for host in (lab_host, other)]

    assert names == ["lab-a\nstatus: running\n", "lab-b\nstatus: running\n"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_starts_and_answers_as_it_says(sshd_host: Callable[..., SshdHost], variant: str) -> None:
    host = sshd_host(variant)
    try:
        done = host.ssh("sleep 0.6; echo hello; python3 -c pass", timeout_s=3)
        seen = done.stderr if done.returncode else done.stdout[-6:]
    except subprocess.TimeoutExpired:
        seen = "no answer"

    expected = {
        "port-closed": "Connection refused",
        "silent": "no answer",
        "key-refused": "Permission denied (publickey)",
        "host-key-unknown": "host key is known",
        "host-key-changed": "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "max-sessions-0": "open failed",
        "drops": "closed by remote host",
        "slow-shell": "no answer",
        "hanging-shell": "no answer",
        "flooding": "no answer",
        "nologin": "",
        "no-python": "not found",
        "python-broken": "Python path configuration",
    }
    assert expected.get(variant, "hello\n") in seen


def test_many_hosts_have_their_own_names_and_processes() -> None:
    with many_hosts(20) as hosts:
        shown = {host.ssh("hostname; cat /proc/1/cmdline").stdout for host in hosts}
        links = [name for name in interfaces() if name.startswith(f"gi{hosts[0].folder.name[5:]}x")]

    assert len(shown) == len(links) == 20
    limit = time.monotonic() + 20  # the kernel takes a namespace's links away beside its end, some at a time
    while left := set(links) & set(interfaces()):
        assert time.monotonic() < limit, left
        time.sleep(0.1)


def test_oldest_python_runs_a_program_from_stdin() -> None:
    program = "import sys; print(*sys.version_info[:2], sys.argv[1:])"
    shown = [
        subprocess.run(
            [*oldest_python(kind), "-", "a"], input=program, text=True, capture_output=True, check=True
        ).stdout
        for kind in ("pypy3.7", "cpython3.9")
    ]

    assert shown == ["3 7 ['a']\n", "3 9 ['a']\n"]


def test_stop_leaves_nothing() -> None:
    with NspawnHost("lab-c") as host:
        folder = host.folder
        link = f"ve-gil{folder.name.removeprefix('host-')}"

        assert link in interfaces()
    assert not folder.exists()
    assert link not in interfaces()
    assert not [path for path in cgroups() if path.name.endswith(folder.name)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_survives_the_process_that_started_it(how: signal.Signals) -> None:
    program = (
        "import time\nfrom tests.lab.nspawn import NspawnHost\nfrom tests.lab.sshd import SshdHost\n"
        "with NspawnHost('lab-d') as a, SshdHost() as b:\n"
        "    print(a.folder, b.folder, a._kept._process.pid, b._kept._process.pid, flush=True)\n    time.sleep(99)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        first, second, *keepers = process.stdout.readline().split()
        folders = [Path(first), Path(second)]
        process.send_signal(how)
    wait_for_exit([int(pid) for pid in keepers])

    assert [path for path in folders if path.exists()] == []
    assert [path for path in cgroups() if path.name[13:] in {folder.name for folder in folders}] == []
    assert [name for name in interfaces() if name == f"ve-gil{folders[0].name.removeprefix('host-')}"] == []


def test_up_and_down_by_hand() -> None:
    def lab(*argv: str) -> str:
        command = [sys.executable, "-m", "tests.lab", *argv]
        return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=60).stdout

    shown = lab("up", "lab-hand")
    ssh = next(line for line in shown.splitlines() if line.startswith("  ssh"))
    hostname = subprocess.run([*ssh.split(), "hostname"], capture_output=True, text=True, check=False).stdout
    listed = lab("status")
    gone = lab("down", "lab-hand")

    assert "lab-hand is up: root@10.77." in shown
    assert hostname == "lab-hand\n"
    assert "lab-hand is up" in listed
    assert gone == "lab-hand is gone\n"
    assert list(RUN.glob("up-lab-hand*")) == []


def test_image_is_named_by_what_it_is_built_from() -> None:
    assert image_key() in str(ensure_image().root)
    assert image_key() != image_key("old")
