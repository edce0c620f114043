"""
One process of a service, from /proc: command line, environment, start, and what it has open.

Engines rename their ranks, which overwrites the command line and, where the title is long, the beginning of the
environment: what is missing from such an environment is unknown, never "not set".

Source: proc(5) (stat, status, cmdline, environ, limits), Linux 6.8; the state of an environment block is told by
target/probe_mask.py; seen on SGLang 0.5 (/proc of ranks under setproctitle).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.facts.reading import Node, Reading

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
        executable: Path of the program; "" where it cannot be read.
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

    def __str__(self) -> str:
        shown = self.title if len(self.title) <= 60 else f"{self.title[:57]}..."
        return f"{self.pid} ({shown})"


def parse_process(pid: int, node: Node) -> ServiceProcess | None:
    """
    Read one process; None if it ended while it was looked at.

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
    if len(fields) < 20 or not fields[1].isdigit() or not fields[19].isdigit():
        raise ParseError(stat.source, 1, text, "not the status of a process")
    executable = (node["exe"].text or "").removesuffix(" (deleted)")
    argv, renamed = _argv(node["argv"], executable)
    environment, error = _environment(node["environ"])
    opened = node["opened"]
    return ServiceProcess(
        pid,
        int(fields[1]),
        name,
        argv,
        renamed,
        environment,
        error,
        executable,
        int(fields[19]),
        None if opened.text is None else tuple(load_json(opened)),
    )


def parse_limits(reading: Reading) -> Mapping[str, int | None]:
    """
    Read /proc/PID/limits.

    Returns:
        Soft limits by name ("Max locked memory"), in bytes or numbers; None for unlimited.

    Raises:
        FactUnavailable: It cannot be read.
        ParseError: It holds no limit.
    """
    text = reading.require(remedy=_ROOT)
    limits: dict[str, int | None] = {}
    for line in text.splitlines()[1:]:
        match = re.match(r"(Max .+?)\s{2,}(unlimited|\d+)\s", line)
        if match:
            limits[match[1]] = None if match[2] == "unlimited" else int(match[2])
    if not limits:
        raise ParseError(reading.source, 1, text, "no limits of a process")
    return limits


def load_json(reading: Reading, *, remedy: str = _ROOT) -> Any:
    """
    Read what the probe put into JSON.

    Raises:
        FactUnavailable: The probe could not read its source.
        ParseError: It is no JSON.
    """
    text = reading.require(remedy=remedy)
    try:
        return json.loads(text)
    except ValueError:
        raise ParseError(reading.source, 1, text, "not what the probe writes") from None


def _argv(reading: Reading, executable: str) -> tuple[tuple[str, ...], bool]:
    seen = load_json(reading)
    argv = tuple(str(word) for word in seen["argv"])
    padded = seen["trailing_nul"] > 1 or any(word.endswith("  ") for word in argv)
    argv = tuple(word.rstrip() for word in argv)
    alone = len(argv) == 1 and bool(executable) and PurePosixPath(argv[0]).name != PurePosixPath(executable).name
    return argv, padded or (alone and bool(_TITLE.match(argv[0])))


def _environment(reading: Reading) -> tuple[ProcessEnvironment | None, str]:
    try:
        seen = load_json(reading)
    except FactUnavailable as error:
        return None, error.reason
    whole = seen["size"] > 0 and not (seen["leading_nul"] or seen["odd"] or seen["empty"])
    return ProcessEnvironment(dict(seen["values"]), whole, seen["size"]), ""
