"""
One process of a service, from /proc: command line, environment, start, and what it has open.

Engines rename their ranks, which overwrites the command line and, where the title is long, the beginning of the
environment: what is missing from such an environment is unknown, never "not set".

Source: proc(5) (stat, status, cmdline, environ, limits), Linux 6.8; the state of an environment block is told by
on_target/probe/probe_environ.py; seen on SGLang 0.5 (/proc of ranks under setproctitle).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from pytest_gpuinfra.capture.reading import Node, Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.masking import first_of, mask_data
from pytest_gpuinfra.subjects.event import ProgramEvent, load_event
from pytest_gpuinfra.wire import WireError, integer, load, text_lines

_GONE = " (deleted)"
_ENDED = ("Z", "X", "x")
"""States of a process that has ended, and whose parent has not asked for its end yet."""
_RUNNING = "RSDIWKP"
_STOPPED = {"T": "stopped by a signal", "t": "held by a debugger"}
_ROOT = "reading another user's process needs root (--gpu-sudo)"
_TITLE = re.compile(r"[\w.-]+::|VLLM::|\w+: ")


@dataclass(frozen=True, slots=True)
class ProcessEnvironment:
    """
    The environment block of a process, as it was when it started.

    Attributes:
        values: Variables of the list that it holds; values that look like secrets are masked.
        whole: Whether the block is as it was at the start, so that a variable missing from it was not set then.
            False where a title overwrote its beginning, and where it is empty.
        size: Bytes of the block.
    """

    values: Mapping[str, str]
    whole: bool
    size: int


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """
    One process.

    Attributes:
        pid: Its number where the service runs.
        parent: Its parent's number there.
        name: Its short name (comm), at most 15 characters.
        argv: Its command line; one word, its title, where it renamed itself. Values after telling options are masked.
        renamed: Whether a title overwrote the command line.
        environment: Its environment; None where it cannot be read, and `environment_error` says why.
        environment_error: Reason, "" if it was read.
        executable: Path of the program; "" where it cannot be read, and `executable_error` says why.
        executable_error: Reason, "" if it was read.
        replaced: Whether that file was replaced or removed since.
        state: The kernel's letter: "R", "S", "D", "T" (stopped), "t" (traced), "I", ...
        started_ticks: Clock ticks from boot to its start.
        opened: Paths that were asked for by their beginnings or parts, each as often as it is open; None where that
            cannot be read.
    """

    pid: int
    parent: int
    name: str
    argv: tuple[str, ...]
    renamed: bool
    environment: ProcessEnvironment | None
    environment_error: str
    executable: str
    executable_error: str
    replaced: bool
    state: str
    started_ticks: int
    opened: tuple[str, ...] | None

    @property
    def title(self) -> str:
        """What it calls itself: its title, or its command line."""
        return " ".join(self.argv) or self.name

    @property
    def is_python(self) -> bool:
        """Whether it is an interpreter of Python."""
        return bool(re.fullmatch(r"(?:python|pypy)[\d.]*", PurePosixPath(self.executable).name))

    @property
    def is_shell(self) -> bool:
        """Whether it is a shell, such as a wrapper's."""
        return PurePosixPath(self.executable).name in ("sh", "bash", "dash", "zsh", "busybox")

    @property
    def stopped(self) -> str:
        """
        Why it does not run on; "" if it does.

        Raises:
            ParseError: The kernel's letter is none that is known.
        """
        if self.state not in _STOPPED and self.state not in _RUNNING:
            raise ParseError(f"/proc/{self.pid}/stat", 1, self.state, "not a state of a process")
        return _STOPPED.get(self.state, "")

    def __str__(self) -> str:
        shown = self.title if len(self.title) <= 60 else f"{first_of(self.title, 57)}..."
        return f"{self.pid} ({shown})"


