"""
What is true on a host once a fault has taken hold; looked at until it is, before the host is judged.

An injection that a busy machine delays or swallows is an error of the test, never a verdict on the plugin. Each row of
`faults.FAULTS` and of `service_faults.FAULTS` has a condition here: a shell condition inside the host (of a service's
fault: inside the container), or a function of the host.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from .faults import FAULTS, FILE, GPU, KMSG_XID, PORT
from .image import LabError
from .service_faults import FAULTS as SERVICE_FAULTS
from .service_lab import SITE, UNIT, ServiceLab

Condition: TypeAlias = str | Callable[[Any], bool]
HOLD_S = 60.0


def wait_until_held(name: str, condition: Condition, host: Any, timeout_s: float = HOLD_S) -> None:
    """
    Wait until a condition is true on a host.

    Raises:
        LabError: It is not, in all that time.
    """
    deadline = time.monotonic() + timeout_s
    while not holds(condition, host):
        if time.monotonic() > deadline:
            raise LabError(f"the fault {name!r} has not taken hold within {timeout_s:.0f} s: {condition}")
        time.sleep(0.2)


def holds(condition: Condition, host: Any) -> bool:
    """Tell whether a condition is true on a host."""
    if callable(condition):
        return condition(host)
    shell = host.host.container_shell if isinstance(host, ServiceLab) else host.shell
    return bool(shell(condition, check=False).returncode == 0)


def _logged(*messages: str) -> str:
    """The journal has these of the kernel, of whichever boot."""
    return " && ".join(
        f"journalctl -q -o short-monotonic _TRANSPORT=kernel | grep -qF -- {shlex.quote(message)}"
        for message in messages
    )


def _reads(path: str, text: str) -> str:
    return f'[ "$(cat {path})" = {shlex.quote(text)} ]'


def _shows(unit: str, key: str, value: str) -> str:
    return f'[ "$(systemctl show -p {key} --value {unit})" = {value} ]'


def _sshd(line: str) -> str:
    return f"sshd -T | grep -qixF {shlex.quote(line)}"


def _bound(device: str, driver: str) -> str:
    link = f"/sys/bus/pci/devices/{device}/driver"
    return f"[ ! -e {link} ]" if driver == "none" else f'[ "$(basename "$(readlink -f {link})")" = {driver} ]'


def _host(condition: str) -> Callable[[ServiceLab], bool]:
    """Make a condition on the host of one on a service's host."""
    return lambda lab: lab.host.shell(condition, check=False).returncode == 0


OVERFLOWN = """python3 -c "
import os
log = os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK)
while True:
    try:
        first = os.read(log, 8192)
        break
    except BrokenPipeError:
        pass
exit(int(first.split(b',')[1]) == 0)
"
"""
"""The ring buffer's oldest record is not the boot's first."""
JOURNAL_IS_NOT = "journalctl -q -b -o cat _TRANSPORT=driver | grep -q '^Missed [0-9]* kernel messages'"
JOURNAL_IS_WHOLE = f"! {JOURNAL_IS_NOT}"
JOURNAL_BEGINS = "journalctl -q -k -o cat | head -n 40 | grep -q '^Linux version'"
UNMAPPED = "journalctl -q -k -o cat | grep -q '82:00.0.*fault addr 0x{}'"
NO_BEGINNING = "! journalctl -q -k -o cat | grep -q '^Linux version'"
PERSISTENCE, IDENTITY = "gpu-persistence.service", "gpu-iommu-identity.service"
MODULE = "/sys/module/nvme_core/parameters/io_timeout"
USER_READS_NO_LOG = "! id -nG op | grep -qwE 'root|adm|systemd-journal'"

