"""Topic driver-params: /proc/driver/nvidia/params, whatever /sys/module says beside it."""

from __future__ import annotations

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.facts.driver import parse_driver_parameters, parse_driver_version
from pytest_gpuinfra.verdict.driver_parameters import judge_driver_parameters, judge_driver_version
from tests.cases.adapters.result import Result, result, unread
from tests.cases.adapters.transcript import Block, blocks
from tests.cases.case import Case

_PATH = "/proc/driver/nvidia/params"


def _version(block: Block) -> Result:
    try:
        found = parse_driver_version(block.reading("/proc/driver/nvidia/version"))
    except GpuInfraError as error:
        return unread(error, {})
    parsed = {"version": found.version, "driver": found.version, "open": found.open}
    return result(judge_driver_version(found, None), parsed)


def judge(case: Case) -> Result:
    """Read the parameters that the session shows of that file, or the whole text."""
    found = blocks(case.text)
    version = next((block for block in found if "NVRM version" in block.text), None)
    shown = [block for block in found if _PATH in block.command]
    if version and not shown:
        return _version(version)
    reading = shown[-1].reading(_PATH) if shown else case.reading
    try:
        parameters = parse_driver_parameters(reading)
        verdict = judge_driver_parameters(parameters, {})
        parsed = {
            name: parameters.registry(name) if name.startswith("RegistryDwords") else parameters[name]
            for name in parameters
        }
    except GpuInfraError as error:
        return unread(error, {"source": reading.source})
    return result(verdict, {**parsed, "source": parameters.source})
