"""
The kernel's command line, read by the kernel's own rules.

Source: Linux lib/cmdline.c next_arg() (quotes, blanks), kernel/params.c parse_args() (the "--", dash and
underscore alike in names), arch/x86/kernel/pci-dma.c iommu_setup() and drivers/iommu/iommu.c (iommu=pt,
iommu=nopt and iommu.passthrough set one variable, the last one stays), drivers/iommu/amd/init.c
parse_amd_iommu_options(), drivers/iommu/intel/iommu.c intel_iommu_setup(); all as of kernel 6.12.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.facts.reading import Reading

_PASSTHROUGH = "whether devices bypass translation by default"
_INTEL = "whether the Intel IOMMU is on"

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


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """
    One parameter of the command line.

    Attributes:
        name: As written.
        value: Without the quotes around it; None if there is no "=", "" if nothing follows it.
    """

    name: str
    value: str | None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


@dataclass(frozen=True, slots=True)
class KernelCommandLine:
    """
    The parameters that the running kernel was started with.

    Attributes:
        text: /proc/cmdline without its newline.
        parameters: In order, repeated ones kept. Shape (n >= 1,). Nothing after "--", which is init's.
    """

    text: str
    parameters: tuple[KernelParameter, ...]

    def values(self, name: str) -> tuple[str | None, ...]:
        """Give the value of every occurrence, in order; () if there is none."""
        return tuple(item.value for item in self.parameters if _same(item.name, name))

    def effective(self, name: str) -> str | None:
        """Give the last occurrence's value; None if it has none, or if the parameter is not there."""
        values = self.values(name)
        return values[-1] if values else None

    def has(self, token: str) -> bool:
        """
        Tell whether a setting is in effect.

        "name" asks whether the parameter is there with any value, "name=value" whether the value is among its
        comma-separated values: of every occurrence where the kernel adds them up (iommu=, intel_iommu=, ...),
        of the last one otherwise. Settings that have several spellings or undo each other are judged by what
        stays: iommu=pt, iommu.passthrough=1 and iommu.passthrough=y are one setting, and iommu=nopt ends it.
        """
        name, equals, value = token.partition("=")
        if not equals:
            return bool(self.values(name))
        switch = _switch(name, value)
        if switch is not None:
            return self._state(switch[0]) is switch[1]
        values = [given for given in self.values(name) if given is not None]
        if _canonical(name) not in _ADD_UP:
            values = values[-1:] if self.effective(name) is not None else []
        parts = {part for given in values for part in given.split(",")}
        return value in values or set(value.split(",")) <= parts

    @property
    def passthrough_requested(self) -> bool:
        """Whether devices are to bypass translation by default: iommu=pt or an alias, not undone later."""
        return self._state(_PASSTHROUGH) is True

    @property
    def translation_requested(self) -> bool:
        """Whether translation is asked for in so many words: iommu=nopt or an alias, not undone later."""
        return self._state(_PASSTHROUGH) is False

    @property
    def iommu_switched_off(self) -> tuple[str, ...]:
        """Tokens that switch an IOMMU off; a vendor's own does nothing on another's machine."""
        off = [f"{name}=off" for name in ("iommu", "amd_iommu") if self.has(f"{name}=off")]
        return (*off, *(["intel_iommu=off"] if self._state(_INTEL) is False else ()))

    @property
    def ignored(self) -> tuple[str, ...]:
        """Settings that the vendor's IOMMU driver does not know ("amd_iommu=on"), in order, one word each."""
        return tuple(
            f"{item.name}={word}"
            for item in self.parameters
            if item.value and (known := _VENDOR_OPTIONS.get(_canonical(item.name)))
            for word in item.value.split(",")
            if word and not word.startswith(known)
        )

    def _state(self, switch: str) -> bool | None:
        """Where a switch stands after the whole line; None if nothing sets it."""
        state = None
        for item in self.parameters:
            for word in (item.value or "").split(","):
                found = _switch(item.name, word)
                if found is not None and found[0] == switch:
                    state = found[1]
        return state


def parse_kernel_command_line(reading: Reading) -> KernelCommandLine:
    """
    Read /proc/cmdline.

    Raises:
        FactUnavailable: The file could not be read.
        ParseError: It is empty: every boot loader gives at least something, so the text is not that file.
    """
    text = reading.require(remedy="is /proc mounted on the target?").rstrip("\n")
    parameters = []
    rest = text.strip()
    while rest:
        parameter, rest = _next_argument(rest)
        if parameter == KernelParameter("--", None):
            break
        parameters.append(parameter)
    if not parameters:
        raise ParseError(reading.source, 1, text, "an empty kernel command line")
    return KernelCommandLine(text, tuple(parameters))


def _next_argument(text: str) -> tuple[KernelParameter, str]:
    """Split one argument off, as next_arg() does: quotes may stand around the whole or around the value."""
    quoted = text.startswith('"')
    text = text[1:] if quoted else text
    inside, equals, end = quoted, 0, len(text)
    for index, letter in enumerate(text):
        if letter.isspace() and not inside:
            end = index
            break
        if letter == "=" and not equals:
            equals = index
        if letter == '"':
            inside = not inside
    word, rest = text[:end], text[end:].lstrip()
    if quoted and word.endswith('"'):
        word = word[:-1]
    if not equals:
        return KernelParameter(word, None), rest
    value = word[equals + 1 :]
    if value.startswith('"'):
        value = value[1:].removesuffix('"')
    return KernelParameter(word[:equals], value), rest


def _canonical(name: str) -> str:
    return name.replace("-", "_")


def _same(left: str, right: str) -> bool:
    return _canonical(left) == _canonical(right)


def _switch(name: str, word: str) -> tuple[str, bool] | None:
    """Name the switch that one word sets, and which way; None if it is no switch that we know."""
    name = _canonical(name)
    if name == "iommu.passthrough" and (value := _truth(word)) is not None:
        return _PASSTHROUGH, value
    if name == "iommu" and word.startswith(("pt", "nopt")):
        return _PASSTHROUGH, word.startswith("pt")
    if name == "intel_iommu" and word.startswith(("on", "off")):
        return _INTEL, word.startswith("on")
    return None


def _truth(word: str) -> bool | None:
    """Read a boolean as kstrtobool() does; None for a word that it refuses, which then changes nothing."""
    if word[:1] in _TRUE or word[:2].lower() == "on":
        return True
    return False if word[:1] in _FALSE or word[:2].lower() == "of" else None
