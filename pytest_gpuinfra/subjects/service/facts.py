"""Facts of the service: its unit, its files, its processes and their environment; parsed on first use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.capture.reading import Node, Reading, Tree
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.masking import last_of
from pytest_gpuinfra.subjects.service.engine import find_engine, find_ranks
from pytest_gpuinfra.subjects.service.environment import EffectiveVariable, EnvironmentWitnesses, Layer
from pytest_gpuinfra.subjects.service.filesystem import parse_number, require_listing
from pytest_gpuinfra.subjects.service.journal import UnitJournal, parse_unit_journal
from pytest_gpuinfra.subjects.service.process import ServiceProcess, fields_of, parse_limits, parse_process
from pytest_gpuinfra.subjects.service.python import NO_PYTHON_PROCESS, PythonStart, parse_python_start
from pytest_gpuinfra.subjects.service.starts import YOUNG_S, StartTimes, parse_microseconds
from pytest_gpuinfra.subjects.service.transport import BEGINNING, SeenTransport, see_transport
from pytest_gpuinfra.subjects.service.unit import UnitState, parse_unit_state
from pytest_gpuinfra.subjects.service.unit_file import UnitFile, parse_unit_file
from pytest_gpuinfra.subjects.service.unit_words import split_assignments
from pytest_gpuinfra.wire import text_lines

_COMPLAINT = re.compile(
    r"/\S+:\d+: |(?:Unit )?\S+\.(?:service|socket|target|timer|path|mount|automount|swap|slice|scope|device): ?"
    r"|Failed to create \S+/start|Unit \S+\.\w+ "
)
"""How `systemd-analyze verify` begins a line about a unit; other lines are about itself."""
_NO_TOOL = re.compile(r"command not found|: not found$|[Bb]us: |Permission denied$|Access denied$")
_AS_ROOT = "read as root (--gpu-sudo, or --gpu-sudo-read)"
_NO_SUCH = "its name is wrong, or it is somewhere else (`container` in the inventory?): systemctl list-unit-files"


@dataclass(frozen=True, slots=True)
class FileOfUnit:
    """
    A unit file or drop-in on disk.

    Attributes:
        path: Where it is.
        text: Its text; what looks like a secret is masked.
        changed_at: Time of its last change, seconds since the epoch.
        loaded: Whether systemd names it.
    """

    path: str
    text: str
    changed_at: float
    loaded: bool

    @property
    def name(self) -> str:
        """Its file name."""
        return self.path.rpartition("/")[2]


class ServiceFacts:
    """
    The service of a host.

    Attributes raise FactUnavailable or ParseError where they could not be observed.

    Attributes:
        unit_name: Its unit.
    """

    def __init__(self, capture: Capture, unit_name: str) -> None:
        self.unit_name = unit_name
        self._capture = capture

    @cached_property
    def tree(self) -> Tree:
        """All readings, by the entries of on_target/probe/probe_service.py."""
        return self._capture.tree("service")

    @cached_property
    def state(self) -> UnitState:
        """The unit as systemd holds it; one that does not exist has nothing to be judged."""
        unit = parse_unit_state(self.unit_name, self._one("", "show"))
        if not unit.exists:
            raise FactUnavailable(
                unit.source, f"there is no unit {self.unit_name} (LoadState=not-found)", remedy=_NO_SUCH
            )
        return unit

    @cached_property
    def journal(self) -> UnitJournal:
        """The end of its log since its last start, 4000 lines at most."""
        return parse_unit_journal(self._one("", "journal"))

    @cached_property
    def log(self) -> UnitJournal:
        """Its log since its last start: the first megabyte and the last 4000 lines."""
        if "startup" not in self._node(""):  # that is all of it
            return self.journal
        return self.journal.after(parse_unit_journal(self._one("", "startup")))

    @cached_property
    def complaints(self) -> tuple[str, ...]:
        """What `systemd-analyze verify` says of it; () if nothing."""
        reading = self._one("", "verify")
        text = reading.require(remedy="systemd-analyze comes with systemd")
        lines = [line for line in text_lines(f"{text}\n{reading.stderr}") if line.strip()]
        complaints = [line for line in lines if _COMPLAINT.match(line) and not _NO_TOOL.search(line)]
        names = [self.state.name, *(file.name for file in self.files)]
        own = tuple(line for line in complaints if any(name in line for name in names))
        if reading.exit_status and not complaints:
            said = last_of("; ".join(lines) or "it printed nothing", 400)
            raise FactUnavailable(
                reading.source,
                f"exit status {reading.exit_status}, and no word about a unit: {said}",
                remedy="try it by hand where the service runs",
            )
        return own

    @cached_property
    def pulled_in(self) -> bool:
        """
        Whether the target that is booted into starts it: by itself, or by what wants, needs or triggers it.

        Raises:
            FactUnavailable: What that target pulls in cannot be asked.
            ParseError: The answer does not begin with the target.
        """
        text = self._one("", "pulled").require_success(remedy="is systemd the init there?")
        names = [line.split()[-1] for line in text_lines(text) if line.strip()]
        if not names or not names[0].endswith(".target"):
            raise ParseError(self._one("", "pulled").source, 1, text, "not what a target depends on")
        pulling = {self.state.values.get("Id", self.unit_name), self.unit_name}
        for key in ("WantedBy", "RequiredBy", "UpheldBy", "TriggeredBy"):
            pulling.update(self.state.values.get(key, "").split())  # some are unknown to an older systemd
        return not pulling.isdisjoint(names)

    @cached_property
    def starts(self) -> StartTimes:
        """
        Its last starts of this boot.

        Raises:
            FactUnavailable: The journal cannot be read, or tells of no start of a unit that was started lately.
        """
        reading = self._one("", "starts")
        text = reading.require_success(remedy="is there a journal, and may this user read it?")
        starts = tuple(parse_microseconds(reading, line) for line in text_lines(text) if line)
        now_s = fields_of(self._one("", "clock")).number("monotonic")
        last_s = self.state.started_us / 1e6
        if not starts and 0 < now_s - last_s < YOUNG_S:
            raise FactUnavailable(
                reading.source,
                "it tells of no start, and the unit was started lately",
                remedy="may this user read the journal? (root, group systemd-journal)",
            )
        return StartTimes(starts, now_s)

    def asked(self, name: str) -> bool:
        """Tell whether the target was asked this of the unit; a recording of an earlier version was not."""
        return name in self._node("")

    @cached_property
    def files(self) -> tuple[FileOfUnit, ...]:
        """The unit file, then its drop-ins in the order in which they count, also those that systemd has not read."""
        if self.state.load_state == "masked":
            raise FactUnavailable(
                self.state.source,
                "the unit is masked, so no file of it counts",
                remedy=f"systemctl unmask {self.unit_name}",
            )
        found = [
            self._file(entry, node) for entry, node in self.tree.items() if entry.startswith(("file ", "drop-in "))
        ]
        unit = [file for file in found if file.path == self.state.values.get("FragmentPath")]
        if not unit:
            raise FactUnavailable(self.state.source, "it names no unit file", remedy="is it a transient unit?")
        drop_ins = sorted((file for file in found if file not in unit), key=lambda file: file.name)
        return (*unit, *self._in_effect(drop_ins))

    @property
    def drop_ins(self) -> tuple[FileOfUnit, ...]:
        """Drop-ins of this very unit on disk, whether systemd knows them or not."""
        own = tuple(f"/{name}.d/" for name in (self.unit_name, self._template))
        return tuple(file for file in self.files[1:] if any(part in file.path for part in own))

    @property
    def unloaded(self) -> tuple[str, ...]:
        """Drop-ins on disk that systemd has not read, and files that it has read and that are gone or changed."""
        return tuple(file.path for file in self.files if not file.loaded)

    @cached_property
    def gone(self) -> tuple[str, ...]:
        """Files that systemd names and that are not on disk any more."""
        return tuple(
            entry.partition(" ")[2]
            for entry, node in self.tree.items()
            if entry.startswith("file ") and node["text"].missing
        )

    @cached_property
    def settings(self) -> UnitFile:
        """The unit's settings by its files as they are on disk now."""
        there = [file for file in self.files if file.path not in self.gone]
        if not there:
            raise FactUnavailable(self.files[0].path, "systemd names it, and it is not there any more")
        text = "".join(f"# {file.path}\n{file.text}\n" for file in there)
        return parse_unit_file(Reading(f"the files of {self.unit_name}", text))

    @cached_property
    def processes(self) -> tuple[ServiceProcess, ...]:
        """
        Its processes, lowest number first.

        Raises:
            FactUnavailable: It has none.
        """
        nodes = {entry: node for entry, node in self.tree.items() if entry.startswith("process ")}
        found = [parse_process(self._integer(entry.partition(" ")[2], entry), node) for entry, node in nodes.items()]
        counted = self._node("").get("processes")
        if counted is not None and self._integer(counted.require(), "number of processes") > len(nodes):
            raise FactUnavailable(self.unit_name, f"only {len(nodes)} of its {counted.text} processes were read")
        processes = sorted((process for process in found if process is not None), key=lambda process: process.pid)
        if not processes:
            state = f"{self.state.active_state} ({self.state.sub_state})"
            raise FactUnavailable(
                self.unit_name, f"it has no process: {state}", remedy=f"systemctl status {self.unit_name}"
            )
        return tuple(processes)

    @cached_property
    def main(self) -> ServiceProcess:
        """
        Its main process; of a wrapper that is a shell, the first process that is none.

        Raises:
            FactUnavailable: It has none.
        """
        self.state.required("MainPID")
        pid = self.state.main_pid
        first = next((process for process in self.processes if process.pid == pid), self.processes[0])
        if first.is_shell:
            return next((process for process in self.processes if not process.is_shell), first)
        return first

    @cached_property
    def main_started_at(self) -> float:
        """When the main process was started, seconds since the epoch by the target's clock."""
        seen = fields_of(self._one("", "clock"))
        pid = self.state.main_pid
        process = next((process for process in self.processes if process.pid == pid), self.main)
        age_s = seen.number("boottime") - process.started_ticks / seen.positive("ticks_a_second")
        exact_us = self.state.number("ExecMainStartTimestampMonotonic")
        if exact_us:
            age_s = seen.number("monotonic") - exact_us / 1e6
        return seen.number("realtime") - age_s

    @cached_property
    def changed_at(self) -> Mapping[str, float]:
        """
        When what the main process was started from was last changed, by path, in seconds since the epoch.

        Raises:
            FactUnavailable: One of it cannot be seen, such as its Python's sitecustomize.
        """
        times = {file.path: file.changed_at for file in self.files}
        for entry, node in self.tree.items():
            kind, _, path = entry.partition(" ")
            if kind not in ("nccl", "program") or node["stat"].missing:
                continue
            seen = fields_of(node["stat"])
            times[path] = seen.number("mtime")
            if kind == "program":
                times[path] = max(seen.number("mtime"), seen.number("ctime"))
        for file in self.state.environment_files:
            beside = self.tree.get(f"environment {file.path}")
            if beside is not None and not beside["stat"].missing:
                times[file.path] = parse_number(beside["stat"], "mtime")
        try:
            start = self.python
        except FactUnavailable as error:
            if NO_PYTHON_PROCESS not in error.reason:
                raise
            return times
        for name, path in start.files.items():
            if name not in start.times:
                raise FactUnavailable(path, f"the service's Python runs it ({name}), unseen", remedy=_AS_ROOT)
            times[path] = start.times[name]
        return times

    @cached_property
    def limits(self) -> Mapping[str, int | None]:
        """Limits of its main process."""
        return parse_limits(self._node(f"process {self.main.pid}")["limits"])

    @cached_property
    def python(self) -> PythonStart:
        """The Python that its processes run in."""
        return parse_python_start(self._one("python", "startup"))

    @cached_property
    def engine(self) -> str:
        """
        Which engine serves.

        Raises:
            FactUnavailable: Its processes tell of none that is known.
        """
        found = find_engine(self.processes)
        if found is None:
            raise FactUnavailable(self.unit_name, f"no known engine in {self.main.title!r}")
        return found

    @cached_property
    def ranks(self) -> tuple[ServiceProcess, ...]:
        """Its ranks by their titles; where no title tells, the processes that have NCCL's shared files open."""
        found = find_ranks(self.processes)
        return found or tuple(
            process for process in self.processes if any(path.startswith(BEGINNING) for path in process.opened or ())
        )

    @cached_property
    def transport(self) -> SeenTransport:
        """What NCCL is seen to use between its ranks."""
        return see_transport(self.ranks, self.unit_name)

    @cached_property
    def witnesses(self) -> EnvironmentWitnesses:
        """All that tells of its environment."""
        error = ""
        try:
            start = self.python
        except (FactUnavailable, ParseError) as failure:
            start, error = None, failure.reason
        newer = start is not None and any(time > self.main_started_at for time in start.times.values())
        return EnvironmentWitnesses(
            self.processes, self.main, start, error, self.layers, self.state.commands, newer, self.nccl
        )

    def variable(self, name: str) -> EffectiveVariable:
        """Give one variable over all its processes."""
        return self.witnesses.of(name)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """What can set variables, the strongest first, as it is on disk now."""
        layers = [
            Layer("environment file", file.path, self._assignments(file.path))
            for file in reversed(self.state.environment_files)
        ]
        files = () if self.state.load_state == "masked" else self.files
        for file in reversed([file for file in files if file.path not in self.gone]):
            kind = "unit" if file is files[0] else "drop-in"
            found = parse_unit_file(Reading(file.path, file.text), drop_in=kind == "drop-in")
            layers.append(Layer(kind, file.path, found.environment))
        layers.append(Layer("systemd's own environment", "systemctl show-environment", self._manager()))
        if all(file.path != "/etc/environment" for file in self.state.environment_files):
            layers.append(Layer("/etc/environment", "/etc/environment", self._assignments("/etc/environment")))
        return tuple(layers)

    @cached_property
    def nccl(self) -> tuple[tuple[Layer, str], ...]:
        """Files that NCCL reads, in its order, each with the reason where it cannot be read."""
        found = []
        for entry, node in self.tree.items():
            kind, _, path = entry.partition(" ")
            if kind == "nccl":
                text = node["text"]
                values = split_assignments(text_lines(text.text or ""))[0]
                error = "" if text.text is not None or text.missing else text.error or "no answer"
                found.append((Layer("file of NCCL's", path, values), error))
        return tuple(found)

    def _manager(self) -> Mapping[str, str]:
        text = self._one("", "manager").require(remedy="systemctl show-environment, as the login does")
        return split_assignments(text_lines(text))[0]

    def _assignments(self, path: str) -> Mapping[str, str]:
        node = self.tree.get(f"environment {path}")
        values = {}
        there = node is not None and not node["text"].missing
        for line in text_lines(node["text"].require(remedy=_AS_ROOT)) if node and there else ():
            name, sign, value = line.partition("=")
            value = value.strip()
            if sign:
                quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
                values[name.strip()] = value[1:-1] if quoted else value
        return values

    def _file(self, entry: str, node: Node) -> FileOfUnit:
        kind, _, path = entry.partition(" ")
        if node["text"].missing:
            return FileOfUnit(path, "", 0.0, True)
        text = node["text"].require(remedy=_AS_ROOT)
        return FileOfUnit(path, text, parse_number(node["stat"], "mtime"), kind == "file")

    def _in_effect(self, drop_ins: list[FileOfUnit]) -> list[FileOfUnit]:
        """Leave out a drop-in that one of the same name in a directory before it hides, and empty ones (/dev/null)."""
        order = [entry.partition(" ")[2] for entry in self.tree if entry.startswith("directory ")]
        for entry, node in self.tree.items():
            if entry.startswith("directory "):
                require_listing(node["names"])  # one that cannot be read may hold anything

        def rank(file: FileOfUnit) -> int:
            directory = file.path.rpartition("/")[0]
            return order.index(directory) if directory in order else len(order)

        best: dict[str, FileOfUnit] = {}
        for file in sorted(drop_ins, key=rank):
            first = best.setdefault(file.name, file)
            same = (first.text, first.changed_at) == (file.text, file.changed_at)  # /lib is a link to /usr/lib
            best[file.name] = file if same and file.loaded else first
        return [file for file in drop_ins if best[file.name] is file and (file.text.strip() or file.loaded)]

    @property
    def _template(self) -> str:
        stem, _, kind = self.unit_name.rpartition(".")
        prefix, at, _ = stem.partition("@")
        return f"{prefix}@.{kind}" if at else self.unit_name

    def _integer(self, text: str, what: str) -> int:
        if not re.fullmatch(r"[0-9]{1,10}", text):
            raise ParseError(self.unit_name, 0, text, f"not a {what}")
        return int(text)

    def _node(self, entry: str) -> Node:
        node = self.tree.get(entry)
        if node is None:
            raise FactUnavailable(self.unit_name, f"the answer holds no {entry}")
        return node

    def _one(self, entry: str, name: str) -> Reading:
        return self._node(entry)[name]
