"""
Tier B of the lab: a virtual machine with a real IOMMU, real drivers and a kernel log of its own.

The IOMMU is Intel's. qemu's amd-iommu gives real groups (type "DMA") and drops refused DMA, but raises no event: seen
with qemu 7.2.22 and 10.0.2 (bookworm-backports), kernel 6.1.176, edu on bus 0 and behind a root port, reads and writes
of an unmapped address: AMD-Vi's interrupt count stays 0. Its IO_PAGE_FAULT lines are therefore written to /dev/kmsg.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .host_files import write_host_files
from .image import Image, LabError, ensure_image, install_packages, lab_cache, require_root
from .keep import Command, Kept

HERE = Path(__file__).parent
PORT = 2222
READY = "ready"
NORMAL = "intel_iommu=on"
MKE2FS = ("-q", "-t", "ext4", "-O", "^has_journal,^metadata_csum", "-m", "0", "-L", "lab")
DISK_SIZE = "2G"
# What costs time under emulation and is of no use here.
MASKED = (
    "pve-guests.service", "dev-hugepages.mount", "dev-mqueue.mount", "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount", "sys-kernel-config.mount", "modprobe@configfs.service", "modprobe@dm_mod.service",
    "modprobe@drm.service", "modprobe@efi_pstore.service", "modprobe@fuse.service", "modprobe@loop.service",
    "systemd-binfmt.service", "serial-getty@ttyS0.service",
)  # fmt: skip
COMMAND_LINE = (
    "root=/dev/vda rw console=ttyS0 quiet net.ifnames=0 mitigations=off systemd.show_status=0 lab.files"
    + "".join(f" systemd.mask={unit}" for unit in MASKED)
)
# A display controller that can be unplugged, bound to vfio-pci, and saved in a snapshot (an nvme cannot).
DISPLAY = "virtio-serial-pci,class=0x0380,disable-legacy=on,iommu_platform=on,aer=on"
SECOND_FUNCTION = "virtio-rng-pci,addr=0.1,disable-legacy=on,iommu_platform=on"
GPU = "vendor=0x10de device=0x2bb1 class=0x030200"
DEVICES = f"""\
0000:41:00.0 {GPU}
0000:42:00.0 {GPU}
0000:81:00.0 driver=vfio-pci {GPU}
0000:81:00.1 driver=vfio-pci
0000:82:00.0 {GPU}
"""


class LabVm:
    """
    A virtual machine with two NUMA nodes, an emulated Intel IOMMU, and devices behind PCIe root ports.

    The same Debian as `NspawnHost`, without its container. PCI addresses, each in an IOMMU group of its own:
    41:00.0 and 42:00.0 (NUMA node 0, driver virtio-pci), 81:00.0 with its second function 81:00.1 (node 1, vfio-pci),
    82:00.0 (node 1, unbound: qemu's edu, whose DMA `edu_fault.py` steers), all shown with NVIDIA's ids;
    83:00.0 (node 1, virtio-pci) is a display controller of another vendor.

    It boots once, in about a minute on two quiet cores; `reset` goes back to a snapshot in seconds.
    Everything that it writes is in memory. Nothing is left when it stops, or when the process that started it dies
    in any way, but the console's log.

    Args:
        alias: The machine's name, and its name in `ssh_config`.
        image: What it boots; built or taken from the cache by default.

    Attributes:
        alias: As given.

    Example:
        with LabVm() as vm:
            subprocess.run(["ssh", "-F", vm.ssh_config, vm.destination, "uname"], check=True)
    """

    def __init__(self, alias: str = "lab-vm", *, image: Image | None = None) -> None:
        self.alias = alias
        self._image = image
        self._kept: Kept | None = None
        self._kernel_arguments = NORMAL
        self._touched = False
        self._checkpoints: set[str] = set()

    # Reaching it.

    @property
    def address(self) -> str:
        """An address of this machine's loopback, on whose port 2222 the machine's sshd answers."""
        return f"127.77.{self._running.slot}.11"

    @property
    def destination(self) -> str:
        """The ssh destination as a user would write it, root@127.77.N.11; `ssh_config` has its key and port."""
        return f"root@{self.address}"

    @property
    def folder(self) -> Path:
        """The machine's private files: `ssh_config`, `client_key`, `known_hosts`, `qemu.log`."""
        return self._running.folder

    @property
    def ssh_config(self) -> Path:
        """An ssh configuration for the machine, by alias or address, with its real host key."""
        return self.folder / "ssh_config"

    @property
    def console(self) -> Path:
        """The serial console's log; it stays when the machine ends."""
        folder = Path(os.environ.get("GPUINFRA_LAB_LOGS") or HERE.parents[1] / "reports/lab")
        return folder / f"{self.alias}-console.log"

    def ssh(self, command: str, *, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command through a fresh ssh."""
        return self._ssh(command, "", timeout_s)

    # Start and stop.

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, *, timeout_s: float = 400) -> None:
        """
        Boot, wait until sshd logs in and systemd has nothing more to start, and take the snapshot for `reset`.

        Raises:
            LabError: Not root, or not up within `timeout_s`; the text has the end of the console and its path.
        """
        require_root()
        install_packages("controller", "controller-vm")
        image = self._image = self._image or ensure_image()
        disk = ensure_disk(image)
        self.console.parent.mkdir(parents=True, exist_ok=True)
        self.console.unlink(missing_ok=True)
        try:
            kept = self._kept = Kept(image)
            self._write_files()
            (kept.folder / "qemu").write_text(self._arguments())
            kept.start(str(HERE / "vm.sh"), str(kept.folder), str(disk))
            self.wait_until_up(timeout_s)
            self._ssh("systemctl is-system-running --wait; sync", "", timeout_s)
            self.checkpoint(READY)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the machine and remove everything of it but the console's log; harmless when it is not running."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        self._kernel_arguments = NORMAL
        self._checkpoints.clear()

    def reboot(self, *, timeout_s: float = 400, hard: bool = False) -> str:
        """
        Reboot by `systemctl reboot`, or `hard`, as by the reset button once all is on disk.

        Returns:
            The new boot id.

        Raises:
            LabError: Not up again with another boot id within `timeout_s`.
        """
        before = self.boot_id
        if hard:
            self.shell("journalctl --sync; sync; echo u >/proc/sysrq-trigger", timeout_s=timeout_s)
            self.monitor("system_reset")
        else:
            self.shell("systemctl reboot --no-block", check=False)
        return self.wait_until_up(timeout_s, not_boot_id=before)

    def restart(self, kernel_arguments: str, *, timeout_s: float = 400) -> str:
        """
        Power off and start again with another kernel command line on the same disk, until `reset`.

        Args:
            kernel_arguments: What takes the place of "intel_iommu=on".
            timeout_s: Deadline of the boot.

        Returns:
            The new boot id.
        """
        before = self.boot_id
        self.shell("journalctl --sync; sync; echo u >/proc/sysrq-trigger", timeout_s=timeout_s)
        self._kernel_arguments = kernel_arguments
        self._power_cycle(self._arguments())
        return self.wait_until_up(timeout_s, not_boot_id=before)

    def checkpoint(self, name: str) -> None:
        """Keep the state of this moment, memory and disk, under a name for `restore`."""
        self.monitor(f"savevm {name}")
        self._checkpoints.add(name)
        self._touched = name != READY

    def has_checkpoint(self, name: str) -> bool:
        """Whether `checkpoint` was called with this name since the start."""
        return name in self._checkpoints

    def restore(self, name: str) -> None:
        """Go back to a `checkpoint`; a second or two, whatever was done since."""
        # A device that has changed what a snapshot takes for fixed, as an AER error does, is only restored afresh.
        if self._kernel_arguments != NORMAL or not self.running or not self._load(name):
            self._kernel_arguments = NORMAL
            self._power_cycle(self._arguments(f"-loadvm {name}"))
        self._touched = name != READY
        self.wait_until_up(120)

    def reset(self) -> bool:
        """
        Bring the machine back to its state after `start`, if `shell` or anything else may have changed it.

        Returns:
            Whether it was brought back.
        """
        if not self._touched and self.running:
            return False
        self.restore(READY)
        return True

    # Doing something to it.

    def shell(
        self, command: Command, *, stdin: str = "", check: bool = True, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """
        Run a command as root inside the machine: for injecting faults and for looking.

        Args:
            command: Text for /bin/sh, or an argument list.
            stdin: Text for its standard input.
            check: Whether an exit status other than 0 is an error.
            timeout_s: Deadline; subprocess.TimeoutExpired is raised then.

        Raises:
            LabError: The command failed and `check` is set; its output is in the text.
        """
        self._touched = True
        done = self._ssh(command if isinstance(command, str) else shlex.join(command), stdin, timeout_s)
        if check and done.returncode:
            raise LabError(f"{command!r} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def monitor(self, command: str) -> str:
        """
        Give qemu's monitor a command, "pcie_aer_inject_error gpu0 UNSUP", and return what it says.

        Raises:
            LabError: It says that something is wrong, or does not answer.
        """
        self._touched = True
        with _monitor(self.folder / "monitor") as ask:
            said = str(ask("human-monitor-command", {"command-line": command}))
        if said.lstrip().lower().startswith(("error", "unknown")):
            raise LabError(f"qemu's monitor on {command!r}: {said}")
        return said

    # Looking at it.

    @property
    def boot_id(self) -> str:
        """The machine's boot id now."""
        return self._ssh("cat /proc/sys/kernel/random/boot_id", "", 60).stdout.strip()

    @property
    def running(self) -> bool:
        """Whether qemu runs."""
        return self._kept is not None and self._kept.alive and not (self._kept.folder / "ended").exists()

    def wait_until_up(self, timeout_s: float = 400, *, not_boot_id: str = "") -> str:
        """
        Wait until ssh logs in.

        Args:
            timeout_s: Deadline.
            not_boot_id: The boot that must be over.

        Returns:
            The boot id.

        Raises:
            LabError: The deadline passed or qemu ended; the text has the end of the console and its path.
        """
        deadline = time.monotonic() + timeout_s
        last = ""
        while time.monotonic() < deadline and self.running:
            try:
                done = self._ssh("cat /proc/sys/kernel/random/boot_id", "", 20)
                last = done.stdout + done.stderr
                if done.returncode == 0 and (boot_id := done.stdout.strip()) != not_boot_id:
                    return boot_id
            except subprocess.TimeoutExpired as error:
                last = str(error)
            time.sleep(0.3)
        said = "".join(_tail(path) for path in (self.folder / "qemu.log", self.console))
        said += f"The whole console: {self.console}"
        raise LabError(f"{self.alias} is not up within {timeout_s:.0f} s. Last seen: {last}\n{said}")

    # Below here: how.

    @property
    def _running(self) -> Kept:
        if self._kept is None:
            raise LabError(f"{self.alias} is not started")
        return self._kept

    def _ssh(self, command: str, stdin: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        argv = ["ssh", "-F", str(self.ssh_config), "-o", "BatchMode=yes", self.alias, command]
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, timeout=timeout_s)

    def _power_cycle(self, arguments: str) -> None:
        """End qemu and have it started with other arguments."""
        folder = self.folder
        (folder / "next").write_text(arguments)
        with contextlib.suppress(OSError, LabError), _monitor(folder / "monitor") as ask:
            ask("quit")
        deadline = time.monotonic() + 30
        while (folder / "next").exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _load(self, name: str) -> bool:
        with contextlib.suppress(LabError):
            self.monitor(f"loadvm {name}")
        return "running" in self.monitor("info status")

    def _write_files(self) -> None:
        folder = self.folder
        write_host_files(folder, self.alias, self.address, port=PORT)
        files = folder / "files"
        network = files / "etc/systemd/network/10-eth0.network"
        network.parent.mkdir(parents=True)
        network.write_text("[Match]\nName=eth0\n\n[Network]\nAddress=10.0.2.15/24\nLinkLocalAddressing=no\n")
        (files / "etc/lab").mkdir()
        (files / "etc/lab/devices").write_text(DEVICES)

    def _arguments(self, *more: str) -> str:
        """Give qemu's options and their values, one a line."""
        assert self._image is not None
        folder, boot = self.folder, self._image.root / "boot"
        (kernel,), (initrd,) = boot.glob("vmlinuz-*"), boot.glob("initrd.img-*")
        # Needed before the second disk is read: the journal's folder has this name.
        machine = (folder / "files/etc/machine-id").read_text().strip()
        ports = (
            _behind_port("node0", 0, f"{DISPLAY},id=gpu0"),
            _behind_port("node0", 1, f"{DISPLAY},id=gpu1"),
            _behind_port("node1", 2, f"{DISPLAY},id=gpu2,addr=0.0,multifunction=on", SECOND_FUNCTION),
            _behind_port("node1", 3, "edu,dma_mask=0xffffffffffffffff"),
            _behind_port("node1", 4, DISPLAY),
        )
        rest = "".join((*ports, *(f"{line}\n" for line in more)))
        return f"""\
-accel tcg,thread=multi
-M q35
-cpu max
-smp 2,sockets=2
-m 1024
-nodefaults
-display none
-object memory-backend-ram,id=m0,size=512M
-object memory-backend-ram,id=m1,size=512M
-numa node,nodeid=0,cpus=0,memdev=m0
-numa node,nodeid=1,cpus=1,memdev=m1
-device intel-iommu,intremap=on
-chardev file,id=console,path={self.console},append=on
-serial chardev:console
-qmp unix:{folder}/monitor,server=on,wait=off
-kernel {kernel}
-initrd {initrd}
-append {COMMAND_LINE} systemd.hostname={self.alias} systemd.machine_id={machine} {self._kernel_arguments}
-drive file={folder}/mnt/disk.qcow2,if=none,id=disk,cache=unsafe
-drive file={folder}/mnt/files.tar,if=none,id=files,format=raw,readonly=on
-device virtio-blk-pci,drive=disk,bus=pcie.0,addr=3
-device virtio-blk-pci,drive=files,bus=pcie.0,addr=6
-netdev user,id=net,restrict=on,hostfwd=tcp:{self.address}:{PORT}-10.0.2.15:22
-device virtio-net-pci,netdev=net,bus=pcie.0,addr=4,romfile=
-device virtio-rng-pci,bus=pcie.0,addr=5
-device pxb-pcie,id=node0,bus_nr=64,numa_node=0,bus=pcie.0,addr=8
-device pxb-pcie,id=node1,bus_nr=128,numa_node=1,bus=pcie.0,addr=9
{rest}"""


def ensure_disk(image: Image) -> Path:
    """
    Give the image as a file system in a file, made first if it is not there: some seconds.

    Returns:
        An ext4 file system, never to be written to; beside the image's tree, and pruned with it.
    """
    key = hashlib.sha256(" ".join((*MKE2FS, DISK_SIZE)).encode()).hexdigest()[:8]
    disk = image.root.parent / f"disk-{key}.ext4"
    with (lab_cache() / "build.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not disk.exists():
            part = disk.with_suffix(".part")
            part.unlink(missing_ok=True)
            argv = ["mke2fs", *MKE2FS, "-d", str(image.root), str(part), DISK_SIZE]
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode:
                raise LabError(f"mke2fs ended with status {done.returncode}: {done.stderr}")
            part.rename(disk)
    return disk


def _behind_port(node: str, number: int, *devices: str) -> str:
    """Give a PCIe root port on one NUMA node's host bridge, and what is plugged into it."""
    place = number if node == "node0" else number - 2
    port = f"pcie-root-port,id=port{number},bus={node},chassis={10 + number},slot={number},addr={place}"
    return "".join(f"-device {device}\n" for device in (port, *(f"{device},bus=port{number}" for device in devices)))


@contextlib.contextmanager
def _monitor(path: Path) -> Iterator[Any]:
    """Open qemu's monitor (QMP); yields a function that runs one command and gives its answer."""
    deadline = time.monotonic() + 30
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(120)
        while True:
            try:
                channel.connect(str(path))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > deadline:
                    raise LabError(f"qemu does not listen on {path}") from None
                time.sleep(0.05)
        stream = channel.makefile("rw", encoding="utf-8")

        def ask(command: str, arguments: dict[str, str] | None = None) -> object:
            stream.write(json.dumps({"execute": command, "arguments": arguments or {}}) + "\n")
            stream.flush()
            for line in stream:
                answer = json.loads(line)
                if "error" in answer:
                    raise LabError(f"qemu on {command}: {answer['error']}")
                if "return" in answer:
                    return answer["return"]
            return ""  # it ended

        stream.readline()  # the greeting
        ask("qmp_capabilities")
        yield ask


def _tail(path: Path, size: int = 3000) -> str:
    return f"--- {path.name} ends:\n{path.read_text(errors='replace')[-size:]}\n" if path.exists() else ""
