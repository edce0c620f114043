"""
Makes the sysfs readings in which the product would see what lspci printed.

Source: lspci(8) of pciutils 3.7 to 3.13; PCI Express Base Specification 7.7.11 (ACS).
"""

from __future__ import annotations

import re
from typing import Any

_FUNCTION = re.compile(r"^(?P<address>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?P<class>[^:]+): (?P<name>.*)$")
_REGION = re.compile(
    r"(?:Region (?P<index>\d)|Memory) ?:? ?(?:Memory )?at (?P<start>[0-9a-f]+) "
    r".*\[size=(?P<size>\d+)(?P<unit>[KMGT]?)\]"
)
_LINK = re.compile(r"Lnk(?P<what>Cap|Sta):.*?Speed (?P<speed>[\d.]+)GT/s[^,]*, Width x(?P<width>\d+)")
_DOWNGRADED = re.compile(r"Width x\d+ \(downgraded\)")
_ACS = re.compile(r"ACS(?P<what>Cap|Ctl):\s*(?P<bits>.*)")
_ORDER = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_BUSES = re.compile(r"Bus: primary=\w+, secondary=(?P<first>[0-9a-f]+), subordinate=(?P<last>[0-9a-f]+)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_CLASSES = {"PCI bridge": "0x060400", "3D controller": "0x030200", "VGA compatible controller": "0x030000"}
_VENDORS = {"NVIDIA": "0x10de", "Advanced Micro Devices": "0x1022", "Broadcom": "0x1000", "Intel": "0x8086"}


def functions_of_lspci(text: str) -> dict[str, dict[str, Any]]:
    """Give the readings of each PCI function, by address and file name; None for a file that is not there."""
    sections: list[tuple[str, str, str, list[str]]] = []
    for line in text.splitlines():
        head = _FUNCTION.match(line)
        if head:
            sections.append((_full(head["address"]), head["class"].strip(), head["name"], []))
        elif line.strip():
            if not sections and (_LINK.search(line) or _REGION.search(line)):
                sections.append(("0000:01:00.0", "VGA compatible controller", "NVIDIA Corporation", []))
            if sections:
                sections[-1][3].append(line)
    above = _bridges(sections)
    return {
        address: _node(address, kind, name, lines, above.get(address, ())) for address, kind, name, lines in sections
    }


def _node(address: str, kind: str, name: str, lines: list[str], above: tuple[str, ...]) -> dict[str, Any]:
    texts: dict[str, Any] = {
        ".": "../../../devices/pci0000:00/" + "/".join([*above, address]),
        "vendor": next((code for word, code in _VENDORS.items() if word in name), "0xffff"),
        "device": "0x0000",
        "class": _CLASSES.get(kind, "0x000000"),
        "resource": _resource(lines),
        "config": _config(lines),
        **dict.fromkeys(("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")),
    }
    for line in lines:
        link = _LINK.search(line)
        if link:
            which = "max_link" if link["what"] == "Cap" else "current_link"
            texts[f"{which}_speed"] = f"{float(link['speed']):.1f} GT/s PCIe\n"
            texts[f"{which}_width"] = f"{link['width']}\n"
            if _DOWNGRADED.search(line) and texts["max_link_width"] is None:
                texts["max_link_width"] = "16\n"
    return texts


def _resource(lines: list[str]) -> str:
    regions: dict[int, tuple[int, int]] = {}
    for line in lines:
        match = _REGION.search(line)
        if match:
            index = int(match["index"]) if match["index"] else len(regions)
            start = int(match["start"], 16)
            regions[index] = (start, start + int(match["size"]) * _UNITS[match["unit"]] - 1)
    return "".join("0x{:016x} 0x{:016x} 0x{:016x}\n".format(*regions.get(index, (0, 0)), 0) for index in range(7))


def _config(lines: list[str]) -> str:
    """Give the configuration space: cut off where lspci was refused, with ACS where it shows it."""
    if any("<access denied>" in line for line in lines):
        return bytes(64).hex()
    content = bytearray(320)
    registers = {match["what"]: _bits(match["bits"]) for line in lines if (match := _ACS.search(line))}
    if registers:
        content[0x100:0x104] = (0x000D | 1 << 16).to_bytes(4, "little")
        content[0x104:0x106] = registers.get("Cap", 0x5F).to_bytes(2, "little")
        content[0x106:0x108] = registers.get("Ctl", 0).to_bytes(2, "little")
    return bytes(content).hex()


def _bits(text: str) -> int:
    return sum(1 << place for place, name in enumerate(_ORDER) if f"{name}+" in text)


def _bridges(sections: list[tuple[str, str, str, list[str]]]) -> dict[str, tuple[str, ...]]:
    """Put each function below the bridge that leads to its bus; below a lone bridge where no bus is shown."""
    spans: list[tuple[str, range]] = []
    for address, kind, _, lines in sections:
        if kind == "PCI bridge":
            buses = next((match for line in lines if (match := _BUSES.search(line))), None)
            span = range(int(buses["first"], 16), int(buses["last"], 16) + 1) if buses else range(256)
            spans.append((address, span))
    return {
        address: tuple(bridge for bridge, span in spans if int(address[5:7], 16) in span)
        for address, kind, _, _ in sections
        if kind != "PCI bridge"
    }


def _full(address: str) -> str:
    return address if address.count(":") == 2 else f"0000:{address}"
