"""
Converts cases of the older form (topic, input, verdict) into the form of case.py, as far as a topic tells where.

    python -m tests.cases.convert FOLDER            print the cases.json of the other form

Nothing is judged here: the input's text goes where the product reads such text, and who is a GPU comes from the case.
What another tool printed (lspci, a query's CSV, a copy script) is made into what the product itself reads or writes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tests.cases.case import UNREAD
from tests.cases.convert_endpoint import ENDPOINT_TOPICS
from tests.cases.convert_gpu import GPU_TOPICS
from tests.cases.convert_parts import (
    GPU,
    SERVED,
    Entry,
    Hosts,
    blocks,
    find,
    full_address,
    item,
    listed,
    reference,
    said,
)
from tests.cases.lspci import functions_of_lspci

Converter: TypeAlias = Callable[[str, Entry], Hosts]
_KERNEL_ITEMS = [
    item("no_iommu_fault_by_the_gpu"),
    item("no_xid_on_the_gpu"),
    item("gpu_initialised_without_failure"),
    item("no_pcie_error_by_the_gpu"),
    item("no_gpu_fault_without_a_known_device"),
]
_ADDRESS = re.compile(r"(?<![0-9a-f:.])((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)(?![0-9a-f:])")
_UNDER_TEST = re.compile(r"\b(?:GPU|accelerator) ((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)\b")
_GIVEN = re.compile(r"given that ([0-9a-f:., ]+?) (?:is a device|are devices) under test")
_DRIVER = re.compile(r"\b(?:nvidia|amdgpu|nouveau|xe|i915) ((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]):")
_NVRM = re.compile(r"(?:Xid \((?:PCI:)?|NVIDIA GPU |NVRM: GPU |GPU at PCI:)([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})")
_COMPLAINT = re.compile(
    r"\A(?:\S*(?:dmesg|journalctl|sudo|bash|sh|cat): |Hint: |No journal files|.*(?:ermission denied|not permitted))"
)
_KMSG = re.compile(r"(\d+),(\d+),(\d+),[^;]*;")


def kernel_log(text: str, entry: Entry) -> Hosts:
    """Put the text into what `dmesg` shows of this boot, behind the line with which every boot begins."""
    reason = entry.get("reason", "")
    named = [address for match in _GIVEN.findall(reason) for address in _ADDRESS.findall(match)]
    gpus = {full_address(a) for a in (*named, *_UNDER_TEST.findall(reason), *_DRIVER.findall(text))}
    gpus |= {full_address(address) for address in _NVRM.findall(text)}
    others = {full_address(address) for address in _ADDRESS.findall(text)} - gpus
    functions = {address: {} for address in sorted(gpus) or ["0000:f1:00.0"]}
    plain = {"vendor": "0x8086\n", "class": "0x020000\n", "driver": "../../../bus/pci/drivers/other"}
    functions |= dict.fromkeys(sorted(others), plain)
    records = _KMSG.match(text)
    first = f"6,{max(0, int(records[2]) - 1)},0,-;" if records else "[    0.000000] "
    if not text.strip() or _COMPLAINT.match(text):
        dmesg = {"t": "", "x": 1, "s": text}
    else:
        dmesg = {"t": f"{first}Linux version 6.8.0-60-generic (build@host1)\n{text}", "x": 0, "s": ""}
    readings = [["kernel_log", "", "kmsg", {"e": "EPERM: Operation not permitted"}], ["kernel_log", "", "dmesg", dmesg]]
    expect = {"devices": [{"pci": sorted(gpus) or ["0000:f1:00.0"], "driver": "nvidia"}]}
    return [reference(_KERNEL_ITEMS, expect, functions=functions, readings=readings)]


_TYPE = re.compile(r"(?:\S*/)?iommu_groups/(?P<group>\d+)/type:\s*(?P<word>\S+)")
_LINK = re.compile(r"(?:^|[\s/])(?P<device>[0-9a-f:]+\.\d)\S* -> \S*/iommu_groups/(?P<group>\d+)/?")
_MEMBER = re.compile(r"\S*/iommu_groups/(?P<group>\d+)/devices/(?P<device>[0-9a-f:]+\.\d)")
_COUNT = re.compile(r"\s*\d+\s+(?P<word>[A-Za-z-]+)")
_GROUP = re.compile(r"iommu_groups/(?P<group>\d+|\*)/(?P<what>type|devices)")
_EMPTY = re.compile(r"(?:ls|find) /sys/(?:kernel/iommu_groups|class/iommu)/?(?: \| wc -l)?$")
_LOG = re.compile(r"^\[\s*\d+\.\d+\]|\biommu: |AMD-Vi: |DMAR: ", re.MULTILINE)


def iommu_mode(text: str, entry: Entry) -> Hosts:
    """Put types into the groups' files and a command line into /proc/cmdline; the user expects no translation."""
    types: dict[str, str] = {}
    members: dict[str, list[str]] = {}
    line, empty, log = None, False, ""
    for block in blocks(text):
        place = _GROUP.search(block.command)
        rows = [row for row in block.text.splitlines() if row.strip()]
        if _EMPTY.search(block.command) and block.text.strip() in ("", "0"):
            empty = True
        elif "cmdline" in block.command:
            line = block.text
        elif place and place["what"] == "devices":
            members[place["group"]] = block.text.split()
        elif rows and all(_TYPE.fullmatch(row) or _LINK.search(row) or _MEMBER.fullmatch(row) for row in rows):
            for row in rows:
                if match := _TYPE.fullmatch(row):
                    types[match["group"]] = match["word"] + "\n"
                elif match := _LINK.search(row) or _MEMBER.fullmatch(row):
                    members.setdefault(match["group"], []).append(match["device"])
        elif rows and all(_COUNT.fullmatch(row) for row in rows):
            types |= {str(at): _COUNT.fullmatch(row)["word"] + "\n" for at, row in enumerate(rows)}  # type: ignore[index]
        elif place and place["group"] != "*":
            types[place["group"]] = block.text
        elif "dmesg" in block.command or "journalctl" in block.command or _LOG.search(block.text):
            log = block.text
        elif all(len(row.split()) == 1 and "=" not in row for row in rows):
            types |= {str(at): f"{row}\n" for at, row in enumerate(rows or [block.text])}
        else:
            line = block.text
    if types or empty:
        return [_groups(types, members)]
    if log:
        dmesg = {"t": f"[    0.000000] Linux version 5.8.0\n{log}", "x": 0, "s": ""}
        readings = [["kernel_log", "", "kmsg", {"e": "EPERM"}], ["kernel_log", "", "dmesg", dmesg]]
        return [_without_types(*readings, *([_cmdline(line)] if line is not None else []))]
    if line is None:
        return UNREAD
    return [_without_types(_cmdline(line), ["kernel_log", "", "kmsg", {"t": "5,0,0,-;Linux version 5.4.0\n"}])]


