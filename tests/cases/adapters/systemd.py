"""Topic systemd: what systemctl shows, and unit files with drop-ins."""

from __future__ import annotations

import re
from typing import Any

from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError
from pytest_gpuinfra.facts.reading import Reading
from pytest_gpuinfra.facts.unit import UnitState, parse_unit_properties
from pytest_gpuinfra.facts.unit_file import parse_unit_file
from pytest_gpuinfra.verdict.unit_settings import judge_unit_file, judge_unit_properties, judge_unreadable_unit
from tests.cases.adapters.result import Result, result, unread
from tests.cases.adapters.transcript import blocks
from tests.cases.case import Case

_STATUS = re.compile(r"^rc=(?P<rc>\d+)$", re.MULTILINE)


def judge(case: Case) -> Result:
    """Judge a unit file if the text has sections, else what `systemctl show` printed."""
    status = _STATUS.search(case.text)
    rc = int(status["rc"]) if status else None
    try:
        if re.search(r"^\[[A-Z]\w+\]$", case.text, re.MULTILINE):
            unit = parse_unit_file(case.reading)
            commands = unit.commands
            parsed = {"argv": list(commands[-1]) if commands else None, "env": dict(unit.environment)}
            return result(judge_unit_file(unit), {**parsed, "dropped": list(unit.dropped)})
        properties = parse_unit_properties(_shown(case))
    except FactUnavailable as error:
        default = 127 if "not found" in case.text else 1
        return result(judge_unreadable_unit(error), {"systemd": False, "rc": default if rc is None else rc})
    except GpuInfraError as error:
        return unread(error, {"rc": rc})
    return result(judge_unit_properties(properties), _parsed(properties, rc))


def _shown(case: Case) -> Reading:
    shown = [block for block in blocks(case.text) if "systemctl show" in block.command]
    return shown[-1].reading() if shown else case.reading


def _parsed(unit: UnitState, rc: int | None) -> dict[str, Any]:
    return {
        **unit.environment,
        "env": dict(unit.environment),
        "dropped": list(unit.dropped),
        "environment_files": [{"path": file.path, "optional": file.optional} for file in unit.environment_files],
        "argv": list(unit.commands[-1]) if unit.commands else None,
        "active": unit.active,
        "main_pid": unit.main_pid,
        "load_state": unit.values.get("LoadState"),
        "active_state": unit.values.get("ActiveState"),
        "sub_state": unit.values.get("SubState"),
        "rc": rc,
        "systemd": True,
    }
