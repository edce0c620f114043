"""Topics iommu-fault-log and xid-log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.facts.aer import AerError
from pytest_gpuinfra.facts.fault import KernelFault
from pytest_gpuinfra.facts.iommu_fault import IommuFault
from pytest_gpuinfra.facts.kernel_fault import parse_kernel_faults
from pytest_gpuinfra.facts.kernel_log import KernelLog, parse_kernel_text
from pytest_gpuinfra.facts.pci_address import normalise_pci_address
from pytest_gpuinfra.facts.sxid import SXid
from pytest_gpuinfra.facts.xid import Xid
from pytest_gpuinfra.facts.xid_table import read_xid_table
from pytest_gpuinfra.verdict.fault_weight import root_xid
from pytest_gpuinfra.verdict.kernel_log import SortedFaults, driver_loaded_at_s, judge_kernel_log, sort_faults
from tests.cases.adapters.result import Result, result, unread
from tests.cases.case import Case

_NAMED = re.compile(r"\b(?:GPU|accelerator) (?P<device>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)\b")
_UNDER_TEST = re.compile(r"given that (?P<devices>[0-9a-f:., ]+?) (?:is a device|are devices) under test")


def judge(case: Case) -> Result:
    """Judge a piece of a kernel log; the devices under test are those that the case gives."""
    given = _UNDER_TEST.search(case.reason)
    gpus = re.findall(r"[0-9a-f:.]{7,}", given["devices"]) if given else []
    gpus += [normalise_pci_address(match["device"]) for match in _NAMED.finditer(case.reason)]
    try:
        log = parse_kernel_text(case.reading)
    except GpuInfraError as error:
        return unread(error, {"readable": False})
    faults = parse_kernel_faults(log)
    found = sort_faults(faults, gpus)
    parsed = _log(log, faults) | _iommu(case, found) | _gpus(faults, found, log)
    return result(judge_kernel_log(log, gpus, entries=log.entries), parsed)


def _log(log: KernelLog, faults: Sequence[KernelFault]) -> dict[str, Any]:
    numbered = log.last_sequence is not None
    priorities = {entry.priority for entry in log}
    return {
        "readable": True,
        "format": "/dev/kmsg record" if numbered else "text",
        "records": len(log),
        "priority": priorities.pop() if len(priorities) == 1 else None,
        "unparsed": sum(fault.kind == "unreadable" for fault in faults),
    }


def _iommu(case: Case, found: SortedFaults) -> dict[str, Any]:
    mine = [fault for fault in found.against + found.mild if isinstance(fault, IommuFault)]
    others = [fault for fault in found.others if isinstance(fault, IommuFault)]
    first = _one(mine[0]) if mine else {}
    only_counted = isinstance(case.parsed.get("other_faults"), int)
    return {
        **first,
        "first_address": first.get("addr"),
        "faults": len(mine),
        "shown": len(mine),
        "suppressed": sum(fault.suppressed for fault in mine),
        "at_least": sum(fault.count for fault in mine),
        "gpu_faults": len(mine),
        "iommu_faults": len(mine) + len(others),
        "other_faults": len(others) if only_counted else [_one(fault) for fault in others],
    }


def _one(fault: IommuFault) -> dict[str, Any]:
    reason = fault.reason
    return {
        "device": fault.device,
        "driver": fault.driver,
        "domain": None if fault.domain is None else f"0x{fault.domain:04x}",
        "flags": None if fault.flags is None else f"0x{fault.flags:04x}",
        "access": fault.access if fault.flags is None else f"{fault.access} (flags bit 0x20)",
        "type": fault.code,
        "pasid": fault.pasid,
        "addr": None if fault.address is None else hex(fault.address),
        "address": None if fault.address is None else hex(fault.address),
        "reason": int(reason) if reason and reason.isdigit() else reason,
        "text": fault.text,
        "at_least": fault.count,
    }


def _gpus(faults: Sequence[KernelFault], found: SortedFaults, log: KernelLog) -> dict[str, Any]:
    xids = [fault for fault in faults if isinstance(fault, Xid)]
    root = root_xid(xids)
    loaded = driver_loaded_at_s(log)
    statuses = [getattr(fault, "status", None) for fault in faults if fault.kind == "init"]
    return {
        "xid": _grouped(xids),
        "sxid": [
            {"code": sxid.code, "bdf": sxid.device, "severity": sxid.severity, "link": sxid.link, "switch": sxid.switch}
            for sxid in faults
            if isinstance(sxid, SXid)
        ],
        "aer": [
            {"bdf": error.device, "severity": error.severity, "type": error.layer, "errors": list(error.names)}
            for error in faults
            if isinstance(error, AerError)
        ],
        "root": root.number if root else None,
        "processes": list(dict.fromkeys(xid.process for xid in xids if xid.process)),
        "fallen_off_bus": _devices(faults, "off-bus"),
        "rm_init_failed": _devices(faults, "rm-init"),
        "probe_failed": sum(fault.count for fault in faults if fault.code == "probe"),
        "fsp_timeout": any(fault.code == "fsp" for fault in faults),
        "gfw_boot_failed": any(fault.code == "gfw" for fault in faults),
        "gsp_failed": any(fault.code == "gsp" for fault in faults),
        "signature": next((str(fault.code).upper() for fault in faults if fault.code == "wpr2"), None),
        "status": next((status for status in reversed(statuses) if status and status.startswith("0x")), None),
        "bdf": next((fault.device for fault in faults if fault.kind == "init" and fault.device), None),
        "before_driver_load": None
        if loaded is None
        else all(fault.entry.time_s is not None and fault.entry.time_s < loaded for fault in found.others),
    }


def _grouped(xids: Sequence[Xid]) -> list[dict[str, Any]]:
    groups: dict[tuple[object, object], list[Xid]] = {}
    for xid in xids:
        groups.setdefault((xid.code, xid.device), []).append(xid)
    return [
        {
            "code": xid.number,
            "bdf": xid.device,
            "pid": xid.pid,
            "process": xid.process,
            "class": read_xid_table().meaning(xid.number).xid_class,
            "unit": xid.unit,
            "severity": xid.severity,
            "link": xid.link,
            "from": xid.recovery_from,
            "to": xid.recovery_to,
            "status": xid.status,
            "registers": list(xid.registers),
            "count_shown": len(group),
            "rate_limited": xid.rate_limited,
        }
        for group in groups.values()
        for xid in group[:1]
    ]


def _devices(faults: Sequence[KernelFault], code: str) -> list[str]:
    return list(dict.fromkeys(fault.device for fault in faults if fault.code == code and fault.device))
