"""Captures of a session's hosts: early logins, many at the same time, reboots that are waited for, giving up."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuinfra.capture.capture import Capture, Request
from pytest_gpuinfra.capture.many import Standing, capture_many
from pytest_gpuinfra.capture.selected import SelectedHost
from pytest_gpuinfra.capture.spool import IN_MEMORY
from pytest_gpuinfra.connection.pipe import PipeConnection
from pytest_gpuinfra.errors import GpuInfraError, ProbeError
from pytest_gpuinfra.record.recording import RecordedHost

if TYPE_CHECKING:
    from pytest_gpuinfra.connection.ssh import SshConnection
    from pytest_gpuinfra.host.host import GpuHost
    from pytest_gpuinfra.session.session import Session


class Captures:
    """
    Captures the hosts of a session.

    Args:
        session: Whose; its `hosts` are there when all are done.

    Attributes:
        took_s: Seconds from the session's beginning until all hosts were captured.
    """

    def __init__(self, session: Session) -> None:
        self.took_s = 0.0
        self._session = session
        self._settings = session.settings
        self._began = time.monotonic()
        self._early: dict[str, PipeConnection] = {}
        self._capturing: dict[str, PipeConnection] = {}
        self._given_up: set[str] = set()
        self._lock = threading.Lock()

    def open_early(self, opened: Mapping[str, SshConnection]) -> None:
        """
        Begin to log in to the first hosts, which takes longer than all that is to be prepared before a capture.

        Args:
            opened: Logins that were begun already, by destination.
        """
        live = [host for host in self._session.selected.values() if host.way != "replay"]
        unused = dict(opened)
        for host in live[: self._settings.parallel]:
            begun = unused.pop(host.destination, None)
            if begun is None:
                connection = self._session.factory.connect(host, shared=self._lasting)
                connection.open_early()
            else:
                begun.name, connection = host.alias, begun
            self._early[host.alias] = connection
        for begun in unused.values():
            begun.close()

    def take_all(
        self,
        extra: Sequence[Request] = (),
        on_done: Callable[[GpuHost], None] = lambda _: None,
        on_look: Callable[[Standing], None] = lambda _: None,
    ) -> None:
        """
        Capture every host, all at the same time within the limit; of many, the answers are written down at once.

        Args:
            extra: Requests beside our own.
            on_done: Called in this thread for each host as it is done.
            on_look: Called in this thread twice a second with how far the captures are.
        """
        session = self._session
        done: dict[str, GpuHost] = {}

        def take_down(host: GpuHost) -> None:
            done[host.alias] = session.parsed.watch(host)
            on_done(host)

        def look(standing: Standing) -> None:
            import pytest_gpuinfra.diagnosis.gather  # noqa: F401  the summary needs it; here it costs no time of its own

            on_look(standing)

        try:
            capture_many(
                list(session.selected.values()),
                lambda host: self._capture(host, extra),
                limit=self._settings.parallel,
                deadline_s=self._settings.deadline_all_s,
                give_up=self._give_up,
                on_done=take_down,
                on_look=look,
            )
        finally:
            session.hosts = {alias: done[alias] for alias in session.selected if alias in done}
        session.selected = {alias: host.selected for alias, host in session.hosts.items()}
        session.baseline.list_areas(session.hosts.values())
        self._form_collectives()
        self.took_s = time.monotonic() - self._began

    def close(self) -> None:
        """End the early logins that no capture has taken."""
        for connection in self._early.values():
            connection.close()

    def _form_collectives(self) -> None:
        """Form the groups of hosts that compute together, where the inventory or a recording has any."""
        hosts, expected, factory = self._session.hosts, self._session.collectives, self._session.factory
        if not expected and not any(host.selected.gathered.get("collectives") for host in hosts.values()):
            return
        from pytest_gpuinfra.session.groups import form_collectives

        form_collectives(
            hosts, expected, python=self._settings.python, connect=factory.connect, on_progress=factory.tell
        )

    def _give_up(self, selected: SelectedHost, begun: bool) -> GpuHost:
        """End a capture that the deadline for all has overtaken, or Ctrl-C; gives the host as one without answers."""
        self._session.stopped.set()
        with self._lock:
            self._given_up.add(selected.alias)
            connection = self._capturing.get(selected.alias)
        if connection is not None:
            threading.Thread(target=connection.close, daemon=True).start()  # which takes its time to end politely
        state = "its capture was not done" if begun else "its turn to be captured had not come"
        when, remedy = "the run was interrupted", "run again, and let it come to its end"
        if not self._session.interrupted:
            when = f"the {self._settings.deadline_all_s or 0:g} s for all hosts were over"
            remedy = "raise --gpu-deadline-all or --gpu-parallel, or deal the hosts out by --gpu-shard"
        return self._unanswered(selected, ProbeError(f"{selected.alias}: {state} when {when}", remedy=remedy))

    def _unanswered(self, selected: SelectedHost, error: GpuInfraError) -> GpuHost:
        why = (type(error).__name__, error.reason, error.remedy)
        capture = Capture(selected.alias, selected.reached_by, (), error=why, taken_at=self._session.started_at)
        return self._session.factory.host(selected, capture)

    def _capture(self, selected: SelectedHost, extra: Sequence[Request]) -> GpuHost:
        from pytest_gpuinfra.host.capture import capture_host

        session = self._session

        def made(capture: Capture, connect: Callable[[SelectedHost], PipeConnection] | None = None) -> GpuHost:
            here = selected
            if len(session.selected) > IN_MEMORY:
                capture, here = session.spool.put(capture), dataclasses.replace(selected, capture=None)
            return session.factory.host(here, capture, connect)

        if selected.capture is not None:
            return made(selected.capture)

        def take(connection: PipeConnection) -> Capture:
            return capture_host(
                connection,
                selected.spec,
                extra,
                reached_by=selected.reached_by,
                timeout_s=self._settings.deadline_s,
            )

        began = time.monotonic()
        try:
            connection = self._connection_to_capture(selected, take)
        except GpuInfraError as error:
            return self._unanswered(selected, error)
        session.factory.waited_s[selected.alias] = time.monotonic() - began
        capture = take(connection)
        with self._lock:
            self._capturing.pop(selected.alias, None)
        if capture.error or not self._lasting:
            connection.close()
            return made(capture)
        return made(capture, lambda _: connection)

    @property
    def _lasting(self) -> bool:
        """Whether the connection of a capture stays for what comes after; of many hosts it does not."""
        return self._settings.keep_connections and len(self._session.selected) <= self._settings.parallel

    def _connection_to_capture(
        self, selected: SelectedHost, take: Callable[[PipeConnection], Capture]
    ) -> PipeConnection:
        """
        Give the connection that a host is captured over; first reboot it and wait for it, where that is asked for.

        Raises:
            GpuInfraError: It was to be rebooted, and was not, or has not come back.
        """
        alias, factory, baseline = selected.alias, self._session.factory, self._session.baseline

        def connect() -> PipeConnection:
            connection = self._early.pop(alias, None) or factory.connect(selected, shared=self._lasting)
            with self._lock:
                self._capturing[alias] = connection
                if alias in self._given_up:
                    connection.close()
            return connection

        if not self._settings.reboot and not self._settings.wait_s:
            return connect()
        from pytest_gpuinfra.gather.reboot import Waiting, reboot_and_wait

        def tell(line: str) -> None:
            factory.tell(f"{alias}: {line}")

        deadline = time.monotonic() + self._settings.wait_s
        waiting = Waiting(connect, selected.spec, deadline, tell, self._session.stopped)
        if self._settings.reboot:

            def before(connection: PipeConnection) -> None:
                if baseline.recording is None:
                    baseline.before[alias] = RecordedHost(selected.spec.plain(), take(connection))

            connection, baseline.boots_before[alias] = reboot_and_wait(waiting, alias, before=before)
            return connection
        old_boots = baseline.boots(alias) if self._settings.after_reboot else ()
        connection, standing = waiting.until_back(not_boots=old_boots)
        if standing.error is not None:
            connection.close()
        return connection if standing.error is None else factory.connect(selected)