def _without_types(*readings: list[Any]) -> dict[str, Any]:
    """Give a host whose kernel shows no group types: its log is left, or, where that says nothing, its command line."""
    functions = {GPU: {"group": "40", "group_type": None}}
    expect = {"devices": [{"pci": [GPU], "driver": "nvidia", "group_type": "identity"}]}
    items = [item("iommu_group_type_is_the_expected_one")]
    return reference(items, expect, functions=functions, readings=list(readings))


def _cmdline(line: str) -> list[Any]:
    return ["boot", "", "cmdline", {"t": line}]


def _groups(types: Mapping[str, str], members: Mapping[str, list[str]]) -> dict[str, Any]:
    functions: dict[str, Any] = {}
    for number, word in types.items():
        for device in members.get(number) or [f"0000:{int(number) + 1:02x}:00.0"]:
            audio = {"class": "0x040300\n"} if device.endswith(".1") else {}
            functions[full_address(device)] = {"group": number, "group_type": word, **audio}
    gpus = [address for address, texts in functions.items() if "class" not in texts] or [GPU]
    functions = functions or {GPU: {"group": None}}
    expect = {"devices": [{"pci": gpus, "driver": "nvidia", "group_type": "identity"}]}
    return reference([item("iommu_group_type_is_the_expected_one")], expect, functions=functions)


