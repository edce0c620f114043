"""
Whether a GPU's DMA is translated as expected: by its group's type, else by the kernel's words at boot, else by its
command line.

The type is what is true now and decides alone. A kernel before 5.11 does not show it: its log at boot tells the
default, and its command line only what it says in so many words.
"""

from __future__ import annotations

from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.subjects.boot.command_line import KernelCommandLine
from pytest_gpuinfra.subjects.kernel_log.iommu_boot import IommuBoot
from pytest_gpuinfra.subjects.pci.iommu import IommuGroup, translates
from pytest_gpuinfra.subjects.verdict import Ending, Verdict

_SWITCHED_ON = ("intel_iommu=on", "amd_iommu=on", "amd_iommu=force_enable")
_TRANSLATED = ("DMA", "DMA-FQ")


def judge_group_type(
    group: IommuGroup | None,
    expected: str,
    *,
    boot: IommuBoot | None = None,
    line: KernelCommandLine | None = None,
) -> Verdict:
    """
    Judge the type of a GPU's IOMMU group.

    Where identity is expected, and there is no group, or another owner's page table, the kernel translates nothing and
    grants nothing: that is a skip.

    Args:
        group: Its group; None if it is in none.
        expected: Type by the inventory.
        boot: What the kernel said at boot, for a group without a type.
        line: Its command line, for a group without a type.

    Raises:
        FactUnavailable: The type cannot be read.
        ParseError: It is no single word.
    """
    if group is None:
        return _verdict("skip" if expected == "identity" else "wrong", "no group", expected)
    if group.shows_type:
        return _by_type(group, expected)
    if boot is not None and boot.default_domain is not None:
        how = " (set on the command line)" if boot.by_command_line else ""
        return _by_default(boot.default_domain != "Passthrough", f"default domain {boot.default_domain}{how}", expected)
    if line is not None:
        return _by_line(line, expected)
    return _verdict("error", "no group type, no boot message, no command line", expected)


def _by_type(group: IommuGroup, expected: str) -> Verdict:
    word = group.type
    if not group.type_known:
        return _verdict("error", f"{word!r} is no group type that is known", expected)
    if word == expected:
        return _verdict("ok", word, expected)
    if word == "unknown":
        return _verdict("error", "the kernel itself says unknown: the group has no default domain", expected)
    if word == "unmanaged" and expected == "identity":
        return _verdict("skip", "unmanaged: the page table is another owner's, such as vfio's", expected)
    return _verdict("wrong", word, expected)


def _by_default(translated: bool, observed: str, expected: str) -> Verdict:
    """Judge by what tells only whether DMA is translated, and not which type of translation a group has."""
    try:
        wanted = translates(expected, "the inventory")
    except FactUnavailable:
        return _verdict("error", f"{observed}; this kernel shows no group type", expected)
    return _verdict("ok" if translated == wanted else "wrong", observed, expected)


def _by_line(line: KernelCommandLine, expected: str) -> Verdict:
    off = line.iommu_switched_off
    if off:
        ending: Ending = "skip" if expected == "identity" else "wrong"
        return _verdict(ending, f"the IOMMU is off ({', '.join(off)}): nothing translates", expected)
    if line.passthrough_requested:
        return _by_default(False, f"passthrough is asked for on {line.text!r}", expected)
    if line.translation_requested or any(line.has(token) for token in _SWITCHED_ON):
        return _by_default(True, f"translation is asked for on {line.text!r}", expected)
    return _verdict("skip", "this kernel shows no group type, and its command line does not decide it", expected)


def _verdict(ending: Ending, observed: str, expected: str) -> Verdict:
    why = "it decides whether peer copies are translated, and whether a confidential VM can have the device"
    action = (
        "a type set by hand is lost at a reboot: set it from a unit ordered before the driver, "
        "or correct the kernel command line, and reboot"
    )
    if {observed, expected} == set(_TRANSLATED):
        why = (
            "both translate; DMA gives each unmapped address back at once and costs host copies their speed, "
            "DMA-FQ gives them back later"
        )
        action = "set iommu.strict=0 (DMA-FQ) or iommu.strict=1 (DMA) on the kernel command line, and reboot"
    if ending == "skip":
        action = "read /sys/kernel/iommu_groups and the driver that the device is bound to"
    return Verdict(
        ending=ending,
        subject="IOMMU group type",
        observed=observed,
        expected=expected,
        why=why,
        action=action,
    )
