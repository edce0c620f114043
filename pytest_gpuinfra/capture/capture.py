"""
The capture: everything that the passive checks of a host need, fetched in one round trip.

Requests go in, the probe's raw answers come out; nothing is judged here.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from pytest_gpuinfra.capture.reading import Node, Reading, Tree
from pytest_gpuinfra.connection.bootstrap import NO_PYTHON, inside_argv
from pytest_gpuinfra.connection.protocol import CommandResult, Connection
from pytest_gpuinfra.errors import (
    CommandTimeout,
    FactUnavailable,
    GpuInfraError,
    ProbeError,
    UnreachableError,
)
from pytest_gpuinfra.on_target.bundle import packed
from pytest_gpuinfra.on_target.probe.probe_answer import flaw_of
from pytest_gpuinfra.on_target.probe.probe_names import WITHHELD
from pytest_gpuinfra.wire import load_object

PROBE_SCHEMA = 1
Request: TypeAlias = dict[str, Any]
"""One request as the probe takes it (see on_target/probe/probe.py); make them by the functions below."""

Item: TypeAlias = dict[str, Any]


def file(name: str, path: str) -> Item:
    """Ask for a file's text."""
    return {"name": name, "kind": "file", "path": path}


def hexadecimal(name: str, path: str) -> Item:
    """Ask for a binary file, at most 4096 bytes, as hexadecimal text."""
    return {"name": name, "kind": "hex", "path": path}


def link(name: str, path: str) -> Item:
    """Ask for the target of a symbolic link."""
    return {"name": name, "kind": "link", "path": path}


def listing(name: str, path: str, *match: str) -> Item:
    """Ask for the names in a directory, or for those that one of some patterns matches."""
    return {"name": name, "kind": "list", "path": path, **({"match": list(match)} if match else {})}


def status(name: str, path: str) -> Item:
    """Ask for stat(2) of a path, links followed: JSON with mode, uid, gid, size, mtime, major, minor."""
    return {"name": name, "kind": "stat", "path": path}


def command(name: str, *argv: str, timeout_s: float = 10.0) -> Item:
    """Ask for the output of a command; it must only read."""
    return {"name": name, "kind": "command", "argv": list(argv), "timeout_s": timeout_s}


def node(identity: str, *items: Item) -> Request:
    """Ask for some items under one name."""
    return {"id": identity, "kind": "node", "items": list(items)}


def tree(
    identity: str, root: str, *items: Item, where: Mapping[str, Any] | None = None, match: Sequence[str] = ()
) -> Request:
    """Ask for the same items of every entry of a directory; the items' paths are relative to the entry."""
    return {
        "id": identity,
        "kind": "tree",
        "root": root,
        "items": list(items),
        **({"where": where} if where else {}),
        **({"match": list(match)} if match else {}),
    }


def filesystem(name: str, path: str) -> Item:
    """Ask for statvfs(3) of a path: JSON with size and available in bytes, inodes, inodes_available."""
    return {"name": name, "kind": "statvfs", "path": path}


def sample(name: str, path: str) -> Item:
    """Ask for the beginning of up to three files of a directory: JSON with bytes read, or the error, by name."""
    return {"name": name, "kind": "sample", "path": path}


def clock(name: str) -> Item:
    """Ask for the target's clocks at one instant: JSON with realtime, monotonic, boottime, ticks_a_second."""
    return {"name": name, "kind": "clock"}


def service(identity: str, unit: str, properties: str, names: Sequence[str], opened: Sequence[str]) -> Request:
    """
    Ask for a systemd unit with its files and processes (see on_target/probe/probe_service.py).

    Args:
        identity: Its id.
        unit: Full name of the unit.
        properties: For `systemctl show -p`.
        names: Variables to read, "NAME" or "PREFIX*"; all others stay on the target.
        opened: Beginnings of paths, or "*PART" for those that hold PART; what its processes have open of them is told.
    """
    return {
        "id": identity,
        "kind": "service",
        "unit": unit,
        "properties": properties,
        "names": list(names),
        "opened": list(opened),
    }


