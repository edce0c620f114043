"""
The kernel's command line, read by the kernel's own rules.

Source: Linux lib/cmdline.c next_arg() (quotes, blanks) and kernel/params.c parse_args() (the "--"), kernel 6.12;
kernel_switch.py for what single words do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.subjects.boot.kernel_switch import (
    INTEL,
    PASSTHROUGH,
    adds_up,
    canonical_parameter,
    switch_of,
    unknown_words,
)


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
        wanted = canonical_parameter(name)
        return tuple(item.value for item in self.parameters if canonical_parameter(item.name) == wanted)

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
        switch = switch_of(name, value)
        if switch is not None:
            return self._state(switch[0]) is switch[1]
        values = [given for given in self.values(name) if given is not None]
        if not adds_up(name):
            values = values[-1:] if self.effective(name) is not None else []
        parts = {part for given in values for part in given.split(",")}
        return value in values or set(value.split(",")) <= parts

    @property
    def passthrough_requested(self) -> bool:
        """Whether devices are to bypass translation by default: iommu=pt or an alias, not undone later."""
        return self._state(PASSTHROUGH) is True

    @property
    def translation_requested(self) -> bool:
        """Whether translation is asked for in so many words: iommu=nopt or an alias, not undone later."""
        return self._state(PASSTHROUGH) is False

    @property
    def iommu_switched_off(self) -> tuple[str, ...]:
        """Tokens that switch an IOMMU off; a vendor's own does nothing on another's machine."""
        off = [f"{name}=off" for name in ("iommu", "amd_iommu") if self.has(f"{name}=off")]
        return (*off, *(["intel_iommu=off"] if self._state(INTEL) is False else ()))

    @property
    def ignored(self) -> tuple[str, ...]:
        """Settings that the vendor's IOMMU driver does not know ("amd_iommu=on"), in order, one word each."""
        return tuple(
            f"{item.name}={word}" for item in self.parameters for word in unknown_words(item.name, item.value or "")
        )

    def _state(self, switch: str) -> bool | None:
        """Where a switch stands after the whole line; None if nothing sets it."""
        state = None
        for item in self.parameters:
            for word in (item.value or "").split(","):
                found = switch_of(item.name, word)
                if found is not None and found[0] == switch:
                    state = found[1]
        return state


def parse_kernel_command_line(reading: Reading) -> KernelCommandLine:
    """
    Read /proc/cmdline.

    Raises:
        FactUnavailable: The file could not be read.
        ParseError: It is empty, or holds control characters: every boot loader gives at least something, and a text.
    """
    text = reading.require(remedy="is /proc mounted on the target?").rstrip("\n")
    if not re.sub(r"\s", " ", text).isprintable():
        raise ParseError(reading.source, 1, text, "a kernel command line with control characters")
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
