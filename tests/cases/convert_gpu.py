"""Converts the topics about nvidia-smi, peer access, copies and collectives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from xml.sax.saxutils import escape

from tests.cases.case import UNREAD
from tests.cases.convert_parts import Entry, Hosts, item, logged, reference, said

# nvidia-smi's --query-gpu fields and where `-q -x` has them (nvsmi_device_v13.dtd).
_XML = {
    "name": "product_name",
    "fan.speed": "fan_speed",
    "pstate": "performance_state",
    "memory.total": "fb_memory_usage/total",
    "memory.used": "fb_memory_usage/used",
    "memory.free": "fb_memory_usage/free",
    "utilization.gpu": "utilization/gpu_util",
    "utilization.memory": "utilization/memory_util",
    "temperature.gpu": "temperature/gpu_temp",
    "temperature.memory": "temperature/memory_temp",
    "power.draw": "gpu_power_readings/instant_power_draw",
    "power.limit": "gpu_power_readings/current_power_limit",
    "pcie.link.gen.current": "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    "pcie.link.gen.max": "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
    "pcie.link.width.current": "pci/pci_gpu_link_info/link_widths/current_link_width",
    "pcie.link.width.max": "pci/pci_gpu_link_info/link_widths/max_link_width",
    "mig.mode.current": "mig_mode/current_mig",
    "gpu_recovery_action": "gpu_recovery_action",
    "fabric.state": "fabric/state",
    "fabric.status": "fabric/status",
    "ecc.mode.current": "ecc_mode/current_ecc",
    "ecc.errors.uncorrected.volatile.dram": "ecc_errors/volatile/dram_uncorrectable",
    "ecc.errors.uncorrected.volatile.sram": "ecc_errors/volatile/sram_uncorrectable_secded",
    "ecc.errors.uncorrected.volatile.total": "ecc_errors/volatile/double_bit/total",
    "remapped_rows.pending": "remapped_rows/remapped_row_pending",
    "remapped_rows.failure": "remapped_rows/remapped_row_failure",
    "retired_pages.pending": "retired_pages/pending_retirement",
}
# Queries that were published without their header: the programs that made them are named in the cases' sources.
_QUERIES = {
    7: "memory.total memory.free memory.used temperature.gpu fan.speed utilization.gpu utilization.memory",
    12: "name utilization.gpu utilization.memory temperature.gpu power.draw power.limit fan.speed pstate",
}
_BUS = re.compile(r"<gpu id=\"([0-9A-Fa-f]+:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\"|<pci_bus_id>([0-9A-Fa-f:.]+)")


def smi_query(text: str, entry: Entry) -> Hosts:
    """Put XML where it is read; a query's CSV becomes the XML that holds the same values, and no more."""
    if text.lstrip().startswith("<"):
        buses = sorted({(a or b).lower()[-12:] for a, b in _BUS.findall(text)}) or ["0000:01:00.0"]
        return [_smi(text, buses)]
    rows = _rows(text)
    if rows is None:
        return [_smi(text, ["0000:01:00.0"], status=0 if "," in text else 9)]
    loaded = [row for row in rows if row.get("state") == "load"]
    if any("state" in row for row in rows) and not loaded:
        return UNREAD + ": the state of an idle or busy GPU at the moment of the query"
    rows = loaded or rows
    buses = [f"0000:{number:02x}:00.0" for number in range(1, len(rows) + 1)]
    gpus = "".join(
        f'<gpu id="0000{bus}">{_elements({_XML[k]: v for k, v in row.items() if k in _XML})}</gpu>'
        for bus, row in zip(buses, rows, strict=True)
    )
    lost = sorted({name for row in rows for name in row} - {*_XML, "index", "state", "pci.bus_id", "uuid", "count"})
    if lost and not any(name in _XML for row in rows for name in row):
        return f"{UNREAD}: {', '.join(lost)}"
    idle = entry.get("requires") == "idle"
    return [_smi(f"<?xml version='1.0'?>\n<nvidia_smi_log>{gpus}</nvidia_smi_log>\n", buses, idle=idle)]


