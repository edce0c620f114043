"""
Have qemu's edu device read or write one memory address by DMA: sent on standard input to the virtual machine.

    python3 - 0000:82:00.0 0xdead0000 read <edu_fault.py

Nothing is mapped there for the device, so the IOMMU refuses it. Under an identity domain it reads real memory.

Source: qemu docs/specs/edu.rst.
"""

import mmap
import os
import struct
import sys
import time

FROM, TO, COUNT, COMMAND = 0x80, 0x88, 0x90, 0x98
OWN_BUFFER = 0x40000


def main(address: str, target: str, access: str) -> None:
    device = f"/sys/bus/pci/devices/{address}"
    with open(f"{device}/resource") as file:
        bar0 = int(file.readline().split()[0], 16)
    config = os.open(f"{device}/config", os.O_RDWR)
    (command,) = struct.unpack("<H", os.pread(config, 2, 4))
    os.pwrite(config, struct.pack("<I", bar0), 0x10)  # edu forgets it when a snapshot is loaded
    os.pwrite(config, struct.pack("<H", command | 6), 4)  # memory space and bus master
    registers = memoryview(mmap.mmap(os.open(f"{device}/resource0", os.O_RDWR | os.O_SYNC), 0x1000)).cast("I")
    source, destination = (int(target, 0), OWN_BUFFER) if access == "read" else (OWN_BUFFER, int(target, 0))
    for register, value in ((FROM, source), (TO, destination), (COUNT, 64), (COMMAND, 1 if access == "read" else 3)):
        registers[register // 4] = value
    while registers[COMMAND // 4] & 1:
        time.sleep(0.01)


main(*sys.argv[1:])
