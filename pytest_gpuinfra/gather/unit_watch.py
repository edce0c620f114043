"""The service's unit while its endpoint is waited for: a unit that failed will not answer, however long one waits."""

from __future__ import annotations

from collections.abc import Callable

from pytest_gpuinfra.connection.protocol import Connection
from pytest_gpuinfra.endpoint.readiness import UnitState
from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.wire import integer, text_lines

_ASKED = "LoadState,ActiveState,SubState,NRestarts"
_ALIVE = ("running", "start", "start-pre", "start-post", "reload")
_LINES = 15
_LOOK_S = 10.0


class UnitWatch:
    """
    Asks systemd for one unit, each time that it is called.

    Args:
        connection: Gives the connection to where the service runs.
        unit: The unit's whole name.
    """

    def __init__(self, connection: Callable[[], Connection], unit: str) -> None:
        self._connection = connection
        self._unit = unit

    def __call__(self) -> UnitState | None:
        """
        Give the unit's state, with the end of its journal where it is in trouble.

        None where systemd did not tell, or knows no such unit: then only the endpoint decides.
        """
        try:
            shown = self._connection().run(["systemctl", "show", "-p", _ASKED, "--", self._unit], timeout_s=_LOOK_S)
            values = dict(line.split("=", 1) for line in text_lines(shown.stdout) if "=" in line)
            active, sub = values.get("ActiveState", ""), values.get("SubState", "")
            if shown.exit_status or not active or values.get("LoadState") != "loaded":
                return None
            restarts = values.get("NRestarts", "")
            return UnitState(
                active,
                sub,
                integer(restarts),
                "" if sub in _ALIVE else self._journal(),
                self._unit,
            )
        except GpuInfraError:
            return None

    def _journal(self) -> str:
        """Give the last lines that the unit wrote; "" where they cannot be read."""
        argv = ["journalctl", "--no-pager", "-q", "-o", "cat", "-n", str(_LINES), "-u", self._unit]
        read = self._connection().run(argv, timeout_s=_LOOK_S)
        return "" if read.exit_status else read.stdout
