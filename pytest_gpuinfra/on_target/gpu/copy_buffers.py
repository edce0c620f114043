"""
Source and destination of copies on one device: filled, poisoned, and compared there, without peer traffic.

This file imports driver.py only and runs on Python 3.6 and later with the standard library only.
"""

import ctypes

from driver import DEVICE_POINTER, IpcHandle

GUARD = 256  # bytes on each side of a destination that nothing may touch
ORIGIN = 4096  # position in the stream of a source's first byte; guards lie before and after


class Buffers:
    """Source, destination and result words of one device, owned by this process."""

    def __init__(self, device, capacity):
        self.device = device
        self.capacity = capacity
        self.source = device.allocate(capacity + 64)
        self.destination = device.allocate(capacity + 2 * GUARD + 64)
        self.found = device.allocate(96)

    def handle(self, address):
        """Give a CUDA IPC handle of an allocation, as hexadecimal text."""
        self.device.current()
        handle = IpcHandle()
        self.device.driver.call("cuIpcGetMemHandle", ctypes.byref(handle), DEVICE_POINTER(address))
        return bytes(handle.bytes).hex()

    def fill(self, case, seed):
        """Make the source's bytes."""
        self.device.launch(
            "fill_bytes",
            case["size"],
            DEVICE_POINTER(self.source + case["src_offset"]),
            ctypes.c_uint64(case["size"]),
            ctypes.c_uint64(ORIGIN),
            ctypes.c_uint32(seed),
            ctypes.c_uint32(0),
        )

    def poison(self, case, seed):
        """Make every byte of the destination and its guards differ from what is to come."""
        size = case["size"] + 2 * GUARD
        self.device.launch(
            "fill_bytes",
            size,
            DEVICE_POINTER(self.destination + case["dst_offset"]),
            ctypes.c_uint64(size),
            ctypes.c_uint64(ORIGIN - GUARD),
            ctypes.c_uint32(seed),
            ctypes.c_uint32(1),
        )
        fresh = (ctypes.c_uint64 * 12)(*([0, 0, 0, 2**64 - 1, 0, 0] * 2))
        self.device.write(self.found, bytes(fresh))

    def check(self, case, seed):
        """Compare the destination on its own device; give what differs, None if nothing does."""
        start = self.destination + case["dst_offset"]
        size = case["size"]
        for offset, length, words in ((GUARD, size, 0), (0, GUARD, 48), (GUARD + size, GUARD, 48)):
            self.device.launch(
                "check_bytes",
                length,
                DEVICE_POINTER(start + offset),
                ctypes.c_uint64(length),
                ctypes.c_uint64(ORIGIN - GUARD + offset),
                ctypes.c_uint32(seed),
                ctypes.c_uint32(1 if words else 0),
                DEVICE_POINTER(self.found + words),
            )
        self.device.finish()
        found = self.device.read_words(self.found, 12)
        if not found[0] and not found[6]:
            return None
        return {
            "size_bytes": size,
            "src_offset": case["src_offset"],
            "dst_offset": case["dst_offset"],
            "wrong_bytes": found[0],
            "never_written_bytes": found[1],
            "zeroed_bytes": found[2],
            "scrambled_bytes": found[0] - found[1] - found[2],
            "first_wrong_offset": found[3] if found[0] else None,
            "last_wrong_offset": found[4] if found[0] else None,
            "guard_wrong_bytes": found[6],
        }


def items_of(case):
    """Give how many threads a copy kernel can use."""
    return max(1, case["size"] // (64 if (case["src_offset"] | case["dst_offset"]) % 16 == 0 else 1))


def launch_copy(device, case, destination, source, count):
    """Launch the copying kernel on a device, so many times."""
    for _ in range(count):
        device.launch(
            "copy_bytes",
            items_of(case),
            DEVICE_POINTER(destination),
            DEVICE_POINTER(source),
            ctypes.c_uint64(case["size"]),
            blocks_per_multiprocessor=8,
        )
