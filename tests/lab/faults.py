"""
The fault table: what is wrong, done for real to a lab host, and exactly which items must say so.

A row is added to `FAULTS`; nothing else has to be changed. Every item that the row does not name must end as on the
same host while it is healthy. A row that names none is harmless: the host must be judged as if nothing had happened.
Faults that a checkpoint or a fresh start does not undo by itself, or that are cheap to undo, have an `undo`.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .image import HERE
from .nspawn import NspawnHost
from .vm import LabVm

Step: TypeAlias = str | Callable[[Any], object]
"""Something done to a host: a shell command run as root inside it, or a function of the host."""

Words: TypeAlias = str | tuple[str, ...]
ALL = "*"
LOG = "items on the kernel log"
"""Stands for every item that rests on the kernel's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """
    One row of the table.

    Attributes:
        name: What is wrong, in words; unique.
        tier: "nspawn" or "vm": the host that it is done to.
        inject: How it is done.
        fails: Items that must end in FAILED, each with what its message must say. An item is "test_name[target]",
            with the alias left out of the target ("[]" for the host itself); "*" stands for any text.
        errors: Items that must end in ERROR, likewise; where an item matches `fails` too, that holds.
        skips: Items that have nothing to judge any more, likewise.
        undo: How it is taken back; None if `reset` does it.
        prepare: What is done first, and must leave the host healthy by this row's expectations.
        expect: More expectations, lines of TOML with keys of `expect`.
        user: Who logs in.
        arguments: For pytest.
    """

    name: str
    tier: Literal["nspawn", "vm"]
    inject: Step
    fails: Mapping[str, Words] = field(default_factory=dict)
    errors: Mapping[str, Words] = field(default_factory=dict)
    skips: Mapping[str, Words] = field(default_factory=dict)
    undo: Step | None = None
    prepare: Step | None = None
    expect: str = ""
    user: str = "root"
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def matches(pattern: str, item: str) -> bool:
    """Tell whether an item is one of those that a row names."""
    if pattern == LOG:
        return item.startswith(("test_no_", "test_gpu_initialised_", "test_every_error_"))
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), item) is not None


def do(step: Step | None, host: Any) -> None:
    """Do something to a host."""
    if isinstance(step, str):
        host.shell(step)
    elif step is not None:
        step(host)


# Steps.


def steps(*several: Step) -> Callable[[Any], None]:
    """Do several steps, one after the other."""

    def step(host: Any) -> None:
        for one in several:
            do(one, host)

    return step


def logs(*messages: str) -> str:
    """Have the kernel's log say this, at level 3 (error)."""
    lines = "".join(f"<3>{message}\n" for message in messages)
    return f"printf %s {shlex.quote(lines)} | /usr/local/sbin/lab-kmsg"


def shell_says(text: str) -> str:
    """Lay a .bashrc over root's, which Debian's bash reads for every command that sshd runs."""
    return f"printf '%s\\n' {shlex.quote(text)} >/run/lab-bashrc && mount --bind /run/lab-bashrc /root/.bashrc"


def sshd_has(line: str) -> str:
    """Add a line to sshd's configuration."""
    return f"echo {shlex.quote(line)} >/etc/ssh/sshd_config.d/00-fault.conf && systemctl restart ssh"


def made(path: str, text: str) -> str:
    """Have one of the nspawn host's made files say something else."""
    return f"printf '%s\\n' {shlex.quote(text)} >/run/lab{path}"


def unmade(path: str) -> str:
    """Undo `made`."""
    return f"cat /usr/lib/lab/made{path} >/run/lab{path}"


def known_hosts(change: Callable[[str], str]) -> Callable[[NspawnHost], None]:
    """Change what this side knows of the host's key."""

    def step(host: NspawnHost) -> None:
        file, kept = host.folder / "known_hosts", host.folder / "known_hosts.kept"
        kept.write_text(file.read_text())
        file.write_text(change(file.read_text()))

    return step


def restore_known_hosts(host: NspawnHost) -> None:
    """Undo `known_hosts`."""
    (host.folder / "known_hosts.kept").rename(host.folder / "known_hosts")


def other_key(_: str) -> str:
    """Give the host of `known_hosts` a key that is not its own, for any name."""
    return "* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG3ZKqTYTZFtvPdYxpJmPqOqLcWgdyPlBHdLXtyBzsVp\n"


