"""Topic lspci: the same situation made in sysfs, where the product looks."""

from __future__ import annotations

import re
from typing import Any

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.facts.pci import PciFunction, PciFunctions
from pytest_gpuinfra.verdict.acs import bridges_above, judge_acs, redirecting
from pytest_gpuinfra.verdict.base import Verdict
from pytest_gpuinfra.verdict.pci_link import judge_link
from tests.cases.adapters.made_pci import functions_from_lspci
from tests.cases.adapters.result import Result, result
from tests.cases.case import Case

_EXPECTS = re.compile(r"configuration expects (?P<speed>[\d.]+) ?GT/s x(?P<width>\d+)")
_ORDER = ("skip", "ok", "error", "wrong")


def judge(case: Case) -> Result:
    """Judge access control above the GPUs, or of the bridges alone, and the GPUs' links."""
    functions = PciFunctions(functions_from_lspci(case.text))
    if not len(functions):
        return "error", "no PCI function in the text", {}
    gpus = functions.gpus
    above = {bridge.address: bridge for gpu in gpus for bridge in bridges_above(gpu, functions)}
    bridges = [function for function in functions if function.class_code >> 8 == 0x0604]
    judged = list(above.values()) or bridges
    expects = _EXPECTS.search(case.reason)
    width = int(expects["width"]) if expects else None
    speed = float(expects["speed"]) if expects else None
    verdicts = [judge_link(gpu, width=width, speed_gt_s=speed) for gpu in gpus if _has_link(gpu)]
    if judged or not verdicts:
        # Where no bridge is shown, the GPU stands for it: what matters is whether the space can be read.
        verdicts.append(judge_acs(judged or list(gpus)))
    return result(_worst(verdicts), _parsed(functions, judged, bridges, width))


def _has_link(gpu: PciFunction) -> bool:
    return gpu.link_width is not None


def _worst(verdicts: list[Verdict]) -> Verdict:
    worst = max(verdicts, key=lambda verdict: _ORDER.index(verdict.ending))
    return next((verdict for verdict in verdicts if verdict.warnings), worst) if worst.ok else worst


def _parsed(
    functions: PciFunctions, judged: list[PciFunction], bridges: list[PciFunction], width: int | None
) -> dict[str, Any]:
    gpu = next(iter(functions.gpus), None)
    controls = [bridge.acs for bridge in judged if bridge.acs]
    redirects = redirecting(judged)
    parsed: dict[str, Any] = {
        "acs_redirect": [bridge.address for bridge in redirects],
        "acsctl": f"0x{redirects[0].acs.control:04x}" if redirects and redirects[0].acs else None,
        "lines": len(controls),
        "req_redir": sum(control.request_redirect for control in controls),
        "cmplt_redir": sum(control.completion_redirect for control in controls),
        "src_valid": sum("source_validation" in control.enabled for control in controls),
        "expected_width": width,
        "other_downgraded": [bridge.address for bridge in bridges if _slower(bridge)],
    }
    if gpu:
        regions = [bar.size_bytes for bar in gpu.bars]
        parsed |= {
            "bdf": gpu.address,
            "speed": _speed(gpu.link_speed_gt_s),
            "speed_max": _speed(gpu.max_link_speed_gt_s),
            "width": gpu.link_width,
            "width_max": gpu.max_link_width,
            "speed_judged": not _slower(gpu),
            "width_downgraded": (gpu.link_width or 0) < (gpu.max_link_width or 0),
            "bar1": f"{regions[1] >> 30}G" if len(regions) > 1 else None,
            "capabilities": _capabilities(gpu),
            "gpu": {"bdf": gpu.address, "speed": _speed(gpu.link_speed_gt_s), "width": gpu.link_width},
        }
    return parsed


def _capabilities(function: PciFunction) -> str:
    try:
        _ = function.acs
    except GpuInfraError:
        return "denied"
    return "readable"


def _slower(function: PciFunction) -> bool:
    now, most = function.link_speed_gt_s, function.max_link_speed_gt_s
    return now is not None and most is not None and now < most


def _speed(value: float | None) -> str | None:
    return None if value is None else f"{value:g}GT/s"