HOST: Mapping[str, Condition] = {
    "host is powered off": lambda host: not host.running,
    "sshd is stopped": "! systemctl is-active -q ssh",
    "host key is unknown": lambda host: not (host.folder / "known_hosts").read_text(),
    "host key has changed": lambda host: (host.folder / "known_hosts").read_text().startswith("* "),
    "login key is refused": "[ ! -s /root/.ssh/authorized_keys ]",
    "root may not have a shell": "getent passwd root | grep -q ':/usr/sbin/nologin$'",
    "python3 is missing": "[ ! -e /usr/bin/python3 ]",
    "python3 does not start": "! python3 -c 0",
    "login shell hangs": "grep -q '^sleep 99' /root/.bashrc",
    "connection is cut at once": "grep -q '^kill -9' /root/.bashrc",
    "login shell prints noise": "grep -q 'home used' /root/.bashrc",
    "login shell prints 200 kB of noise": "grep -q 'yes noise' /root/.bashrc",
    "login shell takes 5 s": "grep -qx 'sleep 5' /root/.bashrc",
    "sshd has MaxSessions 1": _sshd("MaxSessions 1"),
    "root's PATH has no sbin": _sshd("SetEnv PATH=/usr/bin:/bin"),
    "root's shell is csh": "getent passwd root | grep -q ':/bin/csh$'",
    "disk is full": '[ "$(df --output=avail / | tail -1)" -eq 0 ]',
    "Xid 79": _logged(KMSG_XID.format("01")),
    "Xid 154, recovery asked for": _logged("(PCI:0000:11:00): 154"),
    "Xid 13 of an application": _logged("(PCI:0000:01:00): 13"),
    "Xid of a GPU that is gone": _logged(KMSG_XID.format("c1")),
    "Xid in a form that nobody knows": _logged("(PCI:0000:01:00): abc"),
    "GPU fell off the bus without a Xid": _logged("NVRM: fallen off the bus and is not responding"),
    "FSP did not boot under identity": _logged("polling for FSP boot complete", "rm_init_adapter failed"),
    "AMD-Vi IO_PAGE_FAULT at a peer's BAR1": _logged("address=0x34000010000 flags=0x0020]"),
    "AMD-Vi held faults back": _logged("1207 callbacks suppressed"),
    "AER fatal": _logged("severity=Uncorrected (Fatal)"),
    "AER corrected": _logged("severity=Corrected"),
    "machine check": _logged("Machine Check: 0 Bank 17"),
    "process killed for want of memory": _logged("Killed process 4242"),
    "Xid 79 in the log of an earlier boot": _logged(KMSG_XID.format("01")),
    "log has lost its beginning": NO_BEGINNING,
    "log has lost its beginning, and holds a Xid": f"{NO_BEGINNING} && {_logged(KMSG_XID.format('01'))}",
    "log is gone": "! ls /var/log/journal/*/lab-boot.journal",
    "log is not for this user to read": USER_READS_NO_LOG,
    "log is read by sudo": "runuser -u op -- sudo -n true",
    "sudo asks for a password": "! runuser -u op -- sudo -n true",
    "host unit is stopped": _shows(PERSISTENCE, "SubState", "dead"),
    "host unit has failed": _shows(PERSISTENCE, "SubState", "failed"),
    "host unit is gone": _shows(PERSISTENCE, "LoadState", "not-found"),
    "host unit does not come back from a reboot": f"! systemctl is-enabled -q {PERSISTENCE}",
    "left-over unit is enabled": f"systemctl is-enabled -q {IDENTITY}",
    "left-over unit was started": f'[ "$(systemctl show -p ExecMainStartTimestampMonotonic --value {IDENTITY})" != 0 ]',
    "systemctl cannot be run": "[ ! -s /usr/bin/systemctl ]",
    "file of an experiment is back": f"[ -e {FILE} ]",
    "pass-through asked for on the command line": "grep -qw iommu=pt /proc/cmdline",
    "parameter stands behind --": "grep -q -- '-- amd_iommu=on' /proc/cmdline",
    "GPU has half its lanes": _reads(f"{GPU}/current_link_width", "8"),
    "slot is of an older generation": _reads(f"{PORT}/max_link_speed", "16.0 GT/s PCIe"),
    "platform names no NUMA node": _reads(f"{GPU}/numa_node", "-1"),
    "group type is empty, as of an old kernel": _reads("/sys/kernel/iommu_groups/40/type", ""),
    "another driver is loaded": "grep -q 575.57.08 /proc/driver/nvidia/version",
    "driver parameter has another value": "grep -qx 'DmaRemapPeerMmio: 0' /proc/driver/nvidia/params",
    "driver is not loaded": "[ ! -e /proc/driver/nvidia/version ]",
    "one group's type is switched at run time": _reads(
        "/sys/bus/pci/devices/0000:42:00.0/iommu_group/type", "identity"
    ),
    "type switched by hand is lost at the reboot": _reads(
        "/sys/bus/pci/devices/0000:42:00.0/iommu_group/type", "DMA-FQ"
    ),
    "driver bound by hand is lost at the reboot": _bound("0000:41:00.0", "virtio-pci"),
    "real log of an earlier boot holds a Xid": _logged(KMSG_XID.format("42")),
    "all groups are identity (iommu=pt)": "grep -qw iommu=pt /proc/cmdline",
    "IOMMU is off": "grep -qw intel_iommu=off /proc/cmdline",
    "GPU of the service is on vfio-pci": _bound("0000:41:00.0", "vfio-pci"),
    "GPU of the VM is on a host driver": _bound("0000:81:00.0", "virtio-pci"),
    "GPU is bound to no driver": _bound("0000:42:00.0", "none"),
    "second function of the VM's card is on a host driver": _bound("0000:81:00.1", "virtio-pci"),
    "GPU is gone from the bus": "[ ! -e /sys/bus/pci/devices/0000:42:00.0 ]",
    "second function of the VM's card is gone": "[ ! -e /sys/bus/pci/devices/0000:81:00.1 ]",
    "GPU that nobody declared": _reads("/sys/bus/pci/devices/0000:83:00.0/vendor", "0x10de"),
    "module parameter has another value": _reads(MODULE, "60"),
    "DMAR fault: GPU reads where it may not": UNMAPPED.format("dead0000"),
    "DMAR fault: GPU writes where it may not": UNMAPPED.format("beef0000"),
    "PCIe port reports an uncorrected error": _logged("Uncorrected"),
    "PCIe port reports a corrected error": _logged("Corrected"),
    "kernel kills a process that passed its own group's limit": _logged("Memory cgroup out of memory"),
    "group type is refused while a driver is bound": "[ -e /sys/bus/pci/devices/0000:42:00.0/driver ]",
    "AMD-Vi event in the ring buffer": _logged("device=0000:41:00.0 domain=0x0021"),
    "Xid 79 in the ring buffer": _logged(KMSG_XID.format("41")),
    "ring buffer has overflowed, the journal has all": (f"{JOURNAL_IS_WHOLE} && {JOURNAL_BEGINS} && {OVERFLOWN}"),
    "ring buffer has overflowed, with a DMAR fault in what was lost": (
        f"{JOURNAL_IS_WHOLE} && {JOURNAL_BEGINS} && {UNMAPPED.format('dead0000')} && {OVERFLOWN}"
    ),
    "ring buffer has overflowed faster than the journal could take it": f"{JOURNAL_IS_NOT} && {OVERFLOWN}",
    "ring buffer and journal have lost the beginning": f"{NO_BEGINNING} && {OVERFLOWN}",
    "dmesg_restrict, and not root": f"{_reads('/proc/sys/kernel/dmesg_restrict', '1')} && {USER_READS_NO_LOG}",
    "clock is wrong by a day": lambda host: time.time() - float(host.shell("date +%s").stdout) > 80_000,
    "all file systems have gone read-only": "grep -q '^/dev/vda / ext4 ro' /proc/mounts",
}
"""By the row's name in `faults.FAULTS`."""

