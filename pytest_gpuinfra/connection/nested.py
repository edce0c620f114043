"""A container on a host, entered over the host's own connection."""

from __future__ import annotations

import threading
from typing import Protocol

from pytest_gpuinfra.connection.bootstrap import HOST_REACHED, NO_PYTHON, explain_unsafe, nested_command
from pytest_gpuinfra.connection.container import Container
from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.connection.pipe import TIMED_OUT_MARK, PipeConnection
from pytest_gpuinfra.connection.protocol import Connection
from pytest_gpuinfra.connection.ssh import SshConnection
from pytest_gpuinfra.errors import ProbeError, UnreachableError


class _Outer(Protocol):
    """What a nested connection needs of the host's."""

    name: str
    sessions: threading.BoundedSemaphore

    def shell_argv(self, line: str) -> list[str]: ...

    def explain(self, exit_status: int | None, said: str, noise: str) -> Exception: ...


class NestedConnection(PipeConnection):
    """
    Runs everything in a container, with the same runner and framing as on the host.

    The runner goes in, so a command that outlives its deadline or its controller is killed inside.
    The session is one more of the host's multiplexed connection; closing it leaves that open.

    Args:
        outer: The host's connection.
        container: The container; not of the kind "ssh" (see `connect_container`).
        sudo: Enter through `sudo -n`.
        connect_timeout_s: Seconds until the runner must have spoken in the container.
    """

    def __init__(
        self, outer: _Outer, container: Container, *, sudo: bool = False, connect_timeout_s: float = 30.0
    ) -> None:
        super().__init__(f"{outer.name}/{container}", connect_timeout_s=connect_timeout_s)
        self.container = container
        self._outer = outer
        self.sessions = outer.sessions  # sshd counts both on one connection
        self._enter_by_sudo = sudo

    def _session_argv(self) -> list[str]:
        return self._outer.shell_argv(nested_command(self.container.enter, sudo=self._enter_by_sudo))

    def _explain_failure(self, exit_status: int | None, said: str, noise: str) -> Exception:
        if HOST_REACHED not in noise:
            return self._outer.explain(exit_status, said, noise)
        heard = (noise.partition(HOST_REACHED)[2].strip() + " " + said.strip()).strip()[-300:]
        unsafe = explain_unsafe(self.name, noise)
        if unsafe is not None:
            return unsafe
        if NO_PYTHON in noise:
            return ProbeError(
                f"{self.name}: the container has no python3 in its PATH",
                remedy="install python3 in it (3.6 or later, its standard library is enough)",
            )
        if TIMED_OUT_MARK in said:
            return UnreachableError(
                self.name,
                f"no python3 had started in the container within {self.connect_timeout_s:g} s",
                remedy=f"raise --gpu-connect-timeout; {self.container.remedy}",
            )
        return UnreachableError(
            self.name,
            f"the container was not entered (exit status {exit_status}): {heard or 'nothing was said'}",
            remedy=self.container.remedy,
        )


def connect_container(outer: Connection, container: Container) -> Connection:
    """
    Give the connection into a container of a host, by sudo and with the deadlines of the host's own.

    A container with an address of its own is reached by ssh through the host's connection (a ProxyCommand of `ssh -W`).

    Raises:
        ProbeError: The host's connection is of another class than this package's.
    """
    if not isinstance(outer, (LocalConnection, SshConnection)):
        raise ProbeError(f"{outer.name}: nothing is known of how to enter {container} over a {type(outer).__name__}")
    sudo, connect_timeout_s = outer.sudo is True, outer.connect_timeout_s
    if container.kind == "ssh":
        through = outer.jump_command() if isinstance(outer, SshConnection) else None
        return SshConnection(
            f"{outer.name}/{container}",
            container.name,
            config=outer.config if isinstance(outer, SshConnection) else None,
            connect_timeout_s=connect_timeout_s,
            proxy_command=through,
        )
    return NestedConnection(outer, container, sudo=sudo, connect_timeout_s=connect_timeout_s)
