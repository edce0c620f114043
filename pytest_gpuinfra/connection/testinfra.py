"""
testinfra's own `Host` over our connection: its whole API, with our deadlines, on hosts and inside their containers.

Imported on first use only: testinfra is not needed for anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import testinfra.host  # type: ignore[import-untyped]
from testinfra.backend.base import BaseBackend, CommandResult  # type: ignore[import-untyped]

from pytest_gpuinfra.connection.protocol import CommandResult as Ended
from pytest_gpuinfra.connection.protocol import Connection


class ConnectionBackend(BaseBackend):  # type: ignore[misc]
    """
    A backend of testinfra that runs its commands by a `Connection`.

    Args:
        connection: The connection, to a host or into its container.
        timeout_s: Deadline of each command, which testinfra itself does not have.
        on_result: Called with what each command did.
    """

    NAME = "gpuinfra"

    def __init__(
        self, connection: Connection, *, timeout_s: float = 60.0, on_result: Callable[[Ended], None] = lambda _: None
    ) -> None:
        super().__init__(connection.name)
        self.on_result = on_result
        self.connection = connection
        self.timeout_s = timeout_s

    def run(self, command: str, *args: str, **kwargs: Any) -> CommandResult:
        """
        Run a command by /bin/sh, as every backend of testinfra does.

        Raises:
            CommandTimeout: The deadline passed; the command and its process group were killed.
            UnreachableError, ProbeError: There is no session.
        """
        text = self.get_command(command, *args)
        ended = self.connection.run(["/bin/sh", "-c", text], timeout_s=self.timeout_s)
        self.on_result(ended)
        result: CommandResult = self.result(ended.exit_status, text.encode(), ended.stdout_bytes, ended.stderr)
        return result


def host_over(
    connection: Connection, *, timeout_s: float = 60.0, on_result: Callable[[Ended], None] = lambda _: None
) -> testinfra.host.Host:
    """Give testinfra's `Host` over a connection."""
    backend = ConnectionBackend(connection, timeout_s=timeout_s, on_result=on_result)
    host = testinfra.host.Host(backend)
    backend.set_host(host)
    return host