def parse_process(pid: int, node: Node) -> ServiceProcess | None:
    """
    Read one process; None if it has ended, or ended while it was looked at.

    Raises:
        FactUnavailable: Its /proc/PID/stat cannot be read.
        ParseError: A file has another shape.
    """
    stat = node["stat"]
    if stat.text is None and (stat.missing or (stat.error or "").startswith("ESRCH")):
        return None
    text = stat.require()
    name = text.partition("(")[2].rpartition(")")[0]
    fields = text.rpartition(")")[2].split()
    parent, started = (integer(field) for field in (fields[1], fields[19])) if len(fields) > 19 else (None, None)
    if parent is None or started is None:
        raise ParseError(stat.source, 1, text, "not the status of a process")
    if fields[0] in _ENDED:
        return None
    link = node["exe"].text or ""
    executable = link.removesuffix(_GONE)
    argv, renamed = _argv(node["argv"], executable)
    environment, error = _environment(node["environ"])
    return ServiceProcess(
        pid,
        parent,
        name,
        argv,
        renamed,
        environment,
        error,
        executable,
        "" if link else f"{node['exe'].source}: {node['exe'].error or 'empty'}",
        link.endswith(_GONE) and not link.startswith("/memfd:"),
        fields[0],
        started,
        _paths(node["opened"]),
    )


def parse_limits(reading: Reading) -> Mapping[str, int | None]:
    """
    Read /proc/PID/limits.

    Returns:
        Soft limits by name ("Max locked memory"), in bytes or numbers; None for unlimited.

    Raises:
        FactUnavailable: It cannot be read.
        ParseError: A line is no limit, or there is none. So does asking the result for one that it does not hold.
    """
    text = reading.require(remedy=_ROOT)
    limits = _Limits(reading)
    for number, line in enumerate(text_lines(text)[1:], 2):
        match = re.match(r"(Max .+?)\s{2,}(unlimited|\d{1,20})\s", line)
        if not match:
            raise ParseError(reading.source, number, line, "not a limit of a process")
        limits[match[1]] = None if match[2] == "unlimited" else int(match[2])
    if not limits:
        raise ParseError(reading.source, 1, text, "no limits of a process")
    return limits


class _Limits(dict[str, "int | None"]):
    """Limits of a process; the kernel tells all of them, so that one which is missing was lost on the way."""

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self._reading = reading

    def __missing__(self, name: str) -> int | None:
        raise ParseError(self._reading.source, 0, self._reading.text or "", f"no {name} among the limits of a process")


def fields_of(reading: Reading, *, remedy: str = _ROOT) -> ProgramEvent:
    """
    Read what the probe put into a JSON object.

    Raises:
        FactUnavailable: The probe could not read its source.
        ParseError: It is no JSON object.
    """
    return load_event(reading.source, 1, reading.require(remedy=remedy))


def _argv(reading: Reading, executable: str) -> tuple[tuple[str, ...], bool]:
    seen = fields_of(reading)
    argv = seen.texts("argv")
    padded = seen.integer("trailing_nul") > 1 or any(word.endswith("  ") for word in argv)
    argv = tuple(mask_data([word.rstrip() for word in argv]))  # as the target did: joined, its words mean other things
    alone = len(argv) == 1 and bool(executable) and PurePosixPath(argv[0]).name != PurePosixPath(executable).name
    return argv, padded or (alone and bool(_TITLE.match(argv[0])))


def _environment(reading: Reading) -> tuple[ProcessEnvironment | None, str]:
    try:
        seen = fields_of(reading)
    except FactUnavailable as error:
        return None, error.reason
    size = seen.integer("size")
    whole = size > 0 and not any(seen.integer(name) for name in ("leading_nul", "odd", "empty"))
    return ProcessEnvironment(seen.words("values"), whole, size), ""


def _paths(reading: Reading) -> tuple[str, ...] | None:
    if reading.text is None:
        return None
    try:
        paths = load(reading.text)
        if isinstance(paths, list) and all(isinstance(path, str) for path in paths):
            return tuple(paths)
    except WireError:
        pass
    raise ParseError(reading.source, 1, reading.text, "not a list of paths")
