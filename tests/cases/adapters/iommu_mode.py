"""Topic iommu-mode: group types, links to groups, boot messages, command lines."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError
from pytest_gpuinfra.facts.iommu import IommuGroup, IommuGroups, parse_group_type, parse_iommu_groups
from pytest_gpuinfra.facts.iommu_boot import IommuBoot, parse_iommu_boot
from pytest_gpuinfra.facts.kernel_command_line import KernelCommandLine, parse_kernel_command_line
from pytest_gpuinfra.facts.kernel_log import parse_kernel_text
from pytest_gpuinfra.facts.reading import Reading
from pytest_gpuinfra.verdict.dma_mode import judge_dma_mode, translation_expected
from tests.cases.adapters.result import Result, result, unread
from tests.cases.adapters.transcript import Block, blocks
from tests.cases.case import Case

_TYPE = re.compile(r"(?:\S*/)?iommu_groups/(?P<group>\d+)/type:\s*(?P<word>\S+)")
_LINK = re.compile(r"(?:^|[\s/])(?P<device>[0-9a-f:]+\.\d)\S* -> \S*/iommu_groups/(?P<group>\d+)/?")
_COUNT = re.compile(r"\s*(?P<count>\d+)\s+(?P<word>[A-Za-z-]+)")
_GROUP = re.compile(r"iommu_groups/(?P<group>\d+)/(?P<what>type|devices)")
_LISTED = re.compile(r"(?:ls|find) /sys/(?:kernel/iommu_groups|class/iommu)/?(?: \| wc -l)?$")
_MEMBER = re.compile(r"\S*/iommu_groups/(?P<group>\d+)/devices/(?P<device>[0-9a-f:]+\.\d)")
_LOG = re.compile(r"^\[\s*\d+\.\d+\]|\biommu: |AMD-Vi: |DMAR: ", re.MULTILINE)


def judge(case: Case) -> Result:
    """Put the pieces of the input where the product finds them, and judge."""
    types: dict[str, str] = {}
    members: dict[str, list[str]] = {}
    line: KernelCommandLine | None = None
    boot: IommuBoot | None = None
    empty = False
    try:
        for block in blocks(case.text):
            if _LISTED.search(block.command) and block.text.strip() in ("", "0"):
                empty = True
                continue
            place = _GROUP.search(block.command)
            if "cmdline" in block.command:
                line = parse_kernel_command_line(block.reading("/proc/cmdline"))
            elif place and place["what"] == "devices":
                members[place["group"]] = block.text.split()
            elif place:
                types[place["group"]] = block.text
            elif "dmesg" in block.command or "journalctl" in block.command:
                boot = parse_iommu_boot(parse_kernel_text(block.reading()))
            else:
                line, boot = _bare(block, types, members, line, boot)
        groups = _groups(types, members)
        words = {_name(groups, number): parse_group_type(Reading("type", text)) for number, text in types.items()}
        verdict = judge_dma_mode(
            types=words if words or empty else None, boot=boot, line=line, peer_access=case.peer_access
        )
    except GpuInfraError as error:
        return unread(error, {"type": case.text.strip(), "valid_read_value": False})
    return result(verdict, _of_groups(groups) | _of_line(line) | _of_boot(boot))


def _bare(
    block: Block,
    types: dict[str, str],
    members: dict[str, list[str]],
    line: KernelCommandLine | None,
    boot: IommuBoot | None,
) -> tuple[KernelCommandLine | None, IommuBoot | None]:
    """Tell by its form what a text without a command is."""
    lines = [text for text in block.text.splitlines() if text.strip()]
    if lines and all(_TYPE.fullmatch(text) or _LINK.search(text) or _MEMBER.fullmatch(text) for text in lines):
        for text in lines:
            if match := _TYPE.fullmatch(text):
                types[match["group"]] = match["word"]
            elif match := _LINK.search(text) or _MEMBER.fullmatch(text):
                members.setdefault(match["group"], []).append(match["device"])
    elif all(_COUNT.fullmatch(text) for text in lines):
        for text in lines:
            match = _COUNT.fullmatch(text)
            for _ in range(int(match["count"]) if match else 0):
                types[str(len(types))] = match["word"] if match else ""
    elif _LOG.search(block.text):
        boot = parse_iommu_boot(parse_kernel_text(block.reading("kernel log")))
    elif all(len(text.split()) == 1 and "=" not in text for text in lines):
        types |= {str(number): f"{text}\n" for number, text in enumerate(lines or [block.text])}
    else:
        line = parse_kernel_command_line(block.reading("/proc/cmdline"))
    return line, boot


def _groups(types: dict[str, str], members: dict[str, list[str]]) -> IommuGroups:
    return parse_iommu_groups(
        {
            number: {
                "type": Reading(f"/sys/kernel/iommu_groups/{number}/type", text),
                "devices/": Reading("devices", "\n".join(members.get(number, []))),
            }
            for number, text in types.items()
        }
    )


def _name(groups: IommuGroups, number: str) -> str:
    group = next(group for group in groups if group.number == int(number))
    return ", ".join(group.members) or f"group {number}"


def _of_groups(groups: IommuGroups) -> dict[str, Any]:
    if not groups.present:
        return {}
    first = groups.groups[0]
    by_device = {device: group for group in groups for device in group.members}
    return {
        "group": first.number,
        "type": first.type,
        "translated": _translated(first),
        "strict": first.strict,
        "valid_read_value": True,
        "devices": list(first.members),
        "groups": {device: group.type for device, group in by_device.items()},
        "failing": [device for device, group in by_device.items() if _translated(group)],
        "types": dict(Counter(group.type for group in groups)),
    }


def _translated(group: IommuGroup) -> bool | None:
    """Rename what the type does not decide to nothing."""
    try:
        return group.translated
    except FactUnavailable:
        return None


def _of_line(line: KernelCommandLine | None) -> dict[str, Any]:
    if line is None:
        return {}
    vendors = {name: list(line.values(name)) for name in ("amd_iommu", "intel_iommu")}
    return {
        **{name: values for name, values in vendors.items() if values},
        "vendor_switch": next((values[-1] for values in vendors.values() if values), None),
        "iommu": line.effective("iommu"),
        "iommu.passthrough": line.effective("iommu.passthrough"),
        "iommu.strict": line.effective("iommu.strict"),
        "passthrough_requested": line.passthrough_requested,
        "translated_expected": translation_expected(line),
        "iommu_active": False if line.iommu_switched_off else None,
        "ignored": list(line.ignored),
    }


def _of_boot(boot: IommuBoot | None) -> dict[str, Any]:
    if boot is None:
        return {}
    return {
        "default_domain": boot.default_domain,
        "by_cmdline": boot.by_command_line,
        "policy": boot.policy,
    }