def _smi(text: str, buses: list[str], status: int = 0, *, idle: bool = False) -> dict[str, Any]:
    expect = {"devices": [{"pci": buses, "driver": "nvidia"}], **({"gpu": {"idle": True}} if idle else {})}
    readings = [["nvidia_smi", "", "xml", {**said(text), "x": status}]]
    functions: dict[str, Any] = {bus: {} for bus in buses}
    items = [item("gpu_reports_no_fault"), *([item("gpu_is_idle")] if idle else [])]
    return reference(items, expect, functions=functions, readings=readings)


def _rows(text: str) -> list[dict[str, str]] | None:
    """Read a query's CSV; None if it is none, or cut off."""
    lines = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    if not lines or len(lines[0]) < 2:
        return None
    header = [re.sub(r"\s*\[.*\]", "", cell) for cell in lines[0]]
    if header[0][:1].islower():
        lines = lines[1:]
        if any(len(line) != len(header) for line in lines):
            return None
    else:
        header = _QUERIES.get(len(lines[0]), "").split()
    return [{n: v.strip("[]") for n, v in zip(header, line, strict=False)} for line in lines] if header else None


def _elements(values: Mapping[str, str]) -> str:
    """Write paths and values as nested XML."""
    text, groups = "", dict[str, dict[str, str]]()
    for path, value in values.items():
        head, _, rest = path.partition("/")
        if rest:
            groups.setdefault(head, {})[rest] = value
        else:
            text += f"<{head}>{escape(value)}</{head}>"
    return text + "".join(f"<{head}>{_elements(inner)}</{head}>" for head, inner in groups.items())


def _pair(src: int, dst: int, **values: Any) -> dict[str, Any]:
    return {
        "event": "pair",
        "src": f"0000:{src + 1:02x}:00.0",
        "dst": f"0000:{dst + 1:02x}:00.0",
        "mechanism": "copy_engine",
        "can_access": True,
        "outcome": "right",
        "class": None,
        "copies_checked": 1,
        "bytes_checked": 4096,
        "largest_bytes": 4096,
        "wrong_copies": 0,
        "wrong_bytes": 0,
        "never_written_bytes": 0,
        "zeroed_bytes": 0,
        "scrambled_bytes": 0,
        "guard_wrong_bytes": 0,
        "failures": [],
        **values,
    }


def _program(pairs: list[dict[str, Any]], tests: list[str], access: str | None, kmsg: str = "") -> dict[str, Any]:
    buses = sorted({address for pair in pairs for address in (pair["src"], pair["dst"])})
    expect: dict[str, Any] = {"devices": [{"pci": buses, "driver": "nvidia"}]}
    expect |= {"peer_access": access} if access else {}
    wanted = {f"{pair['src'][5:]}-{pair['dst'][5:]}" for pair in pairs}
    items = [f"test_{test}[*{'*'.join(one.split('-'))}*]" for test in tests for one in sorted(wanted)]
    functions: dict[str, Any] = {bus: {} for bus in buses}
    return reference(items, expect, functions=functions, program=pairs, kmsg=kmsg)


_GRANTS = (
    (re.compile(r"Device=(\d+) (CAN|CANNOT) Access Peer Device=(\d+)"), (0, 2, 1)),
    (re.compile(r"Peer access from .*?\(GPU(\d+)\) -> .*?\(GPU(\d+)\) : (Yes|No)"), (0, 1, 2)),
)


