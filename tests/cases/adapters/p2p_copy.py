"""
Topic p2p-copy: what somebody's copy script saw, made into the events that the product's own program would write.

The events are then read by the product's parser and judged as any run's are.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.facts.gpu_program import parse_gpu_program_events
from pytest_gpuinfra.facts.iommu_fault import IommuFault
from pytest_gpuinfra.facts.kernel_fault import parse_kernel_faults
from pytest_gpuinfra.facts.kernel_log import parse_kernel_text
from pytest_gpuinfra.facts.peer_transfer import PeerTransfer
from pytest_gpuinfra.facts.reading import Reading
from pytest_gpuinfra.verdict.dma_mode import judge_dma_mode
from pytest_gpuinfra.verdict.peer_transfer import judge_transfer
from tests.cases.adapters.result import Result, result
from tests.cases.case import Case

_COPY = re.compile(
    r"(?P<src>\d+) ?-> ?(?P<dst>\d+):? "
    r"(?:(?P<equal>\d+) of (?P<total>\d+) values equal|(?P<word>MISMATCH|OK))"
)
_VALUES = re.compile(r"(?P<what>source|copy|host|cuda:\d+)\s+(?:cuda:(?P<device>\d+)\s+)?\[(?P<values>[^\]]*)\]")
_LATENCY = re.compile(r"P2P=(?P<mode>Disabled|Enabled)\s+Latency\s+\d+->\d+\s+(?P<us>[\d.]+) us")
_VALUE_BYTES = 4


def judge(case: Case) -> Result:
    """Judge the worst of the copies that the text tells of."""
    copies, parsed = _copies(case.text)
    messages = _iommu_messages(case.text)
    parsed |= {
        "iommu_faults": len(messages),
        "hint": "iommu=pt" if messages and "iommu=pt" in judge_dma_mode().action else None,
        "latency_us": {match["mode"].lower(): float(match["us"]) for match in _LATENCY.finditer(case.text)},
        "via_host_ok": "via host OK" in case.text,
    }
    if not copies:
        return "error", "the text tells of no copy", parsed
    transfers = _transfers(copies)
    bad = [transfer for transfer in transfers if transfer.observed_wrong]
    parsed |= {"pairs_bad": [_pair(transfer) for transfer in bad], "mismatch": bool(bad)}
    worst = (bad or list(transfers))[0]
    verdict = judge_transfer(worst, worst.pair, peer_access="correct" if case.peer_access else None, context=messages)
    return result(verdict, {"pair": _pair(worst), **parsed})


def _copies(text: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    copies = []
    parsed: dict[str, Any] = {}
    for match in _COPY.finditer(text):
        total = int(match["total"] or 1)
        equal = int(match["equal"]) if match["equal"] else total if match["word"] == "OK" else 0
        copies.append(_event(int(match["src"]), int(match["dst"]), total, total - equal, zeroed=bool(match["total"])))
        if match["equal"]:
            parsed["equal"] = equal
    seen = {match["what"]: match for match in _VALUES.finditer(text)}
    pairs = [(seen.get("source"), seen.get("copy"))] if "source" in seen else [(seen.get("cuda:0"), seen.get("cuda:1"))]
    for source, copy in pairs:
        if source and copy:
            wanted, got = json.loads(f"[{source['values']}]"), json.loads(f"[{copy['values']}]")
            wrong = sum(a != b for a, b in zip(wanted, got, strict=True))
            copies.append(_event(0, 1, len(wanted), wrong, zeroed=not any(got)))
            parsed |= {"expected": wanted, "got": got}
    return copies, parsed


def _event(src: int, dst: int, total: int, wrong: int, *, zeroed: bool) -> dict[str, Any]:
    size, bad = total * _VALUE_BYTES, wrong * _VALUE_BYTES
    return {
        "event": "pair",
        "src": f"0000:{src + 1:02x}:00.0",
        "dst": f"0000:{dst + 1:02x}:00.0",
        "mechanism": "copy_engine",
        "can_access": True,
        "outcome": "wrong" if bad else "right",
        "class": ("zeroed" if zeroed else "scrambled") if bad else None,
        "copies_checked": 1,
        "bytes_checked": size,
        "largest_bytes": size,
        "wrong_copies": 1 if bad else 0,
        "wrong_bytes": bad,
        "never_written_bytes": 0,
        "zeroed_bytes": bad if zeroed else 0,
        "scrambled_bytes": 0 if zeroed else bad,
        "guard_wrong_bytes": 0,
        "failures": [],
    }


def _transfers(events: list[dict[str, Any]]) -> tuple[PeerTransfer, ...]:
    return parse_gpu_program_events(json.dumps(event) for event in events).transfers


def _pair(transfer: PeerTransfer) -> list[int]:
    return [int(address[5:7], 16) - 1 for address in (transfer.src, transfer.dst)]


def _iommu_messages(text: str) -> tuple[str, ...]:
    lines = "\n".join(line for line in text.splitlines() if line.lstrip().startswith("["))
    try:
        log = parse_kernel_text(Reading("kernel log", lines))
    except GpuInfraError:
        return ()
    return tuple(fault.message for fault in parse_kernel_faults(log) if isinstance(fault, IommuFault))
