"""
The sampler: what every GPU does, and which processes compute on it, while a load runs against the service.

This file imports its neighbours probe_*.py, which travel with it (bundle.py),
and runs on Python 3.6 and later with the standard library only. NVML comes through ctypes (libnvidia-ml.so.1, part of
the driver); where that cannot be loaded, nvidia-smi is asked instead.
It touches on the target nothing: it reads NVML and /proc. It needs about 20 MB, and ends after the plan's duration,
on "stop", and when its standard input does.

Plan (first line of standard input, JSON): {"duration_s": float, "interval_s": float, "port": int or null}
Then, on standard input, the line "stop" ends it before its time. Events, one JSON object a line:
    {"event": "start", "source": "NVML" or "nvidia-smi", "boot_id": str, "interval_s": float,
     "gpus": [{"pci": str, "uuid": str, "name": str, "memory_total_mib": float or null}]}
    {"event": "process", "pid": int, "name": str, "title": str, "parents": [int], "cgroup": str, "serves": bool or null}
        before the first sample that names it; "serves": it, or a process above it, listens on the plan's port, in its
        own network namespace; null where no port was given; title "" where /proc does not show it
    {"event": "sample", "at_s": float, "gpus": [{"pci": str, "activity_percent": float or null,
     "memory_used_mib": float or null, "power_w": float or null,
     "processes": [{"pid": int, "memory_mib": float or null}] or null}]}
        null: the driver does not tell; activity is the driver's own, over its last sampling period (1/6 s to 1 s)
    {"event": "error", "reason": str}          nothing can be read
    {"event": "end", "samples": int, "reason": "duration" or "stop"}
"""

import ctypes
import errno
import json
import os
import re
import select
import subprocess
import sys
import time

from probe_bounds import lines_of, read_start, run_bounded
from probe_mask import mask_argv
from safe_path import UnsafeError, load_library, resolve

MIB = 1048576.0
NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF
INSUFFICIENT_SIZE = 7
TITLE_MAX = 400
SMI_MAX = 1 << 20
SOCKETS_MAX = 1 << 26


class UnreadableError(Exception):
    """NVML or nvidia-smi cannot be asked."""


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class PciInfo(ctypes.Structure):
    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t, that of nvmlDeviceGetComputeRunningProcesses_v3."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Nvml:
    """The driver's own library."""

    source = "NVML"

    def __init__(self):
        try:
            self.library = load_library("libnvidia-ml.so.1")
        except (OSError, UnsafeError) as error:
            raise UnreadableError("libnvidia-ml.so.1: %s" % error) from None
        self.library.nvmlErrorString.restype = ctypes.c_char_p
        self.must("nvmlInit_v2")
        count = ctypes.c_uint()
        self.must("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self.devices = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            self.must("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            self.devices.append((self.address(handle), handle))

    def call(self, name, *arguments):
        try:
            return getattr(self.library, name)(*arguments)
        except AttributeError:
            return -1

    def must(self, name, *arguments):
        status = self.call(name, *arguments)
        if status:
            said = "not in this driver" if status < 0 else self.library.nvmlErrorString(status).decode()
            raise UnreadableError("%s: %s" % (name, said))

    def address(self, handle):
        info = PciInfo()
        self.must("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(info))
        return address_of(info.bus_id.decode("ascii", "replace"))

    def text(self, name, handle):
        buffer = ctypes.create_string_buffer(96)
        if self.call(name, handle, buffer, ctypes.c_uint(96)):
            return ""
        return buffer.value.decode("utf-8", "replace")

    def gpus(self):
        found = []
        for pci, handle in self.devices:
            memory = Memory()
            failed = self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
            found.append(
                {
                    "pci": pci,
                    "uuid": self.text("nvmlDeviceGetUUID", handle),
                    "name": self.text("nvmlDeviceGetName", handle),
                    "memory_total_mib": None if failed else round(memory.total / MIB, 1),
                }
            )
        return found

    def sample(self):
        found = []
        for pci, handle in self.devices:
            use, memory, power = Utilization(), Memory(), ctypes.c_uint()
            no_use = self.call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(use))
            no_memory = self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
            no_power = self.call("nvmlDeviceGetPowerUsage", handle, ctypes.byref(power))
            found.append(
                {
                    "pci": pci,
                    "activity_percent": None if no_use else float(use.gpu),
                    "memory_used_mib": None if no_memory else round(memory.used / MIB, 1),
                    "power_w": None if no_power else power.value / 1000.0,
                    "processes": self.processes(handle),
                }
            )
        return found

    def processes(self, handle):
        """Give what computes on a device; None where the driver does not tell."""
        size = 128
        while size <= 8192:
            count = ctypes.c_uint(size)
            rows = (Process * size)()
            status = self.call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), rows)
            if status == INSUFFICIENT_SIZE:
                size *= 4
                continue
            if status:
                return None
            return [
                {"pid": row.pid, "memory_mib": None if row.memory == NOT_AVAILABLE else round(row.memory / MIB, 1)}
                for row in rows[: count.value]
            ]
        return None


