"""
Whether DMA is translated: by the groups' types, else by what the kernel said at boot, else by its command line.

The types are what is true now and decide alone where they are known. The command line decides only
what it says in so many words.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.subjects.boot.command_line import KernelCommandLine
from pytest_gpuinfra.subjects.kernel_log.iommu_boot import IommuBoot
from pytest_gpuinfra.subjects.pci.iommu import translates
from pytest_gpuinfra.subjects.verdict import Ending, Verdict

_SWITCHED_ON = ("intel_iommu=on", "amd_iommu=on", "amd_iommu=force_enable")


def translation_expected(line: KernelCommandLine) -> bool | None:
    """
    Tell what the command line alone says of translation.

    Returns:
        False if passthrough is asked for or the IOMMU is switched off, True if translation or the IOMMU
        is asked for without that, None if the line does not decide it.
    """
    if line.passthrough_requested or line.iommu_switched_off:
        return False
    if line.translation_requested or any(line.has(token) for token in _SWITCHED_ON):
        return True
    return None


def judge_dma_mode(
    *,
    types: Mapping[str, str] | None = None,
    boot: IommuBoot | None = None,
    line: KernelCommandLine | None = None,
    peer_access: bool = False,
) -> Verdict:
    """
    Judge whether translation stands in the way of peer access.

    Args:
        types: Group type by device or group; {} if there is no group, None if nothing is known of them.
        boot: What the kernel said at boot.
        line: Its command line.
        peer_access: Whether copies between GPUs must go directly.
    """
    warnings = tuple(f"{word} is not known to the IOMMU driver and is ignored" for word in line.ignored) if line else ()
    if types is not None and not types:
        return _verdict("skip", "there is no IOMMU group: nothing translates", warnings)
    if types:
        return _verdict(*_by_types(types, peer_access), warnings)
    if boot and boot.default_domain:
        return _verdict(*_by_boot(boot, peer_access), warnings)
    if line:
        return _verdict(*_by_line(line, peer_access), warnings)
    return _verdict("error", "nothing is known: no group type, no boot message, no command line", ())


def _by_types(types: Mapping[str, str], peer_access: bool) -> tuple[Ending, str]:
    if blocked := {name: word for name, word in types.items() if word == "blocked"}:
        return ("wrong" if peer_access else "skip"), "no DMA at all: " + _listed(blocked)
    if foreign := {name: word for name, word in types.items() if word == "unmanaged"}:
        return "skip", "the page table is another owner's, such as vfio's: " + _listed(foreign)
    try:
        translated = {name: word for name, word in types.items() if translates(word, "iommu group")}
    except FactUnavailable as error:
        return "error", error.reason
    if not translated:
        return "ok", "not translated: " + _listed(types)
    return ("wrong" if peer_access else "skip"), "translated: " + _listed(translated)


def _by_boot(boot: IommuBoot, peer_access: bool) -> tuple[Ending, str]:
    how = " (set on the command line)" if boot.by_command_line else ""
    observed = f"default domain {boot.default_domain}{how}"
    if boot.default_domain == "Passthrough":
        return "ok", observed
    return ("wrong" if peer_access else "skip"), observed


def _by_line(line: KernelCommandLine, peer_access: bool) -> tuple[Ending, str]:
    if line.iommu_switched_off:
        return "skip", f"the IOMMU is off ({', '.join(line.iommu_switched_off)}): no groups, nothing translates"
    if line.passthrough_requested:
        return "ok", "passthrough is asked for on the command line"
    if translation_expected(line) is None:
        return "skip", "the command line does not decide it: read /sys/kernel/iommu_groups"
    return ("wrong" if peer_access else "skip"), "the command line means translated DMA"


def _verdict(ending: Ending, observed: str, warnings: tuple[str, ...]) -> Verdict:
    return Verdict(
        ending=ending,
        subject="DMA translation",
        observed=observed,
        expected="no translation in the way of peer access",
        why="under translation a copy between GPUs can be dropped or scrambled while CUDA reports success",
        action="boot with iommu=pt where no confidential guest needs translation; else NCCL_P2P_DISABLE=1",
        warnings=warnings,
    )


def _listed(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {word}" for name, word in list(types.items())[:8])
