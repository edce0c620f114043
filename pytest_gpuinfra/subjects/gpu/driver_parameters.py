"""Parameters of the loaded NVIDIA driver against what the inventory expects of them."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.subjects.gpu.driver import DriverParameters, DriverVersion, same_parameter_value
from pytest_gpuinfra.subjects.verdict import Verdict


def judge_driver_parameters(parameters: DriverParameters, expected: Mapping[str, object]) -> Verdict:
    """Judge whether every expected parameter has its value; a parameter that this driver lacks is an error."""
    wrong = []
    for name, value in expected.items():
        try:
            observed = parameters[name]
        except FactUnavailable as error:
            return _verdict("error", error.reason, expected)
        if not same_parameter_value(str(observed), value):
            wrong.append(f"{name} is {observed!r}")
    observed = "; ".join(wrong) or f"{len(parameters.values)} parameters of the loaded driver"
    return _verdict("wrong" if wrong else "ok", observed, expected)


def judge_driver_version(found: DriverVersion, expected: str | None) -> Verdict:
    """Judge the loaded driver's version; any if nothing is expected."""
    wanted = {"version": expected} if expected else {}
    kind = "open" if found.open else "proprietary"
    ending = "ok" if expected in (None, found.version) else "wrong"
    return _verdict(ending, f"{found.version}, {kind} module", wanted)


def _verdict(ending: str, observed: str, expected: Mapping[str, object]) -> Verdict:
    return Verdict(
        ending=ending,  # type: ignore[arg-type]
        subject="parameters of the NVIDIA driver",
        observed=observed,
        expected=", ".join(f"{name}={value}" for name, value in expected.items()) or "readable",
        why="the driver maps peer memory, or not, by these",
        action="set it as options nvidia NVreg_NAME=VALUE in /etc/modprobe.d, rebuild the initramfs, reboot",
    )
