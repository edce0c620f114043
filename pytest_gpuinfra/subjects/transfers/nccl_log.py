"""
NCCL's log (NCCL_DEBUG=INFO), RCCL's included: transports per channel, warnings, versions, who came how far.

Source: NCCL src/debug.cc, "HOST:PID:TID [DEVICE] NCCL INFO|WARN TEXT" (2.2 to 2.30); WARN has the source file in
front of "NCCL" and a date in front of all since 2.24, the function behind the file since 2.30; launchers put "[0] "
or "[1,2]<stdout>:" before the host.
Setting up a connection is logged before it is proven: a line "via P2P" says what was chosen, not that it works.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.subjects.transfers.nccl_edge import NcclEdge, parse_nccl_edge
from pytest_gpuinfra.wire import text_lines

_LINE = re.compile(
    r"(?<![\w.-])(?P<host>[\w.-]+):(?P<pid>\d{1,18}):(?P<tid>\d{1,18}) \[(?P<dev>\d{1,18})\] "
    r"(?:(?P<file>\S+:\d+) (?:\(\w+\) )?)?NCCL (?P<level>[A-Z]+) (?P<text>.*)$"
)
_VERSION = re.compile(r"(?P<library>N|R)CCL version ?:? ?(?P<version>\d+\.\d+(?:\.\d+)?)")
_CHANNELS = re.compile(r"Channel \d+/(?P<count>\d{1,18}) :(?:\s+\d+)+$")
_NODES = re.compile(r"comm 0x[0-9a-f]+ rank \d+ nRanks (?P<ranks>\d{1,18}) nNodes (?P<nodes>\d{1,18})")
_COMPLETE = re.compile(r"rank (?P<rank>\d{1,18}) nranks (?P<ranks>\d{1,18}).*Init COMPLETE")
_RANKS = re.compile(r"rank \d+ nranks (?P<ranks>\d{1,18})")
_CUDA = re.compile(
    r"(?:Cuda|HIP) failure (?:(?P<code>\d{1,18}) )?'?(?P<words>[^']*)'?"
    r"|CUDA IPC handle : (?P<ipc>\d{1,18}) (?P<said>.*)",
    re.IGNORECASE,
)
_ENVIRONMENT = re.compile(r"(?P<name>NCCL_\w+) set by environment to (?P<value>.*?)\.?$")
_KINDS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("missing iommu=pt", r"missing .*iommu=pt"),
        ("NUMA balancing", r"NUMA auto balancing enabled"),
        ("shared memory", r"shared memory segment|/dev/shm|No space left on device"),
        ("CUDA", r"(?:Cuda|HIP) failure|CUDA IPC handle"),
        ("peer connection", r"Call to connect .* failed|connection (?:refused|closed|reset)|socketProgress"),
        ("timeout", r"time[d ]?-?out"),
    )
)
_FRAMEWORK = re.compile(
    r"Watchdog caught collective operation timeout|DistBackendError"
    r"|\bnccl(?:System|Internal|UnhandledCuda|Remote)Error\b|NCCL communicator was aborted|Test NCCL failure"
)
_OUT_OF_BOUNDS = re.compile(r"# Out of bounds values : (?P<count>\d{1,18}) (?:OK|FAILED)")
_ROW = re.compile(
    r"\s*(?P<size>\d{1,18})\s+(?P<count>\d{1,18})\s+(?P<type>[a-z]\w+)\s+(?P<op>\w+)\s+(?P<root>-?\d+)"
    r"\s+[\d.]+\s+[\d.]+\s+[\d.]+\s+(?P<out>\d{1,18}|N/A)\s+[\d.]+\s+[\d.]+\s+[\d.]+\s+(?P<in>\d{1,18}|N/A)\s*$"
)


@dataclass(frozen=True, slots=True)
class NcclWarning:
    """
    One WARN line.

    Attributes:
        text: What it says.
        kind: "CUDA", "missing iommu=pt", "shared memory", "NUMA balancing", "peer connection", "timeout", "other".
        file: Source file and line that it names ("transport/shm.cc:590"); None if it names none.
        cuda_error: Number of the CUDA error in it; None if it names none.
    """

    text: str
    kind: str
    file: str | None
    cuda_error: int | None


@dataclass(frozen=True, slots=True)
class NcclLog:
    """
    What the log of one or several ranks tells.

    Attributes:
        edges: Connections, in log order. Shape (n,); () if the log ends before them or hides them.
        warnings: WARN lines, in log order. Shape (n,).
        library: "NCCL" or "RCCL"; None if the log does not tell.
        version: "2.28.9"; None if the log does not tell.
        channels: Channels that were planned; None if the log does not tell.
        ranks: World size; None if the log does not tell.
        nodes: Hosts that take part; None if the log does not tell.
        complete_ranks: Ranks that came through initialisation. Shape (n,), sorted.
        environment: NCCL variables that took effect, by name.
        wrong: Wrong values that nccl-tests counted; None if its table is not in the log.
        framework_errors: Lines in which the framework above gives up on NCCL, such as its watchdog's. Shape (n,).
        last_line: Last line of NCCL's; "" if only the framework speaks.
    """

    edges: tuple[NcclEdge, ...]
    warnings: tuple[NcclWarning, ...]
    library: str | None
    version: str | None
    channels: int | None
    ranks: int | None
    nodes: int | None
    complete_ranks: tuple[int, ...]
    environment: Mapping[str, str]
    wrong: int | None
    framework_errors: tuple[str, ...]
    last_line: str

    @property
    def transports(self) -> tuple[str, ...]:
        """Transports in use, each once, sorted."""
        return tuple(sorted({edge.transport for edge in self.edges}))

    @property
    def init_complete(self) -> bool:
        """Whether a rank came through initialisation, and all of them where the log tells how many there are."""
        return bool(self.complete_ranks) and (len(self.complete_ranks) == 1 or self.ranks == len(self.complete_ranks))


def speaks_of_nccl(text: str) -> bool:
    """Tell whether a log holds a line of NCCL's, or one in which the framework gives up on it."""
    return any(_LINE.search(line) or _FRAMEWORK.search(line) for line in text_lines(text))