_ACTIVE = "systemctl is-active -q infer"
_IN_PROCESS = "tr '\\0' '\\n' <\"/proc/$(systemctl show -p MainPID --value infer)/environ\" | grep -qx {}"
_RESTARTED = "[ $(systemctl show -p NRestarts --value infer) != 0 ]"
_STALE = _shows("infer", "NeedDaemonReload", "yes")
_OVERRIDE = "systemctl cat infer | grep -q '/infer.service.d/override.conf'"
_STOPPED = _host("! pct status 101 | grep -q running")
_RANKS = "[ $(grep -las '^infer::scheduler' /proc/[0-9]*/cmdline | wc -l) = {} ]"

SERVICE: Mapping[str, Condition] = {
    "stopped": f"! {_ACTIVE}",
    "flapping": f"{_shows('infer', 'SubState', 'auto-restart')} && {_RESTARTED}",
    "failed": "systemctl is-failed -q infer",
    "restarted by systemd": f"{_ACTIVE} && {_RESTARTED}",
    "disabled": "! systemctl is-enabled -q infer",
    "edited without reload": f"grep -q NCCL_PROTO=LL128 {UNIT} && {_STALE}",
    "touched": _STALE,
    "drop-in in a new directory": "[ -s /run/systemd/system/infer.service.d/override.conf ]",
    "drop-in reloaded": f"{_OVERRIDE} && ! {_STALE}",
    "drop-in in effect": f"{_OVERRIDE} && {_IN_PROCESS.format('NCCL_PROTO=Simple')}",
    "empty drop-in": f"! {_STALE} && systemctl show -p DropInPaths infer | grep -q override",
    "drop-in removed": "[ ! -e /etc/systemd/system/infer.service.d/10-lab.conf ]",
    "environment file changed": "grep -qx OMP_NUM_THREADS=8 /etc/default/infer",
    "environment file in effect": f"{_IN_PROCESS.format('OMP_NUM_THREADS=8')} && {_RANKS.format(2)}",
    "sitecustomize changed": f"grep -q Tree {SITE}",
    "sitecustomize in effect": f"grep -q Simple {SITE} && {_RANKS.format(2)}",
    "peer-to-peer not switched off": f"! {_IN_PROCESS.format('NCCL_P2P_DISABLE=1')} && {_RANKS.format(2)}",
    "one rank": _RANKS.format(1),
    "unknown key": f"grep -q '^Restrt=no' {UNIT} && {_ACTIVE}",
    "wrapper": f"grep -q /opt/run.sh {UNIT} && {_RANKS.format(2)}",
    "unit file gone": f"[ ! -e {UNIT} ]",
    "low limits": 'grep -q "Max open files *100 " "/proc/$(systemctl show -p MainPID --value infer)/limits"',
    "killed for memory": "journalctl -q -o cat | grep -q 'has been killed by the OOM killer'",
    "error in the log": "journalctl -q -o cat | grep -q torch.OutOfMemoryError",
    "failed unit on the host": _host("systemctl is-failed -q broken"),
    "container stopped": _STOPPED,
    "no such container": lambda lab: _STOPPED(lab) and _host("[ ! -e /etc/pve/lxc/101.conf ]")(lab),
    "container without python": "! python3 -c 0",
    "no start at boot": _host("! grep -q '^onboot: 1' /etc/pve/lxc/101.conf"),
    "not back after a reboot": _STOPPED,
    "container restarted": _RANKS.format(2),
    "device node missing": "[ ! -e /dev/nvidia-uvm ]",
    "another major": _host("grep -q '^511 nvidia-uvm' /proc/devices"),
    "driver not loaded": _host("! grep -q nvidia-uvm /proc/devices"),
    "small shared memory": '[ "$(df --output=size -k /dev/shm | tail -1)" -eq 1024 ]',
    "model not mounted": "! mountpoint -q /srv/model",
    "disk full": '[ "$(df --output=avail -k /srv/model | tail -1)" -lt 5000 ]',
}
"""By the row's name in `service_faults.FAULTS`."""

assert HOST.keys() == {fault.name for fault in FAULTS}
assert SERVICE.keys() == SERVICE_FAULTS.keys()
