"""
Which variables are really in effect in each process of a service, who says so, and which layer set them.

Three witnesses: the process's own environment block; a new start of its Python in that environment, which shows what
sitecustomize does; and, where a title overwrote the block, the process that it was inherited from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuinfra.subjects.service.process import ServiceProcess
from pytest_gpuinfra.subjects.service.python import PythonStart


@dataclass(frozen=True, slots=True)
class Layer:
    """
    One place that can set variables.

    Attributes:
        name: "unit", "drop-in", "environment file", "systemd's own environment", "/etc/environment".
        source: File or command; what it says now, not when the process was started.
        values: Variables that it sets.
    """

    name: str
    source: str
    values: Mapping[str, str]

    def __str__(self) -> str:
        return self.name if self.source in ("", self.name) else f"{self.name} {self.source}"


@dataclass(frozen=True, slots=True)
class ProcessValue:
    """
    One variable in one process.

    Attributes:
        process: The process, for messages.
        value: Its value; None if it is not set, or not known.
        known: Whether a witness spoke.
        witness: Who says so; or why nobody can.
    """

    process: str
    value: str | None
    known: bool
    witness: str

    def __str__(self) -> str:
        if not self.known:
            return f"{self.process}: unknown ({self.witness})"
        shown = "not set" if self.value is None else repr(self.value)
        return f"{self.process}: {shown} ({self.witness})"


@dataclass(frozen=True, slots=True)
class EffectiveVariable:
    """
    One variable over a service.

    Attributes:
        name: Its name.
        values: One for each process but shells; shape (n >= 1,).
        layer: What set the main process's value; "" if it is not set there.
    """

    name: str
    values: tuple[ProcessValue, ...]
    layer: str

    def wrong(self, expected: str | None) -> tuple[ProcessValue, ...]:
        """Give the processes in which it is known to be otherwise; `None` expects it not to be set."""
        return tuple(value for value in self.values if value.known and value.value != expected)

    @property
    def unknown(self) -> tuple[ProcessValue, ...]:
        """The processes in which nobody can say."""
        return tuple(value for value in self.values if not value.known)

    def __str__(self) -> str:
        groups: dict[str, list[str]] = {}
        for value in self.values:
            process, _, rest = str(value).partition("): ")
            groups.setdefault(rest, []).append(process + ")")
        lines = [f"{', '.join(processes)}: {rest}" for rest, processes in groups.items()]
        return "; ".join([*lines, *([f"set by {self.layer}"] if self.layer else [])])


@dataclass(frozen=True, slots=True)
class EnvironmentWitnesses:
    """
    Everything that tells of a service's environment.

    Attributes:
        processes: All of the unit's.
        main: Its main process; None if it has none.
        start: A start of its Python; None if there is none, and `start_error` says why.
        start_error: Reason; "" if there is a start.
        layers: Places that can set variables, the strongest first.
        commands: The unit's commands, for a variable that none of the layers sets.
        start_is_newer: Whether a file that the start ran was changed after the main process started.
        nccl: Files in which NCCL finds variables that the environment leaves out, in the order in which it reads them;
            the text is why one cannot be read.
    """

    processes: Sequence[ServiceProcess]
    main: ServiceProcess | None
    start: PythonStart | None
    start_error: str
    layers: Sequence[Layer]
    commands: Sequence[Sequence[str]] = ()
    start_is_newer: bool = False
    nccl: Sequence[tuple[Layer, str]] = ()

    def of(self, name: str) -> EffectiveVariable:
        """Give one variable in every process that is not a shell."""
        judged = [process for process in self.processes if not process.is_shell] or list(self.processes)
        values = tuple(self._with_files(self._value(process, name), name) for process in judged)
        head = self.main if self.main in judged else (judged[0] if judged else None)
        first = next((v for p, v in zip(judged, values, strict=True) if p is head), None)
        layer = self._layer(name, first.value) if first and first.value is not None else ""
        return EffectiveVariable(name, values, layer)

    def known_in(self, process: ServiceProcess, prefix: str) -> dict[str, str]:
        """Give the variables that begin so and are known to be in effect in one process."""
        names = set(self.start.environment if self.start else ())
        for other in self.processes:
            names |= set(other.environment.values) if other.environment else set()
        names |= {name for layer, _ in self.nccl for name in layer.values}
        found = {
            name: self._with_files(self._value(process, name), name)
            for name in sorted(names)
            if name.startswith(prefix)
        }
        return {name: value.value for name, value in found.items() if value.known and value.value is not None}

    def _with_files(self, seen: ProcessValue, name: str) -> ProcessValue:
        """Take a variable of NCCL's that the environment leaves out from the files that NCCL reads."""
        if not name.startswith("NCCL_") or not seen.known or seen.value is not None:
            return seen
        for layer, error in self.nccl:
            if error:
                return ProcessValue(seen.process, None, False, f"not in its environment; {layer.source}: {error}")
            if name in layer.values:
                return ProcessValue(seen.process, layer.values[name], True, f"{layer.source}, which NCCL reads")
        return seen

    def _value(self, process: ServiceProcess, name: str) -> ProcessValue:
        shown = str(process)
        environment = process.environment
        if environment is None:
            return ProcessValue(shown, None, False, process.environment_error)
        own = environment.values.get(name)
        if own is None and not environment.whole:
            return self._inherited(process, name)
        if process.executable_error:
            return ProcessValue(shown, None, False, f"whether its program sets it: {process.executable_error}")
        if not process.is_python:
            return ProcessValue(shown, own, True, "its own environment")
        if self.start is None:
            if own is not None:
                return ProcessValue(shown, own, True, "its own environment; its Python's start was not seen")
            return ProcessValue(shown, None, False, f"not in its environment; its Python's start: {self.start_error}")
        return self._started(shown, own, name, self.start)

    def _started(self, shown: str, own: str | None, name: str, start: PythonStart) -> ProcessValue:
        """Join a Python's own block with what a start of it does to the block of the process that it was tried on."""
        tried_on = next((p.environment for p in self.processes if p.pid == start.pid and p.environment), None)
        base = tried_on.values.get(name) if tried_on else None
        result = start.environment.get(name)
        if result == base:
            return ProcessValue(shown, own, True, "its own environment")
        if self.start_is_newer:
            return ProcessValue(shown, None, False, f"{_customize(start)} was changed after the process started")
        if own == result:
            return ProcessValue(shown, own, True, "its own environment")
        if own == base:
            return ProcessValue(shown, result, True, f"a start of its Python, {_customize(start)}")
        return ProcessValue(
            shown, None, False, f"{own!r} in its own environment, and {_customize(start)} sets {result!r} elsewhere"
        )

    def _inherited(self, process: ServiceProcess, name: str) -> ProcessValue:
        """Take the word of the nearest process above whose environment was not overwritten."""
        by_pid = {other.pid: other for other in self.processes}
        above = by_pid.get(process.parent)
        while above is not None and above.environment is not None and not above.environment.whole:
            if name in above.environment.values:
                break
            above = by_pid.get(above.parent)
        if above is None or above.environment is None:
            return ProcessValue(
                str(process), None, False, "its title overwrote its environment, and no process above it tells"
            )
        told = self._value(above, name)
        witness = f"its title overwrote its environment; inherited from {above.pid}: {told.witness}"
        return ProcessValue(str(process), told.value, told.known, witness)

    def _layer(self, name: str, value: str) -> str:
        start = self.start
        if start is not None and start.environment.get(name) == value:
            base = next((p.environment for p in self.processes if p.pid == start.pid and p.environment), None)
            if base is not None and base.values.get(name) != value:
                return _customize(start)
        files = [layer for layer, _ in self.nccl] if name.startswith("NCCL_") else []
        setting = [layer for layer in (*self.layers, *files) if layer.values.get(name) == value]
        if setting:
            return str(setting[0])
        command = " ".join(self.commands[-1][:3]) if self.commands else "its command"
        return f"none of its files as they are now: what starts it ({command} ...), or an older version of them"


def _customize(start: PythonStart) -> str:
    path = start.files.get("sitecustomize") or start.files.get("usercustomize")
    return f"sitecustomize {path}" if path else f"the start-up files of {start.executable}"
