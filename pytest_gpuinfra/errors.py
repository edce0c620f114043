"""
Errors of pytest-gpuinfra: each means that something could not be observed.

    GpuInfraError                     base; never an AssertionError
    +- InventoryError(ValueError)     an option or the inventory is wrong; no host was touched
    +- UnreachableError               no session with the target
    +- CommandTimeout(TimeoutError)   a command on the target outlived its deadline
    +- ProbeError                     the on-target program died or spoke another schema
    +- FactUnavailable(LookupError)   a source on the target could not be read
    +- ParseError(ValueError)         a source was read and has a shape that nobody knows
    +- EndpointError                  the inference endpoint gave no answer that can be judged
    +- RecordingError(ValueError)     a recording cannot be used

A fixture that raises one of these ends its tests in ERROR, never in FAILED:
FAILED is kept for facts that were observed and are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuinfra.masking import first_of, last_of


class GpuInfraError(Exception):
    """
    Something could not be observed.

    Attributes:
        reason: What happened, one sentence.
        remedy: What a person can do next; empty if the reason says it already.
    """

    def __init__(self, reason: str, *, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.reason}\n  what to do: {self.remedy}" if self.remedy else self.reason


class InventoryError(GpuInfraError, ValueError):
    """
    An option or the inventory is wrong.

    Raised before any host is touched; the plugin turns it into pytest's usage error.
    """


class UnreachableError(GpuInfraError):
    """
    No session with the target could be had.

    Attributes:
        host: Alias or destination that was tried.
    """

    def __init__(self, host: str, reason: str, *, remedy: str = "") -> None:
        super().__init__(f"{host}: {reason}", remedy=remedy)
        self.host = host


class CommandTimeout(GpuInfraError, TimeoutError):
    """
    A command on the target outlived its deadline and was killed with its process group.

    Attributes:
        argv: The command.
        timeout_s: The deadline.
        output: What it had written by then, standard output and error together.
    """

    def __init__(self, argv: Sequence[str], timeout_s: float, output: str = "", *, remedy: str = "") -> None:
        shown = " ".join(argv)
        tail = f"; its last output: {last_of(output, 400).strip()!r}" if output.strip() else "; it had written nothing"
        super().__init__(f"{shown!r} did not end within {timeout_s:g} s and was killed{tail}", remedy=remedy)
        self.argv = tuple(argv)
        self.timeout_s = timeout_s
        self.output = output


class ProbeError(GpuInfraError):
    """The program on the target died, or answered in a shape that this version does not know."""


class FactUnavailable(GpuInfraError, LookupError):
    """
    A source on the target could not be read.

    Attributes:
        source: File or command on the target.
    """

    def __init__(self, source: str, reason: str, *, remedy: str = "") -> None:
        super().__init__(f"{source}: {reason}", remedy=remedy)
        self.source = source


class ParseError(GpuInfraError, ValueError):
    """
    A source was read, and has a shape that the parser does not know.

    Attributes:
        source: File or command that the text came from.
        line_number: From 1; 0 when the text as a whole is meant.
        line: The line that was not understood, at most 200 characters.
    """

    def __init__(self, source: str, line_number: int, line: str, reason: str) -> None:
        where = f"{source}, line {line_number}" if line_number else source
        super().__init__(
            f"{where}: {reason}: {first_of(line, 200)!r}",
            remedy="keep the recording of this run and report it: the format is new to pytest-gpuinfra",
        )
        self.source = source
        self.line_number = line_number
        self.line = first_of(line, 200)


class EndpointError(GpuInfraError):
    """The inference endpoint could not be reached, or its answer cannot be judged."""


class RecordingError(GpuInfraError, ValueError):
    """A recording is missing, damaged, or of a version that cannot be read."""
