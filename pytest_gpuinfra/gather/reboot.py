"""
A host that is judged after a boot: rebooted where that is asked for, waited for, and left to settle.

A look is one small round trip: boot id, how far systemd has come, and the units that are expected of the host and of
its container. What is waited for, within one deadline: ssh answers; the boot is another one; systemd has done the
jobs of its start; the expected units are no longer activating.

Source: systemctl(1), is-system-running, list-jobs and show -p ActiveState,SubState,Job of systemd 219 to 257.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuinfra.capture.capture import Capture, Request, command, file, inside, node, take_capture
from pytest_gpuinfra.capture.reading import Node
from pytest_gpuinfra.connection.container import Container
from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.connection.nested import connect_container
from pytest_gpuinfra.connection.pipe import PipeConnection
from pytest_gpuinfra.connection.protocol import Connection
from pytest_gpuinfra.connection.ssh import SshConnection
from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError, ProbeError, UnreachableError
from pytest_gpuinfra.inventory.inventory import HostSpec, container_of
from pytest_gpuinfra.wire import text_lines

CONTAINER_GRACE_S = 30.0
"""How long a container may take to appear once its host has done all jobs of its start."""

_EVERY_S = 2.0
_LOOK_S = 20.0
_OWN_BOOT = Path("/proc/sys/kernel/random/boot_id")
_UNDER_WAY = ("activating", "reloading", "deactivating")
_STARTING = ("initializing", "starting", "stopping")
_JOB = re.compile(r"^\s*\d+\s+(\S+)\s+\S+\s+(waiting|running)\s*$", re.MULTILINE)
_OWN_CGROUP = Path("/proc/self/cgroup")
_HERE, _INSIDE = "settling", "settling_inside"


def refusal(level: str, *, only_collects: bool, hosts: Mapping[str, str]) -> str:
    """
    Say why nothing may be rebooted in a run; "" if all of its hosts may.

    Args:
        level: Of the run.
        only_collects: Whether the run judges nothing.
        hosts: How each is reached, by alias: "ssh", "local" or "replay".
    """
    if level != "disruptive":
        return f"--gpu-reboot needs --gpu-level=disruptive, not {level}: it takes every host of the run out of service"
    if only_collects:
        return "--gpu-reboot does not go with --collect-only, which judges nothing"
    for alias, way in hosts.items():
        if way == "local":
            return f"--gpu-reboot: {alias} is this machine, and pytest would not survive it; run it on another one"
        if way == "replay":
            return f"--gpu-reboot: {alias} is replayed from a recording, which cannot be rebooted"
    return ""


@dataclass(frozen=True, slots=True)
class Standing:
    """
    How far a host has come up.

    Attributes:
        boot_id: Of the running boot; "" if the host did not answer, or does not tell.
        missing: What it lacks, in words; "" if nothing that could be waited for.
        error: Why it did not answer; None if it did.
        container_missing: Whether all that is missing is a container that cannot be entered.
    """

    boot_id: str
    missing: str
    error: tuple[str, str, str] | None = None
    container_missing: bool = False

    @property
    def hopeless(self) -> bool:
        """Whether it answers, and will never do so in a way that can be used: waiting does not install python3."""
        return self.error is not None and "has no python3 in its PATH" in self.error[1]


def look(connection: Connection, spec: HostSpec) -> Standing:
    """
    See how far a host has come up.

    Args:
        connection: To the host.
        spec: Its declaration: container, service, and units that are expected.
    """
    container = container_of(spec)
    service = [spec.service] if spec.service else []
    units = [name for name, state in spec.expect.units.items() if state == "active"]
    requests = [_request(_HERE, units if container else [*units, *service])]
    if container is not None and container.enter:
        requests.append(inside("inside", container.enter, [_request(_INSIDE, service)], deadline_s=_LOOK_S / 2))
    capture = take_capture(connection, requests, reached_by="", timeout_s=_LOOK_S)
    if capture.error:
        return Standing("", capture.error[1].removeprefix(f"{connection.name}: "), capture.error)
    readings = capture.node(_HERE)
    boot_id = (readings["boot_id"].text or "").strip()
    own = own_unit() if isinstance(connection, LocalConnection) else ""
    missing = _missing(readings, "systemd", own)
    if missing or container is None:
        return Standing(boot_id, missing)
    try:
        return Standing(boot_id, _missing(_inside(connection, capture, container, service), "systemd in the container"))
    except GpuInfraError as error:
        return Standing(boot_id, f"the container {container} cannot be entered: {error.reason}", None, True)


def _request(identity: str, units: Sequence[str]) -> Request:
    """Ask what `_missing` judges."""
    return node(
        identity,
        file("boot_id", str(_OWN_BOOT)),
        command("system", "systemctl", "is-system-running"),
        command("jobs", "systemctl", "list-jobs", "--no-legend", "--no-pager", "--plain"),
        *(command(f"unit {unit}", "systemctl", "show", "-p", "ActiveState,SubState,Job", unit) for unit in units),
    )


def _inside(connection: Connection, capture: Capture, container: Container, units: Sequence[str]) -> Node:
    """
    Give the readings from inside the container; one with an address of its own is asked there.

    Raises:
        GpuInfraError: It cannot be entered.
    """
    if container.enter:
        return capture.node(_INSIDE)
    if not isinstance(connection, (LocalConnection, SshConnection)):
        raise FactUnavailable(str(container), "this connection carries no other")
    inner = connect_container(connection, container)
    try:
        return take_capture(inner, [_request(_INSIDE, units)], reached_by="", timeout_s=_LOOK_S).node(_INSIDE)
    finally:
        inner.close()


def _missing(readings: Node, whose: str, own: str = "") -> str:
    """
    Say what systemd has still to do; "" if nothing, or if it is not there to be asked.

    A unit that this runs in is one of the jobs of the start, and will not end before this does (`own`): where it is
    the only job that runs, all others wait for it.
    """
    state = (readings["system"].text or "").strip()
    found = _JOB.findall(readings["jobs"].text or "")
    jobs = [unit for unit, _ in found if unit != own]
    ours_alone = own in dict(found) and not any(word == "running" and unit != own for unit, word in found)
    if state in _STARTING and not ours_alone:
        left = f", {len(jobs)} jobs left: {', '.join(jobs[:3])}{', ...' if len(jobs) > 3 else ''}" if jobs else ""
        return f"{whose} is {state}{left}"
    for name, reading in readings.items():
        if not name.startswith("unit "):
            continue
        shown = dict(line.partition("=")[::2] for line in text_lines(reading.text or ""))
        word, sub = shown.get("ActiveState", ""), shown.get("SubState", "")
        if word in _UNDER_WAY or shown.get("Job", "0") not in ("0", ""):
            return f"{name.removeprefix('unit ')} is {word} ({sub})"
    return ""


def reboot(connection: Connection, boot_id: str) -> None:
    """
    Ask a host to reboot; returns as soon as it has taken the order.

    Args:
        connection: To the host; it does not survive, and is to be closed.
        boot_id: Of the boot that is to end.

    Raises:
        ProbeError: It is the machine that this runs on, or it refused.
        CommandTimeout, UnreachableError: It gave no answer.
    """
    if boot_id and boot_id == own_boot_id():
        raise ProbeError(
            f"{connection.name}: not rebooted: it shows the boot id of the machine that pytest runs on",
            remedy="run pytest on another machine",
        )
    try:
        result = connection.run(["systemctl", "reboot"], timeout_s=60.0)
    except ProbeError:
        return  # the connection was cut before the answer came: it goes down
    if result.exit_status != 0:
        said = (result.stderr.strip() or result.stdout.strip() or "it said nothing")[-300:]
        raise ProbeError(
            f"{connection.name}: not rebooted: `systemctl reboot` ended with status {result.exit_status}: {said}",
            remedy="log in as root, or use --gpu-sudo; see whether systemd is its process 1",
        )


def own_unit() -> str:
    """Give the systemd service that this process runs in; "" if none."""
    try:
        found = re.findall(r"/([^/\n]+\.service)(?=/|$)", _OWN_CGROUP.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return ""
    return found[-1] if found else ""


def own_boot_id() -> str:
    """Give the boot id of the machine that this runs on; "" if it does not tell."""
    try:
        return _OWN_BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


@dataclass
class Waiting:
    """
    Waits for one host.

    Attributes:
        connect: Makes a connection to it, unopened.
        spec: Its declaration.
        deadline: When to give up, by time.monotonic().
        tell: Called with a line about what is waited for, after each look.
        stopped: Ends the waiting from another thread.
    """

    connect: Callable[[], PipeConnection]
    spec: HostSpec
    deadline: float
    tell: Callable[[str], None] = lambda _: None
    stopped: threading.Event | None = None

    def until_back(self, *, not_boots: Collection[str] = ()) -> tuple[PipeConnection, Standing]:
        """
        Wait until the host has come up and settled, or the time is over.

        Args:
            not_boots: Boot ids that must be over.

        Returns:
            A connection, open if the host answered the last look, and what that look saw.
        """
        container_since: float | None = None
        first: PipeConnection | None = None
        while True:
            connection = first or self.connect()
            first = None
            left = self.deadline - time.monotonic()
            connection.connect_timeout_s = min(connection.connect_timeout_s, max(5.0, left))
            standing = look(connection, self.spec)
            if standing.error is None and standing.boot_id in not_boots:
                down = standing.missing.startswith("systemd is stopping")
                words = "going down" if down else "not rebooted yet"
                standing = Standing(standing.boot_id, f"{words}, still the boot {standing.boot_id}")
            if standing.container_missing:
                container_since = container_since or time.monotonic()
                if time.monotonic() - container_since > CONTAINER_GRACE_S:
                    return connection, standing
            else:
                container_since = None
            left = self.deadline - time.monotonic()
            if not standing.missing or standing.hopeless or left <= 0 or self._stopped():
                return connection, standing
            self.tell(f"{standing.missing}; waiting, {left:.0f} s left")
            if standing.error is not None or standing.boot_id in not_boots:
                connection.close()  # a shared connection into a host that went down would hang
            else:
                first = connection
            self._sleep(min(_EVERY_S, max(0.0, left)))

    def _stopped(self) -> bool:
        return self.stopped is not None and self.stopped.is_set()

    def _sleep(self, seconds: float) -> None:
        if self.stopped is None:
            time.sleep(seconds)
        else:
            self.stopped.wait(seconds)


def reboot_and_wait(
    waiting: Waiting, alias: str, *, before: Callable[[PipeConnection], None] = lambda _: None
) -> tuple[PipeConnection, str]:
    """
    Reboot a host, and wait until it has come up again.

    Args:
        waiting: How to reach it, and for how long to wait.
        alias: Its name, for messages.
        before: Called with an open connection before anything is done to it.

    Returns:
        A connection, and the id of the boot that was ended. A host that answers and shows the same boot after all
        that time is for the caller to judge.

    Raises:
        GpuInfraError: It was not reached, refused, or did not come back.
    """
    started = time.monotonic()
    connection = waiting.connect()
    try:
        standing = look(connection, waiting.spec)
        if standing.error is not None:
            _, reason, remedy = standing.error
            reason = f"not rebooted, since it was not reached: {reason.removeprefix(f'{alias}: ')}"
            raise UnreachableError(alias, reason, remedy=remedy)
        if not standing.boot_id:
            raise FactUnavailable(
                f"{alias}: boot id", "it tells none, so nobody could tell a reboot", remedy="is /proc readable there?"
            )
        before(connection)
        waiting.tell(f"rebooting, boot {standing.boot_id}")
        reboot(connection, standing.boot_id)
    finally:
        connection.close()
    connection, after = waiting.until_back(not_boots=(standing.boot_id,))
    if after.error is not None:
        connection.close()
        raise not_back(alias, after, time.monotonic() - started)
    return connection, standing.boot_id


def not_back(alias: str, standing: Standing, waited_s: float) -> UnreachableError:
    """Say that a host that was rebooted has not come back, and what was last seen of it."""
    return UnreachableError(
        alias,
        f"rebooted, and not back within {waited_s:.0f} s; last seen: {standing.missing or 'nothing'}",
        remedy="look at its console or its management controller; if it only takes longer, raise --gpu-wait",
    )