def power_off(host: NspawnHost) -> None:
    """Power the host off, and wait until it is."""
    host.shell("systemctl poweroff --no-block")
    deadline = time.monotonic() + 20
    while host.running and time.monotonic() < deadline:
        time.sleep(0.05)


def bind(device: str, driver: str) -> str:
    """Bind a PCI function to a driver; "none" for no driver."""
    at = f"/sys/bus/pci/devices/{device}"
    unbind = f"[ ! -e {at}/driver ] || echo {device} >{at}/driver/unbind"
    if driver == "none":
        return unbind
    return (
        f"modprobe {driver}; {unbind}; echo {driver} >{at}/driver_override; echo {device} >/sys/bus/pci/drivers_probe"
    )


def group_type(device: str, driver: str, word: str) -> str:
    """Give a device's IOMMU group another type while its driver is off it."""
    at = f"/sys/bus/pci/devices/{device}"
    unbind, rebind = (f"echo {device} >/sys/bus/pci/drivers/{driver}/{what}" for what in ("unbind", "bind"))
    return f"{unbind} && echo {word} >{at}/iommu_group/type && {rebind}"


def edu_reads(address: str, access: str = "read") -> Callable[[LabVm], None]:
    """Have edu, which stands for the GPU 82:00.0, reach for an address that nobody has mapped for it."""
    program = (HERE / "edu_fault.py").read_text()

    def step(host: LabVm) -> None:
        host.shell(f"python3 - 0000:82:00.0 {address} {access}; sleep 0.5", stdin=program)

    return step


def monitor(command: str, wait_s: float = 2) -> Callable[[LabVm], None]:
    """Give qemu's monitor a command, and the machine time to notice."""

    def step(host: LabVm) -> None:
        host.monitor(command)
        time.sleep(wait_s)

    return step


