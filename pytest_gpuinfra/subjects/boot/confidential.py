"""
Confidential computing that the host can offer to its guests: AMD SEV, SEV-ES, SEV-SNP, and Intel TDX.

Source: Linux arch/x86/kvm/svm/sev.c (parameters of kvm_amd, 0 and 1 up to 5.x, Y and N since),
Documentation/virt/kvm/x86/amd-memory-encryption.rst, drivers/iommu/amd/init.c iommu_snp_enable() for the
messages (6.8 to 6.17), arch/x86/virt/svm/sev.c (RMP table), arch/x86/virt/vmx/tdx/tdx.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from pytest_gpuinfra.capture.reading import Node, Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry

_WORDS = {"Y": True, "1": True, "N": False, "0": False}
_SAYS_ON = re.compile(
    r"SEV-SNP (?:enabled|supported|API)|RMP table physical|virt/tdx: (?:TDX )?module (?:is )?initialized"
)
_SAYS_OFF = re.compile(
    r"\bSNP: .*(?:cannot be supported|not supported|disabled|failed)|SEV-SNP (?:disabled|unusable)"
    r"|SEV-SNP: .*(?:\bnot\b|failed|disabled)|virt/tdx: .*(?:failed|disabled|not supported)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ConfidentialComputing:
    """
    What the running kernel offers to guests.

    Attributes:
        says_on: Kernel messages that tell of it, in log order. Shape (n,).
        says_off: Kernel messages that tell why it is off, in log order. Shape (n,).
    """

    says_on: tuple[str, ...]
    says_off: tuple[str, ...]
    _node: Node = field(repr=False, hash=False)

    @property
    def sev(self) -> bool:
        """Whether kvm_amd offers SEV; a missing module offers nothing."""
        return self._parameter("sev")

    @property
    def sev_es(self) -> bool:
        """Whether kvm_amd offers SEV-ES."""
        return self._parameter("sev_es")

    @property
    def sev_snp(self) -> bool:
        """Whether kvm_amd offers SEV-SNP; a kernel before 6.11 has no such parameter, and offers none."""
        return self._parameter("sev_snp")

    @property
    def tdx(self) -> bool:
        """Whether kvm_intel offers TDX."""
        return self._parameter("tdx")

    @property
    def sev_device(self) -> bool:
        """Whether /dev/sev, the way to the security processor, is there."""
        reading = self._reading("dev_sev")
        if reading.missing:
            return False
        reading.require()
        return True

    @property
    def level(self) -> str:
        """The strongest that is offered: "sev-snp", "sev-es", "sev", "tdx", "none"."""
        for name, offered in (
            ("sev-snp", self.sev_snp),
            ("sev-es", self.sev_es),
            ("sev", self.sev),
            ("tdx", self.tdx),
        ):
            if offered:
                return name
        return "none"

    def _parameter(self, name: str) -> bool:
        reading = self._reading(name)
        if reading.missing:
            return False
        word = reading.require().strip()
        if word not in _WORDS:
            raise ParseError(reading.source, 1, word, "neither Y, N, 1 nor 0")
        return _WORDS[word]

    def _reading(self, name: str) -> Reading:
        reading = self._node.get(name)
        if reading is None:
            raise FactUnavailable(name, "not asked for")
        return reading


def parse_confidential(readings: Node, log: Iterable[KernelLogEntry] = ()) -> ConfidentialComputing:
    """
    Read the state of confidential computing.

    Args:
        readings: "sev", "sev_es", "sev_snp" (parameters of kvm_amd), "tdx" (of kvm_intel), "dev_sev" (stat).
        log: Entries of this boot's kernel log, for what the kernel says of it.
    """
    messages = [entry.message for entry in log]
    off = tuple(message for message in messages if _SAYS_OFF.search(message))
    on = tuple(message for message in messages if _SAYS_ON.search(message) and message not in off)
    return ConfidentialComputing(on, off, readings)