_EXPECTS = re.compile(r"configuration expects (?P<speed>[\d.]+) ?GT/s x(?P<width>\d+)")


def lspci(text: str, entry: Entry) -> Hosts:
    """Make the sysfs files of the functions; the user expects of a link what the card can do, or what the case says."""
    functions = functions_of_lspci(text)
    gpus = [a for a, texts in functions.items() if texts["class"].startswith("0x03") and texts["current_link_width"]]
    if not gpus or entry.get("requires") == "peer access" or "ACSCtl:" in text:
        return _access_control(text, functions)
    expects = _EXPECTS.search(entry.get("reason", ""))
    first = functions[gpus[0]]
    width = int(expects["width"]) if expects else int(first["max_link_width"] or first["current_link_width"])
    speed = float(expects["speed"]) if expects else float((first["max_link_speed"] or "0").split()[0])
    for texts in functions.values():
        texts["max_link_speed"] = texts["max_link_speed"] or texts["current_link_speed"]
    device = {"pci": gpus, "driver": "nvidia", "link_width": width}
    items = [item("link_width_is_the_expected_one")]
    if speed:
        device["link_speed_gt_s"] = speed
        items.append(item("link_is_capable_of_the_expected_speed"))
    return [reference(items, {"devices": [device]}, functions=functions)]


def _access_control(text: str, functions: dict[str, dict[str, Any]]) -> Hosts:
    """Give a host whose GPUs must reach each other, below bridges with these registers."""
    if not functions:
        rows = [row.strip() for row in text.splitlines() if "ACSCtl:" in row]
        ports = [f"00:{number:02x}.0 PCI bridge: Broadcom\n\t{row}\n" for number, row in enumerate(rows, 1)]
        functions = functions_of_lspci("".join([*ports, "01:00.0 VGA compatible controller: NVIDIA Corporation\n"]))
    gpus = [address for address, texts in functions.items() if texts["class"].startswith("0x03")]
    if not gpus:
        return UNREAD + ": bridges without a GPU"
    for address in gpus:
        if functions[address]["config"] == bytes(64).hex() and functions[address]["."].count("/") < 6:
            port = "0000:00:01.0"  # whoever may not see the GPU's capabilities may not see its bridges'
            functions[address]["."] = f"../../../devices/pci0000:00/{port}/{address}"
            functions[port] = {**functions[address], "class": "0x060400", ".": f"../../../devices/pci0000:00/{port}"}
    expect = {"peer_access": "correct", "devices": [{"pci": gpus, "driver": "nvidia"}]}
    return [reference([item("no_bridge_above_redirects_peers")], expect, functions=functions)]


def driver_params(text: str, entry: Entry) -> Hosts:
    """Put the text into /proc/driver/nvidia/params; the user expects the values that the case names."""
    found = blocks(text)
    shown = find(found, "/proc/driver/nvidia/params")
    version = next((block for block in found if "NVRM version" in block.text), None)
    if version and not shown:
        expect = {"driver_version": "*"}
        readings = [["nvidia", "", "version", {"t": version.text}]]
        return [reference([item("driver_version_is_the_expected_one")], expect, readings=readings)]
    wanted = {
        name: str(value)
        for name, value in (entry.get("parsed") or {}).items()
        if isinstance(value, str | int) and re.search(rf"^{re.escape(name)}:", text, re.MULTILINE)
    }
    reading = {"t": shown.text if shown else text}
    if shown and "No such file" in shown.text:
        reading = {"e": "ENOENT: No such file or directory"}
    expect = {"driver_parameters": wanted or {"DmaRemapPeerMmio": "1"}}
    items = [item("driver_parameter_has_the_expected_value")]
    return [reference(items, expect, readings=[["nvidia", "", "params", reading]])]


_RUNNING = {
    "Id": "sglang-qwen.service",
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "MainPID": "412",
    "FragmentPath": "/etc/systemd/system/sglang-qwen.service",
}
"""What `systemctl show` prints of a healthy unit, where the case does not tell it."""


