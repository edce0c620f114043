"""
What a machine runs in, by `systemd-detect-virt`.

Source: systemd-detect-virt(1) (257), table of "VM" and "Container" words; it ends with status 1 and prints "none"
on bare metal.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import ParseError

_VMS = frozenset(
    {
        "qemu", "kvm", "amazon", "zvm", "vmware", "microsoft", "oracle", "powervm", "xen", "bochs", "uml",
        "parallels", "bhyve", "qnx", "acrn", "apple", "sre", "google", "vm-other",
    }
)  # fmt: skip
_CONTAINERS = frozenset(
    {
        "openvz", "lxc", "lxc-libvirt", "systemd-nspawn", "docker", "podman", "rkt", "wsl", "proot", "pouch",
        "container-other",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Virtualization:
    """
    What the machine runs in.

    Attributes:
        word: systemd's word, verbatim.
    """

    word: str

    @property
    def is_vm(self) -> bool:
        """Whether it is a virtual machine: PCI functions may be emulated, and hide capabilities."""
        return self.word in _VMS

    @property
    def is_container(self) -> bool:
        """Whether it is a container: the kernel, its log and /sys are the host's."""
        return self.word in _CONTAINERS


def parse_virtualization(reading: Reading) -> Virtualization:
    """
    Read the output of `systemd-detect-virt`; its exit status 1 is its way of saying none.

    Raises:
        FactUnavailable: It could not be started.
        ParseError: It printed another word than it has.
    """
    word = reading.require(remedy="systemd-detect-virt comes with systemd").strip()
    if word != "none" and word not in _VMS | _CONTAINERS:
        raise ParseError(reading.source, 1, word, "not a word of systemd-detect-virt")
    return Virtualization(word)
