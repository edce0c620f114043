"""
One rank of an all-reduce arm, by libnccl alone.

This file imports its neighbours only and runs on Python 3.6 and later with the standard
library only. Sums are exact integers in every type (kernels/kernels.cu), made and checked on the rank's own GPU.
Source: nccl.h 2.28 (calls, type numbers); busbw as in nccl-tests doc/PERFORMANCE.md.
"""

import ctypes
import glob
import os
import sys

from arm import apply_environment
from driver import DEVICE_POINTER, Device, Driver, library_path, open_devices, stand_in
from safe_path import UnsafeError, check, load_library
from supervisor import TroubleError

OLDEST = 21000  # 2.10 brought bfloat16
SUM = 0
# Our name: (NCCL's number, number in kernels.cu, bytes)
TYPES = {"int32": (2, 0, 4), "float32": (7, 1, 4), "bfloat16": (9, 2, 2)}
MOST_RANKS = 16  # what the exact sums allow for


class UniqueId(ctypes.Structure):
    """ncclUniqueId, passed by value."""

    _fields_ = [("bytes", ctypes.c_ubyte * 128)]


def find_nccl(paths):
    """
    Load libnccl.

    Args:
        paths: Files to try first: those that the service's own processes have loaded, or its Python has; only a rank
            that is as the service's process gets any. Then this Python's own, then what the loader finds.

    Returns:
        The library and where it came from.
    """
    tried = []
    for path in [*paths, *packaged()]:
        try:
            check(path)
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append("%s (%s)" % (path, str(error).split(": ", 1)[-1]))
        except UnsafeError as error:
            tried.append(str(error))
    try:
        return load_library("libnccl.so.2")
    except (OSError, UnsafeError) as error:
        tried.append(str(error))
    raise TroubleError("library", "libnccl.so.2 cannot be loaded; tried " + ", ".join(tried))


def packaged():
    """Give the files of libnccl among this Python's packages, whether it has imported its site or not."""
    prefixes = [sys.prefix, os.path.dirname(os.path.dirname(sys.executable))]
    folders = [*sys.path, *(one for prefix in prefixes for one in glob.glob(prefix + "/lib*/python3*/*-packages"))]
    found = (glob.glob(os.path.join(folder, "nvidia", "nccl", "lib", "libnccl.so.2")) for folder in folders)
    return list(dict.fromkeys(path for paths in found for path in sorted(paths)))


