"""Topic smi-query: nvidia-smi's CSV and XML."""

from __future__ import annotations

from typing import Any

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.facts.gpu import GpuRow, GpuTable
from pytest_gpuinfra.facts.gpu_query import parse_gpu_query
from pytest_gpuinfra.facts.gpu_xml import parse_gpu_xml
from pytest_gpuinfra.facts.nvidia_smi import find_smi_failure
from pytest_gpuinfra.verdict.gpu_state import judge_gpu_rows
from tests.cases.adapters.result import Result, result, unread
from tests.cases.case import Case

# Queries that were published without their header: the programs that made them are named in the cases' sources.
_QUERIES = {
    7: "memory.total memory.free memory.used temperature.gpu fan.speed utilization.gpu utilization.memory",
    12: "name utilization.gpu utilization.memory temperature.gpu power.draw power.limit fan.speed pstate "
    "clocks.current.graphics clocks.current.memory power.max_limit power.default_limit",
}
# nvidia-smi's own order differs from program to program; this one puts the fan in the fifth place.
_ALIASES = {"hostmax": "pcie.link.gen.hostmax", "gen": "pcie.link.gen.current", "width": "pcie.link.width.current"}


def judge(case: Case) -> Result:
    """Judge the table that the text is."""
    try:
        table = parse_gpu_xml(case.reading) if case.text.lstrip().startswith("<") else _csv(case)
    except GpuInfraError as error:
        failure = find_smi_failure(case.text)
        return unread(error, {"rows": [], "nvml_version": failure.nvml_version if failure else None})
    rows, loaded = _under_load(table)
    return result(judge_gpu_rows(rows, under_load=loaded, idle=case.requires == "idle"), _parsed(table, rows, loaded))


def _csv(case: Case) -> GpuTable:
    first = case.text.strip().splitlines()[0] if case.text.strip() else ""
    has_header = first[:1].islower()
    return parse_gpu_query(case.reading, None if has_header else _QUERIES.get(first.count(",") + 1, "").split())


def _under_load(table: GpuTable) -> tuple[list[GpuRow], bool | None]:
    """Take the rows that were measured under load, where the text says which."""
    if not all("state" in row for row in table):
        return list(table), None
    loaded = [row for row in table if row["state"].text == "load"]
    return (loaded, True) if loaded else (list(table), False)


def _parsed(table: GpuTable, rows: list[GpuRow], loaded: bool | None) -> dict[str, Any]:
    first = rows[0]
    devices = first.mig_devices
    action = first.values.get("gpu_recovery_action")
    return {
        **{name: _value(row, name) for row in table.rows[:1] for name in row.values},
        **{key: _value(first, name) for key, name in _ALIASES.items() if name in first},
        "rows": [{name: _value(row, name) for name in row.values} for row in table],
        "available": [name for name, value in first.values.items() if value.known and name != "name"],
        "mig": first.mig_enabled,
        "mig_devices": len(devices) if devices is not None else None,
        "gpus": len(table),
        "driver": table.driver_version,
        "cuda_version": table.cuda_version,
        "gpu_memory_total_mib": _value(first, "memory.total") if "memory.total" in first else None,
        "gpu_util": _value(first, "utilization.gpu") if "utilization.gpu" in first else None,
        "remapped_rows": _value(first, "remapped_rows") if "remapped_rows" in first else None,
        "gpu_recovery_action": f"{action} (no action)" if action and action.text == "None" else action and action.text,
        "judged": "load" if loaded else "idle" if loaded is False else None,
        "expected": _value(first, "pcie.link.gen.max") if "pcie.link.gen.max" in first else None,
    }


def _value(row: GpuRow, name: str) -> Any:
    value = row[name]
    if value.error:
        return "error"
    return None if value.absent else value.number if value.number is not None else value.text