def topology(text: str, entry: Entry) -> Hosts:
    """Make CUDA's word on peer access into the program's events; nvidia-smi's matrices go where they are read."""
    access = "correct" if entry.get("requires") == "peer access" else None
    for pattern, (src, dst, word) in _GRANTS:
        found = pattern.findall(text)
        if found:
            pairs = [
                _pair(int(row[src]), int(row[dst]), **({} if row[word] in ("CAN", "Yes") else _REFUSED))
                for row in found
            ]
            return [_program(pairs, ["peer_access_is_offered"], access)]
    buses = [f"0000:{number + 1:02x}:00.0" for number in range(len(set(_LABEL.findall(text))) or 2)]
    expect: dict[str, Any] = {"devices": [{"pci": buses, "driver": "nvidia"}]}
    expect |= {"peer_access": access} if access else {}
    readings = [["nvidia_topo", "", "grants", said(text)]]
    functions: dict[str, Any] = {bus: {} for bus in buses}
    return [reference([item("driver_grants_peer_access")], expect, functions=functions, readings=readings)]


_LABEL = re.compile(r"\bGPU\d+\b")


_REFUSED = {"can_access": False, "outcome": "not_tested", "copies_checked": 0, "reason": "no peer access"}
_COPY = re.compile(
    r"(?P<src>\d+) ?-> ?(?P<dst>\d+):? (?:(?P<equal>\d+) of (?P<total>\d+) values equal|(?P<word>MISMATCH|OK))"
)
_VALUES = re.compile(r"(?P<what>source|copy|host|cuda:\d+)\s+(?:cuda:\d+\s+)?\[(?P<values>[^\]]*)\]")


def p2p_copy(text: str, entry: Entry) -> Hosts:
    """Make what a copy script printed into the events that the product's program would have written."""
    pairs = []
    for match in _COPY.finditer(text):
        total = int(match["total"] or 1)
        wrong = total - int(match["equal"]) if match["equal"] else int(match["word"] != "OK")
        pairs.append(_copied(int(match["src"]), int(match["dst"]), total, wrong, zeroed=bool(match["total"])))
    seen = {match["what"]: json.loads(f"[{match['values']}]") for match in _VALUES.finditer(text)}
    source, copy = seen.get("source", seen.get("cuda:0")), seen.get("copy", seen.get("cuda:1"))
    if source and copy:
        wrong = sum(a != b for a, b in zip(source, copy, strict=True))
        pairs.append(_copied(0, 1, len(source), wrong, zeroed=not any(copy)))
    if not pairs:
        return UNREAD
    messages = [line.split("] ", 1)[1] for line in text.splitlines() if line.startswith("[") and "] " in line]
    kmsg = "".join(f"3,{at},{at},-;{message}\n" for at, message in enumerate(messages, 100))
    access = "correct" if entry.get("requires") == "peer access" else None
    return [_program(pairs, ["copy_engine_delivers_every_byte"], access, kmsg)]


def _copied(src: int, dst: int, values: int, wrong: int, *, zeroed: bool) -> dict[str, Any]:
    size, bad = values * 4, wrong * 4
    found = {"bytes_checked": size, "largest_bytes": size, "wrong_copies": int(bad > 0), "wrong_bytes": bad}
    if bad:
        found |= {"outcome": "wrong", "class": "zeroed" if zeroed else "scrambled"}  # type: ignore[dict-item]
        found |= {"zeroed_bytes": bad if zeroed else 0, "scrambled_bytes": 0 if zeroed else bad}
    return _pair(src, dst, **found)


_KILLED = re.compile(r"^\(.*killed after.*\)$", re.MULTILINE)


def nccl_log(text: str, entry: Entry) -> Hosts:
    """Put the text into the log of a service that was told to log NCCL, on a host whose GPUs must reach each other."""
    if "Custom allreduce" in text and "NCCL" not in text:
        return [logged(text, [item("engine_admits_no_fallback")])]
    text = _KILLED.sub("sglang-qwen.service: start operation timed out. Terminating.", text)
    expect = {"peer_access": "correct", "service": {"environment": {"NCCL_DEBUG": "INFO"}}}
    return [logged(text, [item("nccl_of_the_service_is_in_order")], expect)]


GPU_TOPICS: Mapping[str, Callable[[str, Entry], Hosts]] = {
    "smi-query": smi_query,
    "topology": topology,
    "p2p-copy": p2p_copy,
    "nccl-log": nccl_log,
}