class Nccl:
    """The loaded NCCL and one communicator."""

    def __init__(self, paths):
        self.library = find_nccl(paths)
        number = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(number))
        self.number = number.value
        # 2.9 changed the code from 2803 to 20900. Source: nccl.h, NCCL_VERSION.
        major, rest = divmod(self.number, 10000 if self.number >= 10000 else 1000)
        self.version = "%d.%d.%d" % (major, rest // 100, rest % 100)
        self.path = library_path(self.library.ncclAllReduce)
        if self.number < OLDEST:
            raise TroubleError(
                "library", "NCCL %s (%s) is older than 2.10, which bfloat16 needs" % (self.version, self.path)
            )
        self.communicator = ctypes.c_void_p()

    def call(self, name, *arguments):
        """Call, and raise where NCCL refuses."""
        try:
            code = getattr(self.library, name)(*arguments)
        except AttributeError as error:
            raise TroubleError("library", "this NCCL has no %s" % name) from error
        if code:
            self.library.ncclGetErrorString.restype = ctypes.c_char_p
            text = self.library.ncclGetErrorString(code).decode("utf-8", "replace")
            raise TroubleError("nccl", "%s returned %d (%s)" % (name, code, text))

    def report(self):
        """Say which library this is."""
        kind = stand_in(self.library)
        return {"path": self.path, "version": self.version, "sham": kind is not None, "stand_in": kind}


def open_device(plan, pci):
    """Give the opened device at a PCI address."""
    driver = Driver()
    for index in range(driver.count()):
        device = Device(driver, index)
        if device.pci == pci:
            open_devices([device], plan["ptx"])
            if device.trouble:
                raise device.trouble
            return device
    raise TroubleError("device", "no visible device has the address %s" % pci)


class Sum:
    """All-reduces of one rank, in place, in one buffer."""

    def __init__(self, nccl, device, rank, ranks, size):
        self.nccl = nccl
        self.device = device
        self.rank = rank
        self.ranks = ranks
        self.buffer = device.allocate(size)
        self.found = device.allocate(48)

    def enqueue(self, type_name, elements):
        """Enqueue one all-reduce."""
        self.nccl.call(
            "ncclAllReduce",
            ctypes.c_void_p(self.buffer),
            ctypes.c_void_p(self.buffer),
            ctypes.c_size_t(elements),
            ctypes.c_int(TYPES[type_name][0]),
            ctypes.c_int(SUM),
            self.nccl.communicator,
            self.device.stream,
        )

    def fill(self, type_name, elements, seed):
        """Put this rank's own contribution into the buffer."""
        self.device.launch(
            "fill_elements",
            elements,
            DEVICE_POINTER(self.buffer),
            ctypes.c_uint64(elements),
            ctypes.c_uint32(self.rank),
            ctypes.c_uint32(seed),
            ctypes.c_uint32(TYPES[type_name][1]),
        )
        fresh = (ctypes.c_uint64 * 6)(0, 0, 0, 2**64 - 1, 0, 0)
        self.device.finish()
        self.device.write(self.found, bytes(fresh))

    def check(self, type_name, elements, seed):
        """Compare the buffer with the sum that every rank can work out."""
        self.device.launch(
            "check_elements",
            elements,
            DEVICE_POINTER(self.buffer),
            ctypes.c_uint64(elements),
            ctypes.c_uint32(self.ranks),
            ctypes.c_uint32(self.rank),
            ctypes.c_uint32(seed),
            ctypes.c_uint32(TYPES[type_name][1]),
            DEVICE_POINTER(self.found),
        )
        self.device.finish()
        found = self.device.read_words(self.found, 6)
        return {
            "wrong_elements": found[0],
            "unreduced_elements": found[1],
            "zero_elements": found[2],
            "first_wrong_index": found[3] if found[0] else None,
        }

    def time(self, type_name, elements, count):
        """Give the seconds of one all-reduce, the mean of so many in a row."""
        for _ in range(2):
            self.enqueue(type_name, elements)
        begin, end = self.device.event(), self.device.event()
        self.device.record(begin)
        for _ in range(count):
            self.enqueue(type_name, elements)
        self.device.record(end)
        self.device.finish()
        return self.device.seconds(begin, end) / count


def reduce_in_rank(port, plan, arm, rank, devices):
    """Be one rank; what it says is told in arm.Arm."""
    apply_environment(arm)
    if len(devices) > MOST_RANKS:
        raise TroubleError("program", "exact sums are made for %d ranks at most" % MOST_RANKS)
    port.say(stage="opening the device")
    device = open_device(plan, devices[rank])
    port.say(stage="loading NCCL")
    nccl = Nccl(plan["nccl_paths"])
    port.say(stage="waiting for the other ranks", ready=nccl.report())
    port.wait()
    port.say(stage="joining the communicator")
    unique = UniqueId()
    if rank == 0:
        nccl.call("ncclGetUniqueId", ctypes.byref(unique))
        port.say(id=bytes(unique.bytes).hex())
    else:
        ctypes.memmove(ctypes.byref(unique), bytes.fromhex(port.wait()["id"]), 128)
    device.current()
    nccl.call(
        "ncclCommInitRank", ctypes.byref(nccl.communicator), ctypes.c_int(len(devices)), unique, ctypes.c_int(rank)
    )
    messages = [message for message in plan["messages"] if message["size_bytes"] <= arm["largest_bytes"]]
    work = Sum(nccl, device, rank, len(devices), max(message["size_bytes"] for message in messages))
    for number, message in enumerate(messages):
        type_name = message["type"]
        elements = message["size_bytes"] // TYPES[type_name][2]
        for repeat in range(1, plan["repeats"] + 1):
            seed = (plan["seed"] + number * 7919 + repeat) & 0xFFFFFFFF
            what = "an all-reduce of %d bytes, %s, repeat %d" % (message["size_bytes"], type_name, repeat)
            port.say(stage="calling " + what)
            work.fill(type_name, elements, seed)
            work.enqueue(type_name, elements)
            port.say(stage="waiting for " + what)
            device.finish()
            run = work.check(type_name, elements, seed)
            port.say(run=dict(run, type=type_name, size_bytes=message["size_bytes"], elements=elements, repeat=repeat))
    timed = max(messages, key=lambda message: (message["size_bytes"], message["type"] == "float32"))
    if plan["timed_sums"]:
        port.say(stage="timing all-reduces of %d bytes" % timed["size_bytes"])
        elements = timed["size_bytes"] // TYPES[timed["type"]][2]
        seconds = work.time(timed["type"], elements, plan["timed_sums"])
        port.say(speed={"type": timed["type"], "size_bytes": timed["size_bytes"], "time_s": seconds})
    port.say(stage="leaving", done=True)
    nccl.call("ncclCommDestroy", nccl.communicator)
