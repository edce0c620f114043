"""
Kernel drivers: the NVIDIA driver's parameters and version, and the parameters of any module.

Source: open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c (/proc/driver/nvidia/params: "Name: value",
strings in double quotes; /proc/driver/nvidia/version: "NVRM version: NVIDIA ... Kernel Module ... VERSION").
Linux Documentation/ABI/stable/sysfs-module. Parameters under /sys/module/nvidia are often hidden or stale:
/proc/driver/nvidia/params is what the loaded module uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.wire import text_lines

_LINE = re.compile(r"(?P<name>\w+): ?(?:\"(?P<text>.*)\"|(?P<number>\d{1,18}))")
_VERSION = re.compile(r"NVRM version: (?P<kind>.*?)\s+(?P<version>\d+\.\d+(?:\.\d+)?)(?:\s|$)")


@dataclass(frozen=True, slots=True)
class DriverParameters:
    """
    Parameters that the loaded NVIDIA driver uses.

    Attributes:
        values: By name, as in /proc/driver/nvidia/params; numbers as int, strings without their quotes.
        source: File that they come from.
    """

    values: Mapping[str, int | str]
    source: str

    def __getitem__(self, name: str) -> int | str:
        """
        Give one parameter by its exact name; "NVreg_" in front is allowed.

        Raises:
            FactUnavailable: This driver has no such parameter.
        """
        key = name.removeprefix("NVreg_")
        if key not in self.values:
            raise FactUnavailable(self.source, f"the driver has no parameter {name}", remedy="see its list there")
        return self.values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def registry(self, name: str = "RegistryDwords") -> dict[str, str]:
        """
        Split a parameter of the form "Key=1;Other=2".

        Raises:
            FactUnavailable: This driver has no such parameter.
            ParseError: It has another form.
        """
        text = str(self[name])
        pairs = [item.strip() for item in text.split(";") if item.strip()]
        for pair in pairs:
            if "=" not in pair:
                raise ParseError(self.source, 0, text, f"{name} is no list of KEY=VALUE")
        return {key.strip(): value.strip() for key, _, value in (pair.partition("=") for pair in pairs)}


@dataclass(frozen=True, slots=True)
class DriverVersion:
    """
    Version of the loaded NVIDIA driver.

    Attributes:
        version: "580.159.04".
        open: Whether it is the open kernel module.
        build: The rest of the first line, verbatim: what NVIDIA calls it.
    """

    version: str
    open: bool
    build: str


def parse_driver_parameters(reading: Reading) -> DriverParameters:
    """
    Read /proc/driver/nvidia/params.

    Raises:
        FactUnavailable: The file is not there (the driver is not loaded) or could not be read.
        ParseError: A line is no parameter, or there is none.
    """
    text = reading.require(remedy="is the nvidia driver loaded on the target? (lsmod, dmesg)")
    values: dict[str, int | str] = {}
    for number, line in enumerate(text_lines(text), 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        if not match:
            raise ParseError(reading.source, number, line, "not a driver parameter")
        values[match["name"]] = int(match["number"]) if match["number"] is not None else match["text"]
    if not values:
        raise ParseError(reading.source, 0, text, "no driver parameter")
    return DriverParameters(values, reading.source)


def parse_driver_version(reading: Reading) -> DriverVersion:
    """
    Read /proc/driver/nvidia/version.

    Raises:
        FactUnavailable: The file is not there (the driver is not loaded) or could not be read.
        ParseError: Its first line names no version.
    """
    text = reading.require(remedy="is the nvidia driver loaded on the target? (lsmod, dmesg)")
    first = text_lines(text.strip())[0] if text.strip() else ""
    match = _VERSION.match(first)
    if not match:
        raise ParseError(reading.source, 1, first, "no driver version")
    return DriverVersion(match["version"], "Open Kernel Module" in match["kind"], first.removeprefix("NVRM version: "))


def parse_module_parameter(reading: Reading) -> str:
    """
    Read one /sys/module/MODULE/parameters/NAME, verbatim without its newline.

    Raises:
        FactUnavailable: The file is not there (module not loaded, no such parameter) or could not be read.
    """
    remedy = "is the module loaded, and does it show this parameter? (modinfo -p, root for some)"
    return reading.require(remedy=remedy).rstrip("\n")


def same_parameter_value(observed: str, expected: object) -> bool:
    """Compare a module parameter with an expectation: Y is 1 and N is 0, numbers in any base."""
    wanted = ("Y" if expected else "N") if isinstance(expected, bool) else str(expected)
    truth = {"Y": "Y", "1": "Y", "N": "N", "0": "N"}
    if observed == wanted or (observed in truth and truth.get(observed) == truth.get(wanted)):
        return True
    try:
        return int(observed, 0) == int(wanted, 0)
    except ValueError:
        return False
