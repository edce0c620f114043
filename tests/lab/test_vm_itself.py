"""The virtual machine does what its users rely on: real groups and nodes, and nothing left of a run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .image import HERE
from .keep import wait_for_exit
from .vm import LabVm

pytestmark = pytest.mark.lab_vm
CHECKOUT = HERE.parents[1]


def test_devices_are_in_their_groups_and_nodes(lab_vm: LabVm) -> None:
    """Each stand-in for a GPU is on its NUMA node; only the two functions of one card share a group."""
    look = (
        "cd /sys/bus/pci/devices; for device in 0000:41:00.0 0000:42:00.0 0000:81:00.0 0000:81:00.1 0000:82:00.0; do "
        "echo $(cat $device/numa_node $device/iommu_group/type) $(ls $device/iommu_group/devices | wc -l); done"
    )

    assert lab_vm.ssh(look).stdout.splitlines() == ["0 DMA-FQ 1"] * 2 + ["1 DMA-FQ 2"] * 2 + ["1 DMA-FQ 1"]


def test_systemd_has_nothing_failed(lab_vm: LabVm) -> None:
    assert lab_vm.ssh("systemctl is-system-running").stdout == "running\n"


def test_reset_undoes_what_was_done_and_only_that(lab_vm: LabVm) -> None:
    """A snapshot brings the boot, the disk and the devices back; without a change there is nothing to do."""
    boot_id = lab_vm.boot_id
    lab_vm.shell("touch /root/left-behind; echo 1 >/sys/bus/pci/devices/0000:83:00.0/remove")

    assert lab_vm.reset()
    assert (
        lab_vm.ssh("ls /root; ls -d /sys/bus/pci/devices/0000:83:00.0").stdout == "/sys/bus/pci/devices/0000:83:00.0\n"
    )
    assert lab_vm.boot_id == boot_id
    assert not lab_vm.reset()


def test_op_logs_in_and_is_not_root(lab_vm: LabVm) -> None:
    argv = ["ssh", "-F", str(lab_vm.ssh_config), f"op@{lab_vm.address}", "id -un"]

    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "op\n"


def test_nothing_survives_the_process_that_started_it() -> None:
    """A kill -9 of the controller, here before the machine is up, ends qemu, and its folder goes."""
    program = (
        "import threading, time\nfrom tests.lab.vm import LabVm\nvm = LabVm('lab-killed')\n"
        "threading.Thread(target=vm.start, daemon=True).start()\n"
        "while vm._kept is None or not (vm.folder / 'monitor').exists(): time.sleep(0.05)\n"
        "print(vm.folder, vm._kept._process.pid, *vm._kept.inits(1), flush=True)\ntime.sleep(99)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        folder, *pids = process.stdout.readline().split()
        process.send_signal(signal.SIGKILL)
    wait_for_exit([int(pid) for pid in pids])

    assert not Path(folder).exists()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert not [
        path for path in Path("/sys/fs/cgroup").glob("**/gpuinfra-lab-*") if path.name[13:] == Path(folder).name
    ]
