"""
The CUDA driver API and NVML through ctypes, as far as the GPU programs need them.

This file imports safe_path.py and supervisor.py only and runs on Python 3.6 and later with the standard library only.
Source: cuda.h 13.0 (names and versions of the calls, attribute numbers), nvml.h.
"""

import ctypes
import os
import threading

from safe_path import UnsafeError, load_library
from supervisor import TroubleError

DEVICE_POINTER = ctypes.c_uint64
MULTIPROCESSORS = 16
COMPUTE_MODE = 20
CAPABILITY_MAJOR = 75
CAPABILITY_MINOR = 76
COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}
PEER_ACCESS_ALREADY_ENABLED = 704
OUT_OF_MEMORY = 2
JIT_ERROR_LOG = 5
JIT_ERROR_LOG_SIZE = 6
IPC_LAZY_PEER_ACCESS = 1
EVENT_DEFAULT = 0
STREAM_NON_BLOCKING = 1
THREADS = 512


class IpcHandle(ctypes.Structure):
    """An opaque handle to a device allocation, for another process."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class DlInfo(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def library_path(function):
    """Give the file that a call of a loaded library comes from; None if it cannot be told."""
    try:
        ask = ctypes.CDLL(None).dladdr
    except (OSError, AttributeError):
        return None
    info = DlInfo()
    if not ask(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(info)) or not info.file:
        return None
    return os.path.realpath(info.file.decode("utf-8", "backslashreplace"))


def stand_in(library):
    """Say which of the tests' stand-ins a library is, by the symbol that only those have; None for a real one."""
    for kind in ("sham", "interposer"):
        try:
            getattr(library, "gpuinfra_" + kind)
            return kind
        except AttributeError:
            continue
    return None