class NvidiaSmi:
    """The driver's command, where its library cannot be loaded."""

    source = "nvidia-smi"

    def __init__(self):
        self.known = self.gpus()
        self.by_uuid = {gpu["uuid"]: gpu["pci"] for gpu in self.known}

    def ask(self, *arguments):
        argv = ["nvidia-smi", "--format=csv,noheader,nounits", *arguments]
        try:
            seen = run_bounded([resolve(argv[0]), *argv[1:]], SMI_MAX, 20.0)
        except UnsafeError as error:
            raise UnreadableError(str(error)) from None
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise UnreadableError("nvidia-smi: %s" % (getattr(error, "strerror", None) or error)) from None
        out, err = (data.decode("utf-8", "backslashreplace") for data in (seen.out, seen.err))
        if seen.over:
            raise UnreadableError("nvidia-smi: it printed more than %d bytes" % SMI_MAX)
        if not seen.in_time:
            raise UnreadableError("nvidia-smi: no answer within 20 s")
        if seen.status:
            raise UnreadableError("nvidia-smi: status %d: %s" % (seen.status, (err or out).strip()[-300:]))
        return [[word.strip() for word in line.split(",")] for line in out.split("\n") if line.strip()]

    def gpus(self):
        rows = self.ask("--query-gpu=pci.bus_id,uuid,memory.total,name")
        return [
            {"pci": address_of(row[0]), "uuid": row[1], "memory_total_mib": number(row[2]), "name": ",".join(row[3:])}
            for row in rows
        ]

    def sample(self):
        gpus = self.ask("--query-gpu=pci.bus_id,utilization.gpu,memory.used,power.draw")
        running = {pci: [] for pci in self.by_uuid.values()}
        for row in self.ask("--query-compute-apps=gpu_uuid,pid,used_memory"):
            if row[0] in self.by_uuid and row[1].isdigit():
                running[self.by_uuid[row[0]]].append({"pid": int(row[1]), "memory_mib": number(row[2])})
        return [
            {
                "pci": address_of(row[0]),
                "activity_percent": number(row[1]),
                "memory_used_mib": number(row[2]),
                "power_w": number(row[3]),
                "processes": running.get(address_of(row[0]), []),
            }
            for row in gpus
        ]


def number(word):
    """Give nvidia-smi's number; None for any of its words that mean no value."""
    try:
        return float(word)
    except ValueError:
        return None


def address_of(text):
    """Give "0000:01:00.0" for NVML's "00000000:01:00.0"."""
    domain, _, rest = text.partition(":")
    return "%04x:%s" % (int(domain, 16), rest.lower())


def read(path, limit=1 << 16):
    try:
        return read_start(path, limit)[:limit].decode("utf-8", "backslashreplace")
    except OSError:
        return ""


def parents_of(pid):
    """Give the processes above one, the nearest first, init left out."""
    found = []
    while pid > 1 and len(found) < 64:
        fields = read("/proc/%d/stat" % pid).rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
        if pid > 1:
            found.append(pid)
    return found


def listens(pid, port):
    """
    Whether a process has a listening socket on a port, in its own network namespace.

    Raises:
        UnreadableError: The namespace has more sockets than are read.
    """
    inodes = set()
    for name in ("tcp", "tcp6"):
        try:
            for line in lines_of("/proc/%d/net/%s" % (pid, name), SOCKETS_MAX):
                words = line.decode("ascii", "replace").split()
                if len(words) > 9 and words[3] == "0A" and words[1].rpartition(":")[2] == "%04X" % port:
                    inodes.add("socket:[%s]" % words[9])
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise UnreadableError("/proc/%d/net/%s: %s" % (pid, name, error.strerror)) from None
    if not inodes:
        return False
    home = "/proc/%d/fd/" % pid
    try:
        with os.scandir(home) as entries:
            for entry in entries:
                try:
                    if os.readlink(entry.path) in inodes:
                        return True
                except OSError:
                    continue
    except OSError:
        pass
    return False


def describe(pid, port):
    """Give what /proc tells of a process."""
    argv = read("/proc/%d/cmdline" % pid).rstrip("\0").split("\0")
    parents = parents_of(pid)
    groups = [line.split(":", 2)[-1] for line in read("/proc/%d/cgroup" % pid).split("\n") if line]
    return {
        "pid": pid,
        "name": read("/proc/%d/comm" % pid).strip(),
        "title": " ".join(mask_argv(argv)).strip()[:TITLE_MAX],
        "parents": parents,
        "cgroup": max(groups, key=len) if groups else "",
        "serves": None if port is None else any(listens(one, port) for one in [pid, *parents]),
    }


def emit(event, **fields):
    data = json.dumps(dict(fields, event=event)).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def told_to_stop(timeout_s):
    """Wait; whether the controller asked for the end. Standard input's own end means that it is gone."""
    if not select.select([0], [], [], max(0.0, timeout_s))[0]:
        return False
    data = os.read(0, 65536)
    if not data:
        sys.exit(4)
    return b"stop" in data


def open_source():
    """Open NVML, or else nvidia-smi."""
    try:
        return Nvml()
    except UnreadableError as error:
        try:
            return NvidiaSmi()
        except UnreadableError as other:
            raise UnreadableError("%s; %s" % (error, other)) from None


def observe(source, plan):
    """Sample until the end; gives how many samples were taken, and why it ended."""
    started = time.monotonic()
    known = set()
    count = 0
    while True:
        gpus = source.sample()
        for pid in sorted({row["pid"] for gpu in gpus for row in gpu["processes"] or []} - known):
            known.add(pid)
            emit("process", **describe(pid, plan.get("port")))
        emit("sample", at_s=round(time.monotonic() - started, 3), gpus=gpus)
        count += 1
        left = plan["duration_s"] - (time.monotonic() - started)
        if left <= 0:
            return count, "duration"
        if told_to_stop(min(plan["interval_s"], left)):
            return count, "stop"


def main():
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            sys.exit(3)
        line += piece
    plan = json.loads(line.decode())
    try:
        source = open_source()
        gpus = source.gpus()
        boot_id = re.sub(r"\s", "", read("/proc/sys/kernel/random/boot_id"))
        emit("start", source=source.source, boot_id=boot_id, interval_s=plan["interval_s"], gpus=gpus)
        count, reason = observe(source, plan)
    except UnreadableError as error:
        emit("error", reason=str(error))
        return
    emit("end", samples=count, reason=reason)


if __name__ == "__main__":
    main()
