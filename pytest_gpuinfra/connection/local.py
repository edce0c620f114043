"""The machine that pytest itself runs on, reached without ssh."""

from __future__ import annotations

from pytest_gpuinfra.connection.bootstrap import NO_PYTHON, explain_unsafe, remote_command
from pytest_gpuinfra.connection.pipe import PipeConnection
from pytest_gpuinfra.connection.rights import explain_refusal
from pytest_gpuinfra.errors import ProbeError


class LocalConnection(PipeConnection):
    """Runs everything as a child process of the controller, with the same runner and framing as over ssh."""

    def shell_argv(self, line: str) -> list[str]:
        """Give the argv of a session that runs a line of shell text."""
        return ["/bin/sh", "-c", line]

    def explain(self, exit_status: int | None, said: str, noise: str) -> Exception:
        """Say why a session did not come about."""
        return self._explain_failure(exit_status, said, noise)

    def _session_argv(self) -> list[str]:
        return self.shell_argv(remote_command(sudo=self.sudo))

    def _explain_failure(self, exit_status: int | None, said: str, noise: str) -> Exception:
        unsafe = explain_unsafe(self.name, noise)
        if unsafe is not None:
            return unsafe
        if NO_PYTHON in noise:
            return ProbeError(
                f"{self.name}: no python3 in the PATH",
                remedy="put python3 in /usr/bin or in the PATH of this run",
            )
        return explain_refusal(self.name, self.sudo, said) or ProbeError(
            f"{self.name}: python3 ended with status {exit_status} before it ran anything: {said.strip()[-400:]!r}",
            remedy="run `python3 -c pass` by hand on this machine",
        )