def parse_nccl_log(reading: Reading) -> NcclLog:
    """
    Read a log that holds NCCL's lines, others among them.

    Raises:
        FactUnavailable: There is no log.
        ParseError: It holds no line of NCCL's.
    """
    text = reading.require(remedy="run with NCCL_DEBUG=INFO")
    matches = [match for line in text_lines(text) if (match := _LINE.search(line))]
    errors = tuple(line.strip() for line in text_lines(text) if _FRAMEWORK.search(line))
    if not matches and not errors:
        raise ParseError(reading.source, 0, text.strip(), "no line of NCCL's")
    messages = [match["text"] for match in matches]
    edges = tuple(edge for message in messages if (edge := parse_nccl_edge(message)))
    warnings = tuple(_warning(match["text"], match["file"]) for match in matches if match["level"] == "WARN")
    version = _last(_VERSION, messages)
    nodes, complete = _last(_NODES, messages), [m for text in messages if (m := _COMPLETE.search(text))]
    ranks = nodes or _last(_RANKS, messages)
    channels = _last(_CHANNELS, messages)
    settings = [match for message in messages if (match := _ENVIRONMENT.search(message))]
    return NcclLog(
        edges=edges,
        warnings=warnings,
        library={"N": "NCCL", "R": "RCCL"}[version["library"]] if version else None,
        version=version["version"] if version else None,
        channels=int(channels["count"]) if channels else None,
        ranks=int(ranks["ranks"]) if ranks else None,
        nodes=int(nodes["nodes"]) if nodes else None,
        complete_ranks=tuple(sorted({int(match["rank"]) for match in complete})),
        environment={match["name"]: match["value"] for match in settings},
        wrong=_wrong(text),
        framework_errors=errors,
        last_line=matches[-1][0] if matches else "",
    )


def _warning(text: str, file: str | None) -> NcclWarning:
    cuda = _CUDA.search(text)
    number = (cuda["code"] or cuda["ipc"]) if cuda else None
    kind = next((kind for kind, pattern in _KINDS if pattern.search(text)), "other")
    return NcclWarning(text, kind, file, int(number) if number else None)


def _wrong(text: str) -> int | None:
    rows = [match for line in text_lines(text) if (match := _ROW.match(line))]
    counts = [int(row[side]) for row in rows for side in ("out", "in") if row[side] != "N/A"]
    counts += [int(total["count"]) for total in _OUT_OF_BOUNDS.finditer(text)]
    return sum(counts) if counts else None


def _last(pattern: re.Pattern[str], messages: list[str]) -> re.Match[str] | None:
    return next((match for message in reversed(messages) if (match := pattern.search(message))), None)