class Driver:
    """The loaded driver library."""

    def __init__(self):
        try:
            self.library = load_library("libcuda.so.1")
        except UnsafeError as error:
            raise TroubleError("library", str(error)) from error
        except OSError as error:
            raise TroubleError(
                "library",
                "libcuda.so.1 cannot be loaded (%s): the NVIDIA driver's user-space part is not installed here, "
                "or the container was started without it" % error,
            ) from error
        self.stand_in = stand_in(self.library)
        self.call("cuInit", ctypes.c_uint(0))
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        self.version = "%d.%d" % (number.value // 1000, number.value % 1000 // 10)

    def function(self, *names):
        """Give the first of these calls that this driver has."""
        for name in names:
            try:
                return getattr(self.library, name)
            except AttributeError:
                continue
        raise TroubleError("library", "this driver is too old: it has no %s" % names[0])

    def code(self, name, *arguments):
        """Call, and give the result code."""
        return self.function(name)(*arguments)

    def call(self, name, *arguments):
        """Call, and raise where the driver refuses."""
        code = self.function(name)(*arguments)
        if code:
            self.refuse(name, code)

    def refuse(self, name, code):
        """Raise for a result code."""
        text = ctypes.c_char_p()
        self.library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        word = (text.value or b"unknown error").decode()
        raise TroubleError("memory" if code == OUT_OF_MEMORY else "cuda", "%s returned %d (%s)" % (name, code, word))

    def count(self):
        """Give the number of visible devices."""
        number = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def report(self):
        """Say which library this is."""
        return {
            "path": library_path(self.function("cuLaunchKernel")),
            "version": self.version,
            "sham": self.stand_in is not None,
            "stand_in": self.stand_in,
        }


class Device:
    """One visible device; `open` gives it a context, a stream and the kernels."""

    def __init__(self, driver, index):
        self.driver = driver
        self.index = index
        self.handle = ctypes.c_int()
        driver.call("cuDeviceGet", ctypes.byref(self.handle), ctypes.c_int(index))
        text = ctypes.create_string_buffer(128)
        driver.call("cuDeviceGetPCIBusId", text, ctypes.c_int(64), self.handle)
        self.pci = text.value.decode().lower()
        driver.call("cuDeviceGetName", text, ctypes.c_int(128), self.handle)
        self.name = text.value.decode("utf-8", "replace")
        self.mig = " MIG " in self.name
        uuid = (ctypes.c_ubyte * 16)()
        code = driver.function("cuDeviceGetUuid_v2", "cuDeviceGetUuid")(uuid, self.handle)
        hexed = "".join("%02x" % byte for byte in uuid)
        parts = (hexed[:8], hexed[8:12], hexed[12:16], hexed[16:20], hexed[20:])
        self.uuid = None if code else ("MIG-" if self.mig else "GPU-") + "-".join(parts)
        self.multiprocessors = self.attribute(MULTIPROCESSORS)
        self.memory_free = None
        self.memory_total = None
        self.context = ctypes.c_void_p()
        self.stream = ctypes.c_void_p()
        self.kernels = {}
        self.trouble = None

    def attribute(self, number):
        """Give a device attribute."""
        value = ctypes.c_int()
        self.driver.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), self.handle)
        return value.value

    def report(self):
        """Say what this device is."""
        mode = self.attribute(COMPUTE_MODE)
        return {
            "index": self.index,
            "pci": self.pci,
            "uuid": self.uuid,
            "name": self.name,
            "mig": self.mig,
            "compute_capability": "%d.%d" % (self.attribute(CAPABILITY_MAJOR), self.attribute(CAPABILITY_MINOR)),
            "multiprocessors": self.multiprocessors,
            "compute_mode": COMPUTE_MODES.get(mode, str(mode)),
            "memory_total_bytes": self.memory_total,
            "memory_free_bytes": self.memory_free,
        }

    def can_access(self, peer):
        """Whether the driver says that this device can reach the peer's memory."""
        value = ctypes.c_int()
        self.driver.call("cuDeviceCanAccessPeer", ctypes.byref(value), self.handle, peer.handle)
        return bool(value.value)

    def open(self, ptx):
        """Make the primary context current, with a stream and the kernels of the PTX text."""
        self.driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.handle)
        self.current()
        self.driver.call("cuStreamCreate", ctypes.byref(self.stream), ctypes.c_uint(STREAM_NON_BLOCKING))
        module = ctypes.c_void_p()
        log = ctypes.create_string_buffer(2048)
        options = (ctypes.c_int * 2)(JIT_ERROR_LOG, JIT_ERROR_LOG_SIZE)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), ctypes.c_void_p(len(log)))
        code = self.driver.code(
            "cuModuleLoadDataEx", ctypes.byref(module), ptx.encode(), ctypes.c_uint(2), options, values
        )
        if code:
            said = log.value.decode("utf-8", "replace").strip()
            raise TroubleError(
                "cuda", "%s: the driver does not take our kernels (code %d): %s" % (self.pci, code, said)
            )
        for name in ("fill_bytes", "copy_bytes", "check_bytes", "fill_elements", "check_elements"):
            kernel = ctypes.c_void_p()
            self.driver.call("cuModuleGetFunction", ctypes.byref(kernel), module, name.encode())
            self.kernels[name] = kernel

    def current(self):
        """Make this device's context the calling thread's."""
        self.driver.call("cuCtxSetCurrent", self.context)

    def memory(self):
        """Give (free, total) bytes, with the context made."""
        self.current()
        free = ctypes.c_size_t()
        total = ctypes.c_size_t()
        self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size):
        """Give the address of a new allocation."""
        self.current()
        address = DEVICE_POINTER()
        self.driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def launch(self, kernel, items, *arguments, blocks_per_multiprocessor=4):
        """Launch a kernel over so many items, on this device's stream."""
        self.current()
        pointers = (ctypes.c_void_p * len(arguments))(
            *[ctypes.cast(ctypes.byref(argument), ctypes.c_void_p) for argument in arguments]
        )
        blocks = max(1, min((items + THREADS - 1) // THREADS, self.multiprocessors * blocks_per_multiprocessor))
        self.driver.call(
            "cuLaunchKernel", self.kernels[kernel], blocks, 1, 1, THREADS, 1, 1, 0, self.stream, pointers, None
        )

    def finish(self):
        """Wait for this device's stream."""
        self.current()
        self.driver.call("cuStreamSynchronize", self.stream)

    def write(self, address, data):
        """Copy bytes of the host to an address, and wait."""
        self.current()
        self.driver.call("cuMemcpyHtoD_v2", DEVICE_POINTER(address), data, ctypes.c_size_t(len(data)))

    def read(self, address, size):
        """Copy bytes from an address into new memory of the host, which was zero before."""
        self.current()
        data = (ctypes.c_ubyte * size)()
        self.driver.call("cuMemcpyDtoH_v2", data, DEVICE_POINTER(address), ctypes.c_size_t(size))
        return data

    def read_words(self, address, count):
        """Copy 64-bit words from an address to the host."""
        self.current()
        words = (ctypes.c_uint64 * count)()
        self.driver.call("cuMemcpyDtoH_v2", words, DEVICE_POINTER(address), ctypes.c_size_t(8 * count))
        return list(words)

    def event(self):
        """Make an event for timing."""
        self.current()
        event = ctypes.c_void_p()
        self.driver.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(EVENT_DEFAULT))
        return event

    def record(self, event):
        """Record an event on this device's stream."""
        self.current()
        self.driver.call("cuEventRecord", event, self.stream)

    def seconds(self, begin, end):
        """Give the seconds between two recorded events, once the stream is finished."""
        self.current()
        milliseconds = ctypes.c_float()
        self.driver.function("cuEventElapsedTime")(ctypes.byref(milliseconds), begin, end)
        return max(milliseconds.value, 1e-3) / 1e3

    def enable_peer(self, peer):
        """Let this device's context reach the peer's memory."""
        self.current()
        code = self.driver.code("cuCtxEnablePeerAccess", peer.context, ctypes.c_uint(0))
        if code not in (0, PEER_ACCESS_ALREADY_ENABLED):
            self.driver.refuse("cuCtxEnablePeerAccess", code)


def open_devices(devices, ptx):
    """Open several devices at the same time; each keeps its trouble, if any, to itself."""

    def open_one(device):
        try:
            device.open(ptx)
        except TroubleError as trouble:
            device.trouble = trouble

    threads = [threading.Thread(target=open_one, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class NvmlMemory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def read_memory(devices):
    """
    Fill in each device's free and total memory from NVML, which needs no context.

    Left None where NVML is missing, refuses, or reports no memory of its own (GB10), and for MIG devices,
    whose parent it would describe.
    """
    try:
        nvml = load_library("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2():
            return
        for device in devices:
            handle = ctypes.c_void_p()
            memory = NvmlMemory()
            if device.mig or nvml.nvmlDeviceGetHandleByPciBusId_v2(device.pci.encode(), ctypes.byref(handle)):
                continue
            if not nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) and memory.total:
                device.memory_free = memory.free
                device.memory_total = memory.total
        nvml.nvmlShutdown()
    except (OSError, AttributeError, UnsafeError):
        return
