"""
What the service's own Python starts with: its version, its path, and what its sitecustomize does to the environment.

Source: probe_service.py, which starts the interpreter anew in the environment of the unit's main process;
site (library documentation of Python 3.11) for sitecustomize and usercustomize.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.subjects.service.process import fields_of

NO_PYTHON_PROCESS = "processes is a Python"
"""In what on_target/probe/probe_service.py says where it looked at every process."""


@dataclass(frozen=True, slots=True)
class PythonStart:
    """
    A start of the service's Python.

    Attributes:
        pid: Process whose environment and interpreter were taken.
        version: "3.11.2".
        executable: Path of the interpreter, as it calls itself.
        prefix: Its installation or virtual environment.
        files: Paths of sitecustomize and usercustomize by name, where they exist.
        times: Their modification times in seconds since the epoch.
        environment: Variables of the list that a program finds there.
    """

    pid: int
    version: str
    executable: str
    prefix: str
    files: Mapping[str, str]
    times: Mapping[str, float]
    environment: Mapping[str, str]


def parse_python_start(reading: Reading) -> PythonStart:
    """
    Read the start.

    Raises:
        FactUnavailable: None of the unit's processes is a Python, or it did not start.
        ParseError: The text has another shape.
    """
    seen = fields_of(reading, remedy="start the service's Python by hand, as its user, or look as root")
    return PythonStart(
        seen.integer("pid"),
        seen.text("version"),
        seen.text("executable"),
        seen.text("prefix"),
        seen.words("files"),
        seen.numbers("times"),
        seen.words("environ"),
    )