BY_HAND = f"{bind('0000:41:00.0', 'vfio-pci')}; {group_type('0000:42:00.0', 'virtio-pci', 'identity')}; " + logs(
    "NVRM: Xid (PCI:0000:42:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)


def rebooted(host: LabVm) -> None:
    """Do by hand what a reboot takes back, and reboot; one reboot for all rows that ask for it."""
    if host.has_checkpoint("rebooted"):
        host.restore("rebooted")
        return
    host.restore("ready")
    host.shell(f"{BY_HAND}; journalctl --sync")
    host.reboot()
    host.checkpoint("rebooted")


def restarted(kernel_arguments: str) -> Callable[[LabVm], None]:
    """Start the machine with another kernel command line; one boot for all that ask for it."""
    name = re.sub(r"\W+", "-", kernel_arguments)

    def step(host: LabVm) -> None:
        if host.has_checkpoint(name):
            host.restore(name)
            return
        host.restart(kernel_arguments)
        host.checkpoint(name)

    return step


def login_shell(path: str) -> str:
    """Give root another login shell."""
    edited = f"sed '/^root:/s|/bin/bash|{path}|' /etc/passwd >/run/lab-passwd"
    return f"{edited} && mount --bind /run/lab-passwd /etc/passwd"


# More than the ring buffer holds: a little at a time, each taken by the journal before the next is written.
SLOW_FLOOD = """sysctl -q kernel.printk_devkmsg=on
python3 -c "
import subprocess
for number in range(300):
    with open('/dev/kmsg', 'w') as log:
        log.write('<6>lab: filler %d %s\\n' % (number, 'x' * 900))
    if number % 25 == 24:
        subprocess.check_call(['journalctl', '--sync'])
"
"""
# The journal is stopped until the ring buffer has lost records that it has not read.
FAST_FLOOD = """sysctl -q kernel.printk_devkmsg=on
python3 -c "
import os, signal, sys
journal = int(sys.argv[1])


def first():
    log = os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK)
    while True:
        try:
            number = int(os.read(log, 8192).split(b',')[1])
        except BrokenPipeError:
            continue
        os.close(log)
        return number


def last():
    log = os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK)
    found = 0
    while True:
        try:
            found = int(os.read(log, 8192).split(b',')[1])
        except BrokenPipeError:
            continue
        except BlockingIOError:
            os.close(log)
            return found


os.kill(journal, signal.SIGSTOP)
try:
    read = last()
    while first() <= read + 100:
        for number in range(200):
            with open('/dev/kmsg', 'w') as log:
                log.write('<6>lab: filler %d %s\\n' % (number, 'x' * 200))
finally:
    os.kill(journal, signal.SIGCONT)
" "$(systemctl show -p MainPID --value systemd-journald)"
journalctl --sync
"""
KMSG_XID = "NVRM: Xid (PCI:0000:{}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FILE = "/etc/modprobe.d/gpu-iommu-identity.conf"
PORT = "/sys/devices/pci0000:00/0000:00:01.1"
GPU = f"{PORT}/0000:01:00.0"
UNLOG = "rm /var/log/journal/*/lab-fault.journal"
UNDO_SSHD = "rm /etc/ssh/sshd_config.d/00-fault.conf && systemctl restart ssh"
UNDO_SHELL = "umount /root/.bashrc"
NO_LOG_BEGIN = (
    "rm /var/log/journal/*/lab-boot.journal; tail -n +4 /usr/lib/lab/kernel-log | /usr/local/sbin/lab-kmsg --name=boot"
)
LOG_BEGIN = "rm -f /var/log/journal/*/lab-boot.journal; /usr/local/sbin/lab-kmsg --name=boot </usr/lib/lab/kernel-log"


def _nspawn(name: str, inject: Step, **rest: Any) -> Fault:
    return Fault(name=name, tier="nspawn", inject=inject, **rest)


def _vm(name: str, inject: Step, **rest: Any) -> Fault:
    return Fault(name=name, tier="vm", inject=inject, **rest)


def _says(name: str, *messages: str, **rest: Any) -> Fault:
    """A row of the nspawn host: its kernel's log says something."""
    return _nspawn(name, logs(*messages), undo=UNLOG, **rest)


def _shell(name: str, text: str, **rest: Any) -> Fault:
    """A row of the nspawn host: root's login shell does something."""
    return _nspawn(name, shell_says(text), undo=UNDO_SHELL, **rest)


REACHING = (
    _nspawn(
        "host is powered off", power_off, errors={ALL: "ssh"}, arguments=("--gpu-connect-timeout=3",)
    ),
    _nspawn(
        "sshd is stopped", "systemctl stop ssh", errors={ALL: "nothing listens on its ssh port"}
    ),
    _nspawn(
        "host key is unknown", known_hosts(lambda _: ""), undo=restore_known_hosts,
        errors={ALL: "its host key is not known here"},
    ),
    _nspawn(
        "host key has changed", known_hosts(other_key), undo=restore_known_hosts,
        errors={ALL: "its host key is not the one in known_hosts"},
    ),
    _nspawn(
        "login key is refused",
        "mount --bind /dev/null /root/.ssh/authorized_keys", undo="umount /root/.ssh/authorized_keys",
        errors={ALL: "the login was refused"},
    ),
    _nspawn(
        "root may not have a shell", login_shell("/usr/sbin/nologin"), undo="umount /etc/passwd",
        errors={ALL: "python3"},
    ),
    _nspawn("python3 is missing", "rm /usr/bin/python3", errors={ALL: "python3"}),
    _nspawn(
        "python3 does not start", "mount -t tmpfs none /usr/lib/python3.11/encodings",
        undo="umount /usr/lib/python3.11/encodings", errors={ALL: "python3"},
    ),
    _shell("login shell hangs", "sleep 99", errors={ALL: "3 s"}, arguments=("--gpu-connect-timeout=3",)),
    _shell("connection is cut at once", "kill -9 $PPID", errors={ALL: "lab-a"}),
    _shell("login shell prints noise", "echo Welcome to $(hostname)!; echo quota: 93 % of /home used >&2"),
    _shell("login shell prints 200 kB of noise", "yes noise | head -c 200000; yes noise | head -c 200000 >&2"),
    _shell("login shell takes 5 s", "sleep 5"),
    _nspawn("sshd has MaxSessions 1", sshd_has("MaxSessions 1"), undo=UNDO_SSHD),
    _nspawn("root's PATH has no sbin", sshd_has("SetEnv PATH=/usr/bin:/bin"), undo=UNDO_SSHD),
    _nspawn("root's shell is csh", login_shell("/bin/csh"), undo="umount /etc/passwd"),
    _nspawn("disk is full", lambda host: host.fill(), undo=lambda host: host.fill(undo=True)),
)  # fmt: skip

KERNEL_LOG = (
    _says(
        "Xid 79", KMSG_XID.format("01"),
        fails={"test_no_xid_on_the_gpu[01:00.0]": ("Xid (PCI:0000:01:00): 79", "fallen off the bus")},
    ),
    _says(
        "Xid 154, recovery asked for",
        "NVRM: Xid (PCI:0000:11:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        fails={"test_no_xid_on_the_gpu[11:00.0]": "Node Reboot Required"},
    ),
    _says("Xid 13 of an application", "NVRM: Xid (PCI:0000:01:00): 13, pid=71, name=python3, Graphics Exception: ESR"),
    _says(
        "Xid of a GPU that is gone", KMSG_XID.format("c1"),
        fails={"test_no_gpu_fault_without_a_known_device[]": "0000:c1:00"},
    ),
    _says(
        "Xid in a form that nobody knows", "NVRM: Xid (PCI:0000:01:00): abc, pid=71",
        errors={"test_no_xid_on_the_gpu[01:00.0]": "a form that is not known"},
    ),
    _says(
        "GPU fell off the bus without a Xid",
        "NVRM: The NVIDIA GPU 0000:01:00.0\n<3>NVRM: (PCI ID: 10de:2bb1) installed in this system has\n"
        "<3>NVRM: fallen off the bus and is not responding to commands.",
        fails={"test_no_xid_on_the_gpu[01:00.0]": "fallen off the bus"},
    ),
    _says(
        "FSP did not boot under identity",
        "NVRM: Xid (PCI:0000:01:00): 143, Error status 0x65 while polling for FSP boot complete, 0x177, 0x0, 0x0",
        "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x65:2062)",
        "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
        fails={
            "test_no_xid_on_the_gpu[01:00.0]": ("143", "0x177"),
            "test_gpu_initialised_without_failure[01:00.0]": "RmInitAdapter failed",
        },
    ),
    _says(
        "AMD-Vi IO_PAGE_FAULT at a peer's BAR1",
        "nvidia 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0021 address=0x34000010000 flags=0x0020]",
        fails={"test_no_iommu_fault_by_the_gpu[01:00.0]": ("IO_PAGE_FAULT", "01:00.0 tried to reach BAR1 of 11:00.0")},
    ),
    _says(
        "AMD-Vi held faults back",
        "nvidia 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0021 address=0x10000 flags=0x0020]",
        "amd_iommu_report_page_fault: 1207 callbacks suppressed",
        fails={"test_no_iommu_fault_by_the_gpu[01:00.0]": "1208"},
    ),
    _says(
        "AER fatal",
        "pcieport 0000:00:01.1: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
        fails={"test_no_pcie_error_by_the_gpu[01:00.0]": "Uncorrected (Fatal)"},
    ),
    _says(
        "AER corrected",
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    ),
    _says(
        "machine check",
        "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 17: dc2040000000011b",
        fails={"test_no_machine_check_and_no_memory_kill[]": "Bank 17"},
    ),
    _says(
        "process killed for want of memory",
        "Out of memory: Killed process 4242 (sglang::schedul) total-vm:402653184kB, anon-rss:201326592kB, UID:0",
        fails={"test_no_machine_check_and_no_memory_kill[]": "sglang::schedul"},
    ),
    _nspawn(
        "Xid 79 in the log of an earlier boot", steps(logs(KMSG_XID.format("01")), lambda host: host.reboot())
    ),
    _nspawn(
        "log has lost its beginning", NO_LOG_BEGIN, undo=LOG_BEGIN,
        errors={LOG: "the beginning of this boot is missing"},
    ),
    _nspawn(
        "log has lost its beginning, and holds a Xid",
        f"{NO_LOG_BEGIN}; {logs(KMSG_XID.format('01'))}", undo=f"{UNLOG}; {LOG_BEGIN}",
        fails={"test_no_xid_on_the_gpu[01:00.0]": "fallen off the bus"},
        errors={LOG: "the beginning of this boot is missing"},
    ),
    _nspawn(
        "log is gone", "rm /var/log/journal/*/lab-boot.journal", undo=LOG_BEGIN,
        errors={LOG: "kernel log"},
    ),
    _nspawn("log is not for this user to read", "true", user="op", errors={LOG: "root"}),
    _nspawn(
        "log is read by sudo", "true", user="op", arguments=("--gpu-sudo",),
        prepare="echo 'op ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/lab", undo="rm /etc/sudoers.d/lab",
    ),
    _nspawn(
        "sudo asks for a password", "rm /etc/sudoers.d/lab", user="op", arguments=("--gpu-sudo",),
        prepare="echo 'op ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/lab", errors={ALL: "sudo"},
    ),
)  # fmt: skip

HOST_UNITS = (
    _nspawn(
        "host unit is stopped", "systemctl stop gpu-persistence", undo="systemctl start gpu-persistence",
        fails={"test_unit_is_in_the_expected_state[gpu-persistence.service]": "inactive (dead)"},
    ),
    _nspawn(
        "host unit has failed", "systemctl kill --signal=KILL gpu-persistence; sleep 0.2",
        undo="systemctl reset-failed gpu-persistence; systemctl start gpu-persistence",
        fails={"test_unit_is_in_the_expected_state[gpu-persistence.service]": "failed (failed)"},
    ),
    _nspawn(
        "host unit is gone",
        "systemctl disable -q --now gpu-persistence; rm /etc/systemd/system/gpu-persistence.service; "
        "systemctl daemon-reload",
        fails={"test_unit_is_in_the_expected_state[gpu-persistence.service]": "not-found"},
    ),
    _nspawn(
        "host unit does not come back from a reboot",
        steps("systemctl disable -q gpu-persistence", lambda host: host.reboot()),
        fails={"test_unit_is_in_the_expected_state[gpu-persistence.service]": "inactive (dead)"},
    ),
    _nspawn(
        "left-over unit is enabled", "systemctl enable -q gpu-iommu-identity",
        undo="systemctl disable -q gpu-iommu-identity",
        fails={"test_unit_is_in_the_expected_state[gpu-iommu-identity.service]": "enabled"},
    ),
    _nspawn(
        "left-over unit was started", "systemctl start gpu-iommu-identity",
        fails={"test_unit_is_in_the_expected_state[gpu-iommu-identity.service]": "started since boot"},
    ),
    _nspawn(
        "systemctl cannot be run", "mount --bind /dev/null /usr/bin/systemctl", undo="umount /usr/bin/systemctl",
        errors={"test_unit_is_in_the_expected_state*": "systemctl"},
    ),
    _nspawn(
        "file of an experiment is back", f"touch {FILE}", undo=f"rm {FILE}",
        fails={f"test_file_is_absent[{FILE}]": FILE},
    ),
)  # fmt: skip

MADE_DEVICES = (
    _nspawn(
        "pass-through asked for on the command line",
        made("/proc/cmdline", "root=/dev/sda1 amd_iommu=on iommu=pt"), undo=unmade("/proc/cmdline"),
        fails={
            "test_kernel_command_line_lacks_the_parameter[iommu=pt]": "iommu=pt",
            "test_kernel_command_line_lacks_the_parameter[iommu.passthrough=1]": "iommu=pt",
        },
    ),
    _nspawn(
        "parameter stands behind --", made("/proc/cmdline", "root=/dev/sda1 -- amd_iommu=on"),
        undo=unmade("/proc/cmdline"),
        fails={"test_kernel_command_line_has_the_parameter[amd_iommu=on]": "not in effect"},
    ),
    _nspawn(
        "GPU has half its lanes", made(f"{GPU}/current_link_width", "8"), undo=unmade(f"{GPU}/current_link_width"),
        fails={"test_link_width_is_the_expected_one[01:00.0]": ("x8", "x16")},
    ),
    _nspawn(
        "slot is of an older generation", made(f"{PORT}/max_link_speed", "16.0 GT/s PCIe"),
        undo=unmade(f"{PORT}/max_link_speed"),
        fails={"test_link_is_capable_of_the_expected_speed[01:00.0]": "16 GT/s"},
    ),
    _nspawn(
        "platform names no NUMA node", made(f"{GPU}/numa_node", "-1"), undo=unmade(f"{GPU}/numa_node"),
        fails={"test_numa_node_is_the_expected_one[01:00.0]": "the platform names none"},
    ),
    _nspawn(
        "group type is empty, as of an old kernel", "echo >/run/lab/sys/kernel/iommu_groups/40/type",
        undo=unmade("/sys/kernel/iommu_groups/40/type"),
        errors={"test_iommu_group_*[01:00.0]": "type"},
    ),
    _nspawn(
        "another driver is loaded",
        made("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  "),
        undo=unmade("/proc/driver/nvidia/version"),
        fails={"test_driver_version_is_the_expected_one[]": ("575.57.08", "580.*")},
    ),
    _nspawn(
        "driver parameter has another value",
        made("/proc/driver/nvidia/params", "DmaRemapPeerMmio: 0"), undo=unmade("/proc/driver/nvidia/params"),
        fails={"test_driver_parameter_has_the_expected_value[DmaRemapPeerMmio]": "DmaRemapPeerMmio"},
    ),
    _nspawn(
        "driver is not loaded", "mount -t tmpfs none /proc/driver/nvidia", undo="umount /proc/driver/nvidia",
        errors={
            "test_driver_version_*": "/proc/driver/nvidia/version",
            "test_driver_parameter_*": "/proc/driver/nvidia/params",
        },
    ),
)  # fmt: skip

VM_DEVICES = (
    _vm(
        "one group's type is switched at run time", group_type("0000:42:00.0", "virtio-pci", "identity"),
        fails={"test_iommu_group_type_is_the_expected_one[42:00.0]": ("identity", "DMA-FQ")},
    ),
    _vm(
        "type switched by hand is lost at the reboot", rebooted, prepare=BY_HAND,
        expect=(
            'kernel_log.xid_class = { "79" = "ignore" }\n'
            'devices = [{ pci = ["42:00.0"], group_type = "identity" }, { pci = ["41:00.0", "81:00.0", "82:00.0"] }]'
        ),
        fails={"test_iommu_group_type_is_the_expected_one[42:00.0]": ("DMA-FQ", "identity", "lost at a reboot")},
    ),
    _vm(
        "driver bound by hand is lost at the reboot", rebooted, prepare=BY_HAND,
        expect=(
            'kernel_log.xid_class = { "79" = "ignore" }\n'
            'devices = [{ pci = ["41:00.0"], driver = "vfio-pci" }, { pci = ["42:00.0", "81:00.0", "82:00.0"] }]'
        ),
        fails={"test_device_is_bound_to_the_expected_driver[41:00.0]": ("virtio-pci", "vfio-pci", "lost at a reboot")},
    ),
    _vm("real log of an earlier boot holds a Xid", rebooted),
    _vm(
        "all groups are identity (iommu=pt)", restarted("intel_iommu=on iommu=pt"),
        fails={
            "test_iommu_group_type_is_the_expected_one*": ("identity", "DMA-FQ"),
            "test_kernel_command_line_lacks_the_parameter[iommu=pt]": "iommu=pt",
        },
    ),
    _vm(
        "IOMMU is off", restarted("intel_iommu=off"),
        fails={
            "test_iommu_group_type_is_the_expected_one*": ("no group", "DMA-FQ"),
            "test_kernel_command_line_has_the_parameter[intel_iommu=on]": "intel_iommu=off",
            "test_device_is_bound_to_the_expected_driver[81:00.0]": ("none", "vfio-pci"),
            "test_gpu_initialised_without_failure[81:00.0]": "failed with error -22",
        },
        errors={"test_iommu_group_is_shared_only_as_expected*": "it is in no group"},
    ),
    _vm(
        "GPU of the service is on vfio-pci", bind("0000:41:00.0", "vfio-pci"),
        fails={"test_device_is_bound_to_the_expected_driver[41:00.0]": ("vfio-pci", "virtio-pci")},
    ),
    _vm(
        "GPU of the VM is on a host driver", bind("0000:81:00.0", "virtio-pci"),
        fails={"test_device_is_bound_to_the_expected_driver[81:00.0]": ("virtio-pci", "vfio-pci")},
    ),
    _vm(
        "GPU is bound to no driver", bind("0000:42:00.0", "none"),
        fails={"test_device_is_bound_to_the_expected_driver[42:00.0]": "none"},
    ),
    _vm(
        "second function of the VM's card is on a host driver", bind("0000:81:00.1", "virtio-pci"),
        fails={"test_companion_functions_follow[81:00.0]": "81:00.1 on virtio-pci"},
    ),
    _vm(
        "GPU is gone from the bus", "echo 1 >/sys/bus/pci/devices/0000:42:00.0/remove",
        fails={"test_device_is_present[42:00.0]": "no function at this address"},
        errors={
            "test_device_is_bound_to_the_expected_driver[42:00.0]": "42:00.0",
            "test_iommu_group_*[42:00.0]": "42:00.0",
            "test_numa_node_is_the_expected_one[42:00.0]": "42:00.0",
            "test_link_*[42:00.0]": "42:00.0",
        },
    ),
    _vm(
        "second function of the VM's card is gone", "echo 1 >/sys/bus/pci/devices/0000:81:00.1/remove",
        fails={"test_iommu_group_is_shared_only_as_expected[81:00.0]": "81:00.1"},
        skips={"test_companion_functions_follow[81:00.0]": "no other function"},
    ),
    _vm(
        "GPU that nobody declared",
        "printf '0000:83:00.0 vendor=0x10de device=0x2bb1\\n' >/run/more && /usr/local/sbin/lab-devices /run/more",
        fails={"test_every_gpu_of_the_host_is_expected[]": "83:00.0"},
    ),
    _vm(
        "module parameter has another value", "echo 60 >/sys/module/nvme_core/parameters/io_timeout",
        fails={"test_module_parameter_has_the_expected_value[nvme_core.io_timeout]": ("60", "30")},
    ),
)  # fmt: skip

VM_KERNEL = (
    _vm(
        "DMAR fault: GPU reads where it may not", edu_reads("0xdead0000"),
        fails={"test_no_iommu_fault_by_the_gpu[82:00.0]": ("DMA Read", "82:00.0", "0xdead0000")},
    ),
    _vm(
        "DMAR fault: GPU writes where it may not", edu_reads("0xbeef0000", "write"),
        fails={"test_no_iommu_fault_by_the_gpu[82:00.0]": ("DMA Write", "82:00.0", "0xbeef0000")},
    ),
    _vm(
        "PCIe port reports an uncorrected error", monitor("pcie_aer_inject_error gpu0 UNSUP"),
        fails={"test_no_pcie_error_by_the_gpu[41:00.0]": ("Uncorrected (Non-Fatal)", "41:00.0")},
        # The kernel could not recover it, and reads nothing more from it.
        errors={"test_link_is_capable_of_the_expected_speed[41:00.0]": "max_link_speed of 0000:41:00.0"},
    ),
    # qemu raises no interrupt for a corrected error, so the kernel's line is put into its log.
    _vm(
        "PCIe port reports a corrected error",
        logs("virtio-pci 0000:42:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"),
    ),
    _vm(
        "kernel kills a process that passed its own group's limit",
        "systemd-run --quiet --wait --property=MemoryMax=40M --property=MemorySwapMax=0 "
        "python3 -c 'x = bytearray(200 << 20)' || true",
    ),
    _vm(
        "group type is refused while a driver is bound",
        "echo identity >/sys/bus/pci/devices/0000:42:00.0/iommu_group/type || true",
    ),
    _vm(
        "AMD-Vi event in the ring buffer",
        logs("AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:41:00.0 domain=0x0021 address=0x10000 flags=0x0020]"),
        fails={"test_no_iommu_fault_by_the_gpu[41:00.0]": "IO_PAGE_FAULT"},
    ),
    _vm(
        "Xid 79 in the ring buffer", logs(KMSG_XID.format("41")),
        fails={"test_no_xid_on_the_gpu[41:00.0]": "79"},
    ),
    _vm("ring buffer has overflowed, the journal has all", SLOW_FLOOD),
    _vm(
        "ring buffer has overflowed, with a DMAR fault in what was lost",
        steps(edu_reads("0xdead0000"), SLOW_FLOOD),
        fails={"test_no_iommu_fault_by_the_gpu[82:00.0]": ("DMA Read", "0xdead0000")},
    ),
    _vm(
        "ring buffer has overflowed faster than the journal could take it",
        FAST_FLOOD,
        errors={LOG: "the journal, which has missed messages"},
    ),
    _vm(
        "ring buffer and journal have lost the beginning",
        steps(SLOW_FLOOD, "journalctl -q --rotate; journalctl -q --vacuum-size=1K"),
        errors={LOG: "the beginning of this boot is missing"},
    ),
    _vm("dmesg_restrict, and not root", "true", user="op", errors={LOG: "root"}),
    _vm("clock is wrong by a day", "date --set='-1 day'"),
    _vm("all file systems have gone read-only", "echo u >/proc/sysrq-trigger; sleep 1"),
)  # fmt: skip

FAULTS: tuple[Fault, ...] = (*REACHING, *KERNEL_LOG, *HOST_UNITS, *MADE_DEVICES, *VM_DEVICES, *VM_KERNEL)


def faults_of(tier: str) -> list[Fault]:
    """Give the rows of one tier, in the table's order."""
    return [fault for fault in FAULTS if fault.tier == tier]


assert len({fault.name for fault in FAULTS}) == len(FAULTS)