def inside(identity: str, enter: Sequence[str], requests: Iterable[Request], *, deadline_s: float = 40.0) -> Request:
    """
    Ask for answers from inside a container, in the same round trip and at the same time as the host's.

    Args:
        identity: Its id; the answers stand under the inner requests' own ids.
        enter: What runs a command in there, up to the command.
        requests: What to ask there.
        deadline_s: How long that may take.
    """
    return {
        "id": identity,
        "kind": "inside",
        "enter": inside_argv(enter),
        "deadline_s": deadline_s,
        "requests": list(requests),
    }


def kernel_log(identity: str) -> Request:
    """Ask for the kernel's log of this boot."""
    return {"id": identity, "kind": "kernel_log"}


@dataclass(frozen=True)
class Capture:
    """
    What one host answered, and when.

    Attributes:
        alias: The host's name in this run.
        reached_by: "ssh root@node-a", "local"; what a person would have typed.
        requests: What was asked.
        answers: Raw answers of the probe by request id; {} where the host was not reached.
        error: Why there are no answers: class name, reason, remedy; None if there are.
        taken_at: UTC, ISO 8601, of the controller's clock.
        took_s: Seconds from the first byte to the last, the connection's making included.
        round_trips: Commands run on the target for this.
        python: Version of the target's Python; "" where the host was not reached.
        uid: User id of the probe there; None where the host was not reached.
    """

    alias: str
    reached_by: str
    requests: tuple[Request, ...]
    answers: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]] = field(default_factory=dict)
    error: tuple[str, str, str] | None = None
    taken_at: str = ""
    took_s: float = 0.0
    round_trips: int = 0
    python: str = ""
    uid: int | None = None

    def check_reached(self) -> None:
        """
        Do nothing if the host answered.

        Raises:
            UnreachableError, CommandTimeout, ProbeError: What happened when the capture was taken.
        """
        if self.error:
            name, reason, remedy = self.error
            if name == "UnreachableError":
                raise UnreachableError(self.alias, reason.removeprefix(f"{self.alias}: "), remedy=remedy)
            raise ProbeError(reason, remedy=remedy)

    def node(self, identity: str) -> Node:
        """
        Give the readings of a request, by item name.

        Raises:
            UnreachableError, ProbeError: The host gave no answer at all.
            FactUnavailable: Nobody asked for this, or an older recording does not hold it.
        """
        return self.entry(identity, "")

    def tree(self, identity: str) -> Tree:
        """
        Give the readings of a request for a tree, by entry and item name; {} for an empty directory.

        A directory that does not exist is an empty tree: the kernel makes none where it has nothing to show.

        Raises:
            UnreachableError, ProbeError: The host gave no answer at all.
            FactUnavailable: The directory cannot be read, or nobody asked for this.
        """
        found = self._found(identity)
        if found is None:
            return {}
        request, answer = found
        return {entry: _readings(request, entry, readings) for entry, readings in answer.items()}

    def entry(self, identity: str, entry: str) -> Node:
        """
        Give the readings of one entry of a tree, by item name; no reading if there is no such entry.

        Raises:
            As `tree`.
        """
        found = self._found(identity)
        if found is None:
            return {}
        request, answer = found
        return _readings(request, entry, answer.get(entry, {}))

    def _found(self, identity: str) -> tuple[Request, Mapping[str, Mapping[str, Mapping[str, Any]]]] | None:
        """Give a request and its answer; None for a directory that does not exist."""
        self.check_reached()
        request = self.request(identity)
        answer = self.answers.get(identity)
        if request is None or answer is None:
            outer = next((r for r in self.requests if r["kind"] == "inside" and request in r["requests"]), None)
            if request is not None and outer is not None:
                raise self._not_entered(outer)
            raise FactUnavailable(
                identity,
                "the capture does not hold it",
                remedy="take a new recording with this version of pytest-gpuinfra",
            )
        if "!" in answer:
            reading = _reading(answer["!"][""], str(request.get("root", identity)))
            if reading.missing:
                return None
            raise FactUnavailable(reading.source, reading.error or "unreadable", remedy="is it readable for this user?")
        return request, answer

    def request(self, identity: str) -> Request | None:
        """Give the request of this id; None if it was not asked."""
        inner = (more for request in self.requests for more in request.get("requests", ()))
        return next((request for request in (*self.requests, *inner) if request["id"] == identity), None)

    def _not_entered(self, outer: Request) -> FactUnavailable:
        """Say why a container gave no answer."""
        reading = self.node(outer["id"]).get("session") or Reading("", None, "no answer")
        shown = " ".join(word for word in outer["enter"][:-3] if len(word) < 200)
        if NO_PYTHON in (reading.error or ""):
            return FactUnavailable(
                f"in the container ({shown})",
                "it has no python3 in its PATH",
                remedy="install python3 in the container (3.6 or later, its standard library is enough)",
            )
        return FactUnavailable(
            f"in the container ({shown})",
            reading.error or "no answer",
            remedy="see whether the container runs, and enter it by hand from the host",
        )

    def to_json(self) -> dict[str, Any]:
        """Give the capture as plain data, in a fixed order."""
        return {
            "reached_by": self.reached_by,
            "taken_at": self.taken_at,
            "took_s": round(self.took_s, 3),
            "round_trips": self.round_trips,
            "python": self.python,
            "uid": self.uid,
            "error": list(self.error) if self.error else None,
            "requests": list(self.requests),
            "answers": dict(self.answers),
        }

    @classmethod
    def from_json(cls, alias: str, data: Mapping[str, Any]) -> Capture:
        """Rebuild a capture from `to_json`; KeyError or TypeError if the data are of another shape."""
        return cls(
            alias=alias,
            reached_by=data["reached_by"],
            requests=tuple(data["requests"]),
            answers=data["answers"],
            error=tuple(data["error"]) if data["error"] else None,
            taken_at=data["taken_at"],
            took_s=data["took_s"],
            round_trips=data["round_trips"],
            python=data["python"],
            uid=data["uid"],
        )


