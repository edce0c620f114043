"""Topic container: device nodes, configurations, library versions, guests."""

from __future__ import annotations

import re
from typing import Any

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.facts.container_config import parse_container_config
from pytest_gpuinfra.facts.device_node import DeviceNode, parse_device_nodes
from pytest_gpuinfra.facts.driver import parse_driver_version
from pytest_gpuinfra.facts.driver_library import parse_library_versions
from pytest_gpuinfra.facts.nvidia_smi import find_smi_failure, smi_text
from pytest_gpuinfra.facts.pci import PciFunction
from pytest_gpuinfra.facts.virtualization import parse_virtualization
from pytest_gpuinfra.verdict.container_devices import (
    judge_bar_size,
    judge_container_devices,
    judge_device_nodes,
    judge_driver_library,
    missing_nodes,
    required_majors,
)
from tests.cases.adapters.made_pci import functions_from_lspci
from tests.cases.adapters.result import Result, result, unread
from tests.cases.adapters.transcript import Block, blocks, find
from tests.cases.case import Case


def judge(case: Case) -> Result:
    """Judge by what the session shows."""
    found = blocks(case.text)
    try:
        version, library = find(found, "/proc/driver/nvidia/version"), find(found, "libnvidia")
        if version and library:
            return _library(version, library)
        machine = find(found, "systemd-detect-virt")
        if machine:
            return _guest(machine, found)
        nodes = find(found, "ls -l", "/dev/nvidia")
        config = find(found, "config") or (found[0] if found and not found[0].command else None)
        if config:
            return _config(config, nodes)
        smi = find(found, "nvidia-smi")
        if smi:
            smi_text(smi.reading())
        if nodes:
            there = parse_device_nodes(nodes.reading())
            return result(judge_device_nodes(there), {"devices": [node.path for node in there]})
    except GpuInfraError as error:
        return unread(error, _of_failure(found))
    return "error", "the session shows nothing that the product reads", {}


def _library(version: Block, library: Block) -> Result:
    module = parse_driver_version(version.reading()).version
    libraries = parse_library_versions(library.reading())
    parsed = {"kernel_module": module, "library": libraries[0] if len(libraries) == 1 else list(libraries)}
    return result(judge_driver_library(module, libraries), parsed)


def _guest(machine: Block, found: list[Block]) -> Result:
    where = parse_virtualization(machine.reading())
    shown = find(found, "lspci")
    functions = functions_from_lspci(shown.text) if shown else ()
    function = functions[0] if functions else None
    size = _second_region(function)
    parsed = {
        "virt": where.word,
        "bar1": _words(size),
        "rebar_capability": function.config.has_resizable_bar if function else None,
    }
    return result(judge_bar_size(size, None, where), parsed)


def _second_region(function: PciFunction | None) -> int:
    return next((bar.size_bytes for bar in function.bars if bar.index == 1), 0) if function else 0


def _words(size: int) -> str:
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size >= factor:
            return f"{size // factor}{unit}"
    return str(size)


def _config(block: Block, listed: Block | None) -> Result:
    config = parse_container_config(block.reading())
    nodes: tuple[DeviceNode, ...] = parse_device_nodes(listed.reading()) if listed else ()
    groups = {device.options.get("gid") for device in config.devices}
    majors = required_majors(config, nodes)
    group = groups.pop() if len(groups) == 1 else None
    lacking: list[Any] = [major for major in majors if major not in config.allowed_majors]
    parsed = {
        "devices": list(config.paths),
        "gid": int(group) if group and group.isdigit() else group,
        "required_majors": list(majors),
        "allowed_majors": list(config.allowed_majors),
        "missing": lacking or list(missing_nodes(config)),
    }
    return result(judge_container_devices(config, nodes), parsed)


def _of_failure(found: list[Block]) -> dict[str, Any]:
    smi = find(found, "nvidia-smi")
    failure = find_smi_failure(smi.text) if smi else None
    listed = find(found, "ls -l", "/dev/nvidia")
    words = re.search(r"NVML: (?P<words>.*)", failure.message) if failure else None
    try:
        nodes = bool(parse_device_nodes(listed.reading())) if listed else None
    except GpuInfraError:
        nodes = False
    return {"nvml": words["words"] if words else None, "device_nodes": nodes}
