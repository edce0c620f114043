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
from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError, ParseError
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry
from pytest_gpuinfra.wire import load

_WORDS = {"Y": True, "1": True, "N": False, "0": False}
_SAYS_ON = re.compile(
    r"SEV-SNP (?:enabled|supported|API)|RMP table physical|virt/tdx: (?:TDX )?module (?:is )?initialized"
)
_OFF = {
    "sev-snp": re.compile(
        r"\bSNP: .*(?:cannot be supported|not supported|disabled|failed)|SEV-SNP (?:disabled|unusable|not (?:enabled|"
        r"supported))|SEV-SNP: .*(?:\bnot\b|failed|disabled|timed out)",
        re.IGNORECASE,
    ),
    "sev-es": re.compile(r"SEV-ES (?:disabled|unusable|not (?:enabled|supported))", re.IGNORECASE),
    "sev": re.compile(
        r"\bSEV (?:disabled|unusable|not (?:enabled|supported))|\bccp .*\bSEV: .*(?:failed|not|timed out|disabled)",
        re.IGNORECASE,
    ),
    "tdx": re.compile(r"virt/tdx: .*(?:failed|disabled|not supported)", re.IGNORECASE),
}
"""Kernel messages by what they tell to be off. What SEV lacks, SEV-ES and SEV-SNP lack, too."""
_FAMILY = ("sev-snp", "sev-es", "sev")
"""Of AMD, the strongest first; they need /dev/sev."""


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
    _log_error: GpuInfraError | None = field(default=None, repr=False)

    @property
    def level(self) -> str:
        """
        The strongest that is offered: "sev-snp", "sev-es", "sev", "tdx", "none".

        The module's parameter, the kernel's log and, of AMD, /dev/sev must agree.

        Raises:
            FactUnavailable: One of them cannot be read, and the others do not decide.
            ParseError: A parameter is no switch.
        """
        for name in (*_FAMILY, "tdx"):
            if self._parameter(name.replace("-", "_")) and self._agreed(name):
                return name
        return "none"

    @property
    def against(self) -> tuple[str, ...]:
        """Why something that a module's parameter switches on is not offered. Shape (n,)."""
        device = () if self.sev_device or not self._parameter("sev") else ("/dev/sev is missing",)
        return (*device, *self.says_off)

    @property
    def sev_device(self) -> bool:
        """Whether /dev/sev, the way to the security processor, is there."""
        reading = self._reading("dev_sev")
        if reading.missing:
            return False
        text = reading.require()
        try:
            return bool(load(text)["mode"])
        except (ValueError, KeyError, TypeError):
            raise ParseError(reading.source, 1, text, "not the status of a file") from None

    def _agreed(self, name: str) -> bool:
        """Tell whether nothing speaks against what a parameter switches on."""
        if name in _FAMILY and not self.sev_device:
            return False
        if self._log_error is not None:
            raise self._log_error
        weaker = _FAMILY[_FAMILY.index(name) :] if name in _FAMILY else (name,)
        return not any(_OFF[one].search(message) for one in weaker for message in self.says_off)

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


def parse_confidential(
    readings: Node, log: Iterable[KernelLogEntry] = (), log_error: GpuInfraError | None = None
) -> ConfidentialComputing:
    """
    Read the state of confidential computing.

    Args:
        readings: "sev", "sev_es", "sev_snp" (parameters of kvm_amd), "tdx" (of kvm_intel), "dev_sev" (stat).
        log: Entries of this boot's kernel log, for what the kernel says of it.
        log_error: Why nobody can read that; None if it was read.
    """
    messages = [entry.message for entry in log]
    off = tuple(message for message in messages if any(pattern.search(message) for pattern in _OFF.values()))
    on = tuple(message for message in messages if _SAYS_ON.search(message) and message not in off)
    return ConfidentialComputing(on, off, readings, log_error)