def systemd(text: str, entry: Entry) -> Hosts:
    """Put what `systemctl show` printed into the service's answer."""
    if re.search(r"^\[[A-Z]\w+\]$", text, re.MULTILINE):
        return [_unit_files(text)]
    shown = find(blocks(text), "systemctl show")
    text = shown.text if shown else text
    if not re.search(r"^\w+=", text, re.MULTILINE):
        reading = {"t": "", "x": 1, "s": text}
    elif "Environment=" in text and "ActiveState" not in text:
        return [_unit_files(f"[Service]\nExecStart=/usr/bin/serve\n{text}")]
    else:
        values = dict(row.partition("=")[::2] for row in text.splitlines() if "=" in row)
        values = {**_RUNNING, **values, "Id": _RUNNING["Id"]}
        reading = said("".join(f"{name}={value}\n" for name, value in values.items()))
    readings = [["service", "", "show", reading]]
    items = [item("service_is_active"), *([item("no_reload_is_pending")] if "NeedDaemonReload" in text else [])]
    return [reference(items, {}, readings=readings, more=SERVED)]


_HEADING = re.compile(r"^# (/\S+)\n", re.MULTILINE)


def _unit_files(text: str) -> dict[str, Any]:
    """Put what `systemctl cat` printed, or one file, where the unit's files are read; the first is the unit's own."""
    unit = "/etc/systemd/system/sglang-qwen.service"
    _, *parts = _HEADING.split(text) if _HEADING.search(text) else ("", unit, text)
    texts = dict(zip((unit, *parts[2::2]), parts[1::2], strict=True))
    shown = "".join(f"{name}={value}\n" for name, value in {**_RUNNING, "DropInPaths": " ".join([*texts][1:])}.items())
    readings: list[list[Any]] = [["service", "", "show", said(shown)]]
    for path, content in texts.items():
        stat = json.dumps({"mtime": 1.0, "size": len(content)})
        readings += [
            ["service", f"file {path}", "text", {"t": content}],
            ["service", f"file {path}", "stat", {"t": stat}],
        ]
    return reference([item("settings_of_the_unit_are_in_effect")], {}, readings=readings, more=SERVED)


_MOUNTED = re.compile(r"(?:^dev\d+:\s*|lxc\.mount\.entry\s*[:=]\s*)/dev/(nvidia[\w-]*)", re.MULTILINE)
_SETTING = re.compile(r"^(?:[a-z]+\d*|lxc\.[\w.]+)\s*[:=]\s.*$", re.MULTILINE)
_NODE = re.compile(r"c[rwx-]+ .*?\s(?P<major>\d+),\s*(?P<minor>\d+) .*?/dev/(?P<name>nvidia[\w-]*)$", re.MULTILINE)


def container(text: str, entry: Entry) -> Hosts:
    """Put versions, device nodes and nvidia-smi's words where they are read on the host and in the container."""
    found = blocks(text)
    spec = {"container": "pct:129"}
    devices = {"container": {"devices": [GPU]}}
    version, library = find(found, "/proc/driver/nvidia/version"), find(found, "libnvidia")
    smi, nodes = find(found, "nvidia-smi"), find(found, "ls -l", "/dev/nvidia")
    if version and library:
        names = "\n".join(row.rpartition("/")[2] for row in library.text.splitlines())
        readings = [
            ["nvidia", "", "version", {"t": version.text}],
            ["inside_driver", "", "/usr/lib/x86_64-linux-gnu", {"t": names}],
        ]
        items = [item("driver_libraries_fit_the_kernel_module")]
        return [reference(items, devices, readings=readings, more=spec)]
    if smi and not find(found, "systemd-detect-virt"):
        readings = [["inside_driver", "", "smi", {"t": smi.text, "x": 18, "s": ""}]]
        items = [item("container_sees_exactly_its_gpus")]
        return [reference(items, devices, readings=readings, more=spec)]
    mounted = _MOUNTED.findall(text)
    if not mounted and not nodes:
        return UNREAD + ": what a guest shows of a card"
    return [_nodes(mounted, text, spec, devices)]


