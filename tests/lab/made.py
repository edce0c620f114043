"""What the nspawn host shows in place of this machine's own GPUs, IOMMU groups, command line and kernel log."""

from __future__ import annotations

import os
from pathlib import Path

from tests.recorded.made_host import MadeFunction, MadeHost

COMMAND_LINE = "root=/dev/mapper/pve-root ro quiet amd_iommu=on"
GROUPS = {"01": 40, "11": 41, "81": 42, "91": 43}
_MEM32, _MEM64 = 0x40200, 0x14220C


def made_host() -> MadeHost:
    """
    Give four GPUs behind root ports, two with the nvidia driver and two with vfio-pci, and a clean kernel log.

    Composed from the kernel's documented formats; PCI addresses 01:00.0, 11:00.0, 81:00.0 and 91:00.0, each with
    an audio function in its own IOMMU group (`GROUPS`, by bus).
    """
    functions = []
    for place, (bus, group) in enumerate(GROUPS.items()):
        port, node = f"0000:{int(bus, 16) - 1:02x}:01.1", place // 2
        driver, audio = ("nvidia", "snd_hda_intel") if node == 0 else ("vfio-pci", "vfio-pci")
        bar1 = 0x2C000000000 + place * 0x8000000000
        functions += [
            MadeFunction(port, (), 0x1022, 0x153E, 0x060400, "pcieport", 10 + place, node, acs_control=0x1D),
            MadeFunction(
                f"0000:{bus}:00.0", (port,), driver=driver, group=group, numa_node=node,
                bars={0: (0xB0000000 + place * 0x4000000, 0x4000000, _MEM32), 1: (bar1, 0x2000000000, _MEM64)},
            ),
            MadeFunction(
                f"0000:{bus}:00.1", (port,), device=0x22E8, class_code=0x040300, driver=audio, group=group,
                numa_node=node, bars={0: (0xA0000000 + place * 0x4000, 0x4000, _MEM32)},
            ),
        ]  # fmt: skip
    nvrm = "NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3-B17-02-5)"
    return MadeHost(
        functions,
        files={
            "/proc/cmdline": COMMAND_LINE + "\n",
            "/proc/driver/nvidia/params": "ResmanDebugLevel: 4294967295\nDmaRemapPeerMmio: 1\n",
            "/proc/driver/nvidia/version": (
                f"NVRM version: {nvrm}  Tue Sep 23 09:55:41 UTC 2025\nGCC version:  gcc version 14.2.0 (Debian)\n"
            ),
        },
        kmsg=[
            (5, 0.0, f"Linux version {os.uname().release} (lab@lab) (gcc (Debian 12.2.0-14) 12.2.0) #1 SMP"),
            (6, 0.0, f"Command line: {COMMAND_LINE}"),
            (6, 0.000001, "BIOS-provided physical RAM map:"),
            (4, 0.083, "AMD-Vi: Unknown option - 'on'"),
            (6, 0.112, "iommu: Default domain type: Translated"),
            (6, 0.112, "iommu: DMA domain TLB invalidation policy: lazy mode"),
            (6, 0.131, "AMD-Vi: Interrupt remapping enabled"),
            (6, 0.202, "nvidia-nvlink: Nvlink Core is being initialized, major device number 234"),
            (6, 0.203, f"NVRM: loading {nvrm}  Tue Sep 23 09:55:41 UTC 2025"),
        ],
    )


def write_made(tree: Path) -> None:
    """Lay the made host below `tree`, where `lab-made.service` of the host's image looks for it."""
    host = made_host()
    host.write(tree / "usr/lib/lab/made")
    lines = [f"<{priority}>[{seconds:12.6f}] {message}\n" for priority, seconds, message in host.kmsg]
    (tree / "usr/lib/lab/kernel-log").write_text("".join(lines))
