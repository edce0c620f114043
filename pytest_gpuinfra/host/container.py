"""The container of a host, as tests see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuinfra.capture.evidence import Evidence, evidence
from pytest_gpuinfra.connection.container import Container
from pytest_gpuinfra.connection.protocol import CommandResult, Connection, OnOutput
from pytest_gpuinfra.subjects.container.facts import ContainerFacts

if TYPE_CHECKING:
    import testinfra.host  # type: ignore[import-untyped]


class GpuContainer:
    """
    The container that the inventory names: what was seen of it, and a way to run more in it.

    Attributes:
        alias: The host's name.
        container: Which container it is.
        facts: What was seen of it.
    """

    def __init__(
        self,
        alias: str,
        container: Container,
        facts: ContainerFacts,
        connect: Callable[[], Connection],
        observe: Callable[[Evidence], None],
    ) -> None:
        self.alias = alias
        self.container = container
        self.facts = facts
        self._connect = connect
        self._observe = observe

    @property
    def connected(self) -> bool:
        """Whether its connection is open."""
        return "connection" in self.__dict__

    @cached_property
    def connection(self) -> Connection:
        """
        The connection into it, over the host's own.

        Raises:
            FactUnavailable: The host is replayed from a recording.
        """
        return self._connect()

    def run(
        self,
        *argv: str,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        on_output: OnOutput | None = None,
    ) -> CommandResult:
        """
        Run a command in it; its output becomes evidence of the test that runs.

        Raises:
            FactUnavailable: The host is replayed.
            CommandTimeout: The deadline passed; the command and its process group were killed inside.
            UnreachableError, ProbeError: The container cannot be entered, or the session broke off.
        """
        result = self.connection.run(argv, stdin=stdin, timeout_s=timeout_s, env=env, on_output=on_output)
        self._observe(command_evidence(f"{self.alias}/{self.container}", result))
        return result

    @cached_property
    def testinfra(self) -> testinfra.host.Host:
        """testinfra's `Host` inside the container: service, file, process, package, sysctl, socket, ..."""
        return observed_testinfra(self.connection, self._observe)

    def close(self) -> None:
        """End the connection, if there is one."""
        if "connection" in self.__dict__:
            self.connection.close()
            del self.__dict__["connection"]
            self.__dict__.pop("testinfra", None)

    def __repr__(self) -> str:
        return f"GpuContainer({self.alias!r}, {str(self.container)!r})"


def command_evidence(where: str, result: CommandResult) -> Evidence:
    """Show a command with its output as evidence."""
    text = f"{result.stdout}{result.stderr}\nexit status {result.exit_status}"
    return evidence(f"{where}$ {' '.join(result.argv)}", text)


def observed_testinfra(connection: Connection, observe: Callable[[Evidence], None]) -> testinfra.host.Host:
    """Give testinfra's `Host` over a connection; what its commands print becomes evidence of the test that runs."""
    from pytest_gpuinfra.connection.testinfra import host_over  # testinfra is not light

    return host_over(connection, on_result=lambda result: observe(command_evidence(connection.name, result)))
