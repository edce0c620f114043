"""
PCI Express errors in the kernel log: AER and DPC, from the root port or from the firmware (APEI).

Source: Linux drivers/pci/pcie/aer.c aer_print_error() and pci_print_aer(), dpc.c, recovery in err.c
(kernel 2.6.36 to 6.17: "Corrected" and "Uncorrected" became "Correctable" and "Uncorrectable" in 6.16).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry

_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_SEVERITY = r"(?P<severity>Correct(?:ed|able)|Uncorrect(?:ed|able) \((?:Non-)?Fatal\))"
_ERROR = re.compile(
    rf"(?:(?<![\w.-])(?P<driver>[\w.-]+) )?(?P<pci>{_PCI}): (?:AER: )?PCIe Bus Error: "
    rf"severity={_SEVERITY}, type=(?P<layer>[^,]+)"
)
_ANNOUNCED = re.compile(
    rf"(?P<port>{_PCI}): AER: (?P<many>Multiple )?{_SEVERITY} error (?:message )?received"
    rf"(?: from|:) (?P<pci>{_PCI}|id=\w+)"
)
_FIRMWARE = re.compile(rf"(?P<pci>{_PCI}): (?:AER: )?aer_(?P<which>cor_|uncor_)?status: (?P<status>0x\w+)")
_CONTAINED = re.compile(rf"(?P<pci>{_PCI}): DPC: containment event")
_RECOVERY_FAILED = re.compile(rf"(?P<pci>{_PCI}): (?:AER: )?device recovery failed")
_NEEDLES = ("AER", "Bus Error", "aer_", "DPC: ", "recovery failed")
_NAME = re.compile(rf"(?P<pci>{_PCI}): (?:AER: )?\s*\[\s*\d+\]\s+(?P<name>\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AerError(KernelFault):
    """
    One PCI Express error; `code` is the kernel's word for its severity.

    Attributes:
        severity: "corrected", "non-fatal", "fatal"; "unknown" where only the firmware's status word is known.
        layer: "Physical Layer", "Data Link Layer", "Transaction Layer"; "" if the entry does not tell.
        names: Errors by the kernel's short names ("RxErr", "CmpltTO"). Shape (n,).
        driver: Driver that the function is bound to; None if the entry does not tell.
    """

    severity: str
    layer: str
    names: tuple[str, ...]
    driver: str | None = None


def parse_aer_errors(entries: Sequence[KernelLogEntry]) -> tuple[AerError, ...]:
    """
    Pick the PCI Express errors out of the kernel log.

    Returns:
        One error for each report, in log order; what the root port announced counts where no report follows.
        Shape (n,).
    """
    errors = []
    for index, entry in enumerate(entries):
        if not any(needle in entry.message for needle in _NEEDLES):
            continue
        following = entries[index + 1 : index + 8]
        error = _read(entry, following)
        if error:
            errors.append(error)
    return tuple(errors)


def _read(entry: KernelLogEntry, following: Sequence[KernelLogEntry]) -> AerError | None:
    message = entry.message
    match = _ERROR.search(message)
    if match:
        found = _error(entry, match["pci"], match["severity"], match["layer"].strip(), _names(match["pci"], following))
        return replace(found, driver=match["driver"])
    match = _ANNOUNCED.search(message)
    if match:
        if any(_ERROR.search(later.message) for later in following[:4]):
            return None
        device = match["port"] if match["pci"].startswith("id=") else match["pci"]
        return _error(entry, device, match["severity"], "", ())
    match = _FIRMWARE.search(message)
    if match:
        severity = {"cor_": "Corrected", "uncor_": "Uncorrected (Non-Fatal)"}.get(match["which"] or "", "unknown")
        return _error(entry, match["pci"], severity, "", _names(match["pci"], following))
    match = _CONTAINED.search(message)
    if match:
        return _error(entry, match["pci"], "Uncorrected (Fatal)", "", ("DPC containment",))
    match = _RECOVERY_FAILED.search(message)
    return _error(entry, match["pci"], "Uncorrected (Fatal)", "", ("recovery failed",)) if match else None


def _error(entry: KernelLogEntry, pci: str, word: str, layer: str, names: tuple[str, ...]) -> AerError:
    severity = "corrected" if word.startswith("Correct") else "fatal" if "(Fatal)" in word else "non-fatal"
    return AerError(
        kind="aer",
        entry=entry,
        device=normalise_pci_address(pci),
        code=word,
        severity="unknown" if word == "unknown" else severity,
        layer=layer,
        names=names,
    )


def _names(pci: str, following: Sequence[KernelLogEntry]) -> tuple[str, ...]:
    names = []
    for later in following:
        if _ERROR.search(later.message) or _ANNOUNCED.search(later.message):
            break
        match = _NAME.search(later.message)
        if match and match["pci"] == pci:
            names.append(match["name"])
    return tuple(names)