def take_capture(
    connection: Connection, requests: Iterable[Request], *, reached_by: str, timeout_s: float = 60.0
) -> Capture:
    """
    Ask a host everything, once.

    A host that cannot be reached or asked gives a capture too: one that says why.
    """
    requests = tuple(requests)
    started = time.monotonic()
    base: dict[str, Any] = {
        "alias": connection.name,
        "reached_by": reached_by,
        "requests": requests,
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    try:
        source = _probe_source()
        plan: dict[str, Any] = {"requests": requests}
        if any(request["kind"] == "inside" for request in requests):
            plan |= {"source": source, "runner": packed("runner")}
        result = connection.run_program(source, plan, timeout_s=timeout_s, site=False)
        document = _document(connection.name, result, asked_ids(requests))
    except CommandTimeout as error:
        reason = f"{connection.name}: the probe did not end within {timeout_s:g} s and was killed"
        if error.output.strip():
            reason += f"; its last output: {error.output.strip()[-200:]!r}"
        failure = ProbeError(reason, remedy="see what hangs there (nvidia-smi? a dead mount?); raise --gpu-deadline")
        return _failed(base, failure, connection, started)
    except GpuInfraError as error:
        return _failed(base, error, connection, started)
    return Capture(
        **base,
        answers=document["answers"],
        took_s=time.monotonic() - started,
        round_trips=connection.round_trips,
        python=document["python"],
        uid=document["uid"],
    )


def _failed(base: dict[str, Any], error: GpuInfraError, connection: Connection, started: float) -> Capture:
    return Capture(
        **base,
        error=(type(error).__name__, error.reason, error.remedy),
        took_s=time.monotonic() - started,
        round_trips=connection.round_trips,
    )


def asked_ids(requests: Iterable[Request]) -> frozenset[str]:
    """Give the ids that answers may have: those of requests, and of what is asked inside containers."""
    asked = list(requests)
    return frozenset(one["id"] for request in asked for one in (request, *_inner(request)))


def _inner(request: Request) -> list[Request]:
    return request["requests"] if request["kind"] == "inside" else []


def _document(name: str, result: CommandResult, asked: frozenset[str]) -> dict[str, Any]:
    """
    Read what the probe wrote.

    Raises:
        ProbeError: It ended badly, or this is no answer of a probe to what was asked.
    """
    if result.exit_status != 0:
        output = result.stderr.strip()[-600:] or "it said nothing"
        raise ProbeError(
            f"{name}: the probe ended with status {result.exit_status}: {output}",
            remedy="python3 3.6 or later with its standard library is needed there; report this if it has that",
        )
    try:
        document = load_object(result.stdout_bytes.decode("ascii"), depth=None)
    except ValueError as error:
        flaw = str(error)
    else:
        flaw = _flaw_of(document, asked)
    if flaw:
        shown = result.stdout_bytes[:200].decode("utf-8", "backslashreplace")
        raise ProbeError(
            f"{name}: the probe's answer cannot be used: {flaw}; it begins with {shown!r}",
            remedy="see whether python3 there is the distribution's own, and who else may write on that host",
        )
    return document


def _flaw_of(document: Mapping[str, Any], asked: frozenset[str]) -> str:
    """Say what is wrong with the probe's document; "" if nothing is."""
    if document.get("schema") != PROBE_SCHEMA:
        return f"it has another schema than {PROBE_SCHEMA}"
    python, uid = document.get("python"), document.get("uid")
    if type(python) is not str or len(python) > 40 or type(uid) is not int:
        return "it does not say what it ran in"
    return str(flaw_of(document.get("answers"), asked))  # type: ignore[no-untyped-call]


def _probe_source() -> str:
    return packed("probe")


class _Readings(dict[str, Reading]):
    """
    Readings of one entry by item name; one that the answer lacks is unreadable.

    Args:
        readings: Those that there are.
        source_of: Says where one comes from.
    """

    def __init__(self, readings: Mapping[str, Reading], source_of: Callable[[str], str]) -> None:
        super().__init__(readings)
        self._source_of = source_of

    def __missing__(self, name: str) -> Reading:
        return Reading(self._source_of(name), None, "the answer does not hold it")


def _readings(request: Request, entry: str, readings: Mapping[str, Mapping[str, Any]]) -> Node:
    """Give the readings of one entry, with where each comes from."""
    if request["kind"] == "service":
        unit = request["unit"]

        def source_of(name: str) -> str:
            return _service_source(unit, entry, name)
    else:
        sources = {item["name"]: item for item in request.get("items", ())}
        root = request.get("root", "")
        base = f"{root}/{entry}" if root else ""

        def source_of(name: str) -> str:
            return _source(sources.get(name), base, name)

    return _Readings({name: _reading(raw, source_of(name)) for name, raw in readings.items()}, source_of)


def _reading(raw: Mapping[str, Any], source: str) -> Reading:
    if raw.get("cut"):
        return Reading(source, None, f"too long: only its first {len(raw['t'])} characters were read", raw.get("x"))
    if WITHHELD in raw.get("t", ""):
        return Reading(source, None, "it holds more to mask than is looked at: a part of it was withheld", raw.get("x"))
    return Reading(source, raw.get("t"), raw.get("e"), raw.get("x"), raw.get("s", ""))


def _source(item: Item | None, base: str, name: str) -> str:
    if item is None:
        return {"kmsg": "/dev/kmsg", "journal": "journalctl -k -b 0", "dmesg": "dmesg"}.get(name, name)
    if item["kind"] == "command":
        return shlex.join(item["argv"])
    if item["kind"] == "clock":
        return "the target's clocks"
    path = str(item["path"])
    if not base:
        return path
    return base if path == "." else f"{base}/{path}"


def _service_source(unit: str, entry: str, name: str) -> str:
    """Say where a reading of a service request comes from; entries are those of on_target/probe/probe_service.py."""
    kind, _, what = entry.partition(" ")
    if kind == "process":
        return f"/proc/{what}/{'cmdline' if name == 'argv' else 'fd' if name == 'opened' else name}"
    if what:
        return what
    return {
        "show": f"systemctl show {unit}",
        "verify": f"systemd-analyze verify {unit}",
        "journal": f"journalctl -u {unit}, since its last start",
        "manager": "systemctl show-environment",
        "paths": "systemctl show -p UnitPath",
        "clock": "the target's clocks",
        "startup": f"the Python of {unit}, started anew",
    }.get(name, name)