def _nodes(mounted: list[str], text: str, spec: dict[str, Any], expect: dict[str, Any]) -> dict[str, Any]:
    """Give the container the nodes that its configuration passes, with the host's majors."""
    majors = {match["name"]: (int(match["major"]), int(match["minor"])) for match in _NODE.finditer(text)}
    uvm = majors.get("nvidia-uvm", (508, 0))[0]
    base = {"nvidia0": (195, 0), "nvidiactl": (195, 255), "nvidia-uvm": (uvm, 0), "nvidia-uvm-tools": (uvm, 1)}
    there = mounted or list(majors)
    readings: list[list[Any]] = [["inside_dev", f"nvidia{number}", ".", None] for number in range(1, 4)]
    for name, (major, minor) in base.items():
        stat = {"gid": 0, "major": major, "minor": minor, "mode": 8630, "mtime": 0, "size": 0, "uid": 0}
        kept = name in there or name == "nvidia-uvm-tools"
        readings.append(["inside_dev", name, ".", {"t": json.dumps(stat)} if kept else None])
    table = f"Character devices:\n195 nvidia\n195 nvidiactl\n{uvm} nvidia-uvm\n\nBlock devices:\n  8 sd\n"
    readings.append(["host_majors", "", "devices", {"t": table}])
    if config := _SETTING.findall(text):
        readings.append(["container", "", "config", said("".join(f"{row}\n" for row in config))])
    names = (
        "container_has_the_device_node",
        "device_node_has_its_drivers_major",
        "container_may_open_the_device_node",
        "container_has_the_node_of_its_gpu",
    )
    items = [f"test_{name}[*{node}]" for name in names[:-1] for node in ("nvidiactl", "nvidia-uvm")] + [item(names[-1])]
    return reference(items, expect, readings=readings, more=spec)


def nothing(text: str, entry: Entry) -> Hosts:
    """Nothing reads it."""
    return UNREAD


TOPICS: Mapping[str, Converter] = {
    "iommu-fault-log": kernel_log,
    "xid-log": kernel_log,
    "iommu-mode": iommu_mode,
    "lspci": lspci,
    "driver-params": driver_params,
    "systemd": systemd,
    "container": container,
    **GPU_TOPICS,
    **ENDPOINT_TOPICS,
}
_SHOWN = ("device", "first_address", "addr", "type", "kernel_module", "library", "limit", "requested", "width")
"""What `parsed` and the product's messages call by one name, so that it can be looked up in them."""
SHOWN_ELSEWHERE = "pytest-reporting"
"""A topic about runs of pytest themselves: test_reporting.py."""


def words(parsed: Mapping[str, Any]) -> list[str]:
    """Give the values that a message about a fault must hold; those that have no name in messages are left out."""
    found = [str(parsed[name]) for name in _SHOWN if isinstance(parsed.get(name), str | int)]
    xids = parsed.get("xid")
    if isinstance(xids, list) and len(xids) == 1 and "code" in xids[0]:
        found.append(str(xids[0]["code"]))
    return found


def convert(entry: Entry, folder: Path) -> dict[str, Any]:
    """Give one case in the other form; a topic that is not known here has no hosts, and says so."""
    text = entry.get("input")
    if text is None:
        text = (folder / entry["input_file"]).read_bytes().decode("utf-8", "replace")
    hosts: Hosts
    try:
        hosts = TOPICS.get(entry["topic"], nothing)(text, entry)
    except (ValueError, LookupError, TypeError) as error:
        hosts = f"the converter does not take it: {type(error).__name__} {error}"
    kept = {name: entry[name] for name in ("id", "topic", "verdict") if name in entry}
    kept |= {"reason": entry.get("reason", ""), "parsed": entry.get("parsed") or {}}
    if entry["verdict"] == "fail":
        told = {name: value for name, value in kept["parsed"].items() if name != "width" or "ACSCtl:" not in text}
        kept["words"] = words(told)
    return {**kept, "unread": hosts, "input": text} if isinstance(hosts, str) else {**kept, "hosts": hosts}


if __name__ == "__main__":
    source = Path(sys.argv[1])
    made = [convert(one, source) for one in listed(source) if one["topic"] != SHOWN_ELSEWHERE]
    print(json.dumps(made, indent=1, ensure_ascii=False))
