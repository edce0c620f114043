"""
What single words of the kernel's command line set: switches with several spellings, and words nobody knows.

Source: Linux arch/x86/kernel/pci-dma.c iommu_setup() and drivers/iommu/iommu.c (iommu=pt, iommu=nopt and
iommu.passthrough set one variable, the last one stays), drivers/iommu/amd/init.c parse_amd_iommu_options(),
drivers/iommu/intel/iommu.c intel_iommu_setup(), lib/kstrtox.c kstrtobool(); all as of kernel 6.12.
"""

from __future__ import annotations

PASSTHROUGH = "whether devices bypass translation by default"
INTEL = "whether the Intel IOMMU is on"

# Parameters whose handler adds each occurrence to what was there; of all others the last one counts.
_ADD_UP = frozenset({
    "iommu", "intel_iommu", "amd_iommu", "pci", "console", "earlycon", "video", "memmap", "cgroup_disable",
    "acpi_osi", "hugepages", "hugepagesz", "modprobe.blacklist", "rd.driver.blacklist", "rd.driver.pre",
    "systemd.mask", "systemd.wants", "systemd.setenv",
})  # fmt: skip

# What the vendor's driver understands; it compares only as many characters as the word has.
_VENDOR_OPTIONS = {
    "amd_iommu": (
        "fullflush", "force_enable", "off", "force_isolation", "pgtbl_v1", "pgtbl_v2", "irtcachedis",
        "nohugepages", "v2_pgsizes_only",
    ),
    "intel_iommu": (
        "on", "off", "igfx_off", "forcedac", "strict", "sp_off", "sm_on", "sm_off", "tboot_noforce",
    ),
}  # fmt: skip

_TRUE = frozenset({"y", "Y", "t", "T", "1"})
_FALSE = frozenset({"n", "N", "f", "F", "0"})


def canonical_parameter(name: str) -> str:
    """Give a parameter's name its one spelling: the kernel takes dash and underscore alike."""
    return name.replace("-", "_")


def adds_up(name: str) -> bool:
    """Tell whether the kernel adds up every occurrence of a parameter, rather than taking the last."""
    return canonical_parameter(name) in _ADD_UP


def unknown_words(name: str, value: str) -> tuple[str, ...]:
    """Give the words of an IOMMU driver's own parameter that the driver does not know, in order."""
    known = _VENDOR_OPTIONS.get(canonical_parameter(name))
    return tuple(word for word in value.split(",") if known and word and not word.startswith(known))


def switch_of(name: str, word: str) -> tuple[str, bool] | None:
    """Name the switch that one word sets, and which way; None if it is no switch that we know."""
    name = canonical_parameter(name)
    if name == "iommu.passthrough" and (value := _truth(word)) is not None:
        return PASSTHROUGH, value
    if name == "iommu" and word.startswith(("pt", "nopt")):
        return PASSTHROUGH, word.startswith("pt")
    if name == "intel_iommu" and word.startswith(("on", "off")):
        return INTEL, word.startswith("on")
    return None


def _truth(word: str) -> bool | None:
    """Read a boolean as kstrtobool() does; None for a word that it refuses, which then changes nothing."""
    if word[:1] in _TRUE or word[:2].lower() == "on":
        return True
    return False if word[:1] in _FALSE or word[:2].lower() == "of" else None
