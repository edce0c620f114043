"""Makes hosts, with what they carry: connection, endpoint, GPU programs, sampling under load."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.connection.ssh import SshConnection
from pytest_gpuinfra.host.host import GpuHost

if TYPE_CHECKING:
    from pytest_gpuinfra.capture.capture import Capture
    from pytest_gpuinfra.capture.selected import SelectedHost
    from pytest_gpuinfra.connection.pipe import PipeConnection
    from pytest_gpuinfra.gather.endpoint import EmbeddedOnce, Serving
    from pytest_gpuinfra.gather.gpu import GpuRuns
    from pytest_gpuinfra.gather.participation import ParticipationRun
    from pytest_gpuinfra.options import Settings


class HostFactory:
    """
    Makes the hosts of one session.

    Args:
        settings: What the command line says.

    Attributes:
        on_progress: Called with a line whenever long work on a host begins something.
        waited_s: Seconds that a host was waited for before its capture, by alias; its endpoint is waited for the less.
    """

    def __init__(self, settings: Settings) -> None:
        self.on_progress: Callable[[str], None] = lambda _: None
        self.waited_s: dict[str, float] = {}
        self._settings = settings

    def host(
        self,
        selected: SelectedHost,
        capture: Capture,
        connect: Callable[[SelectedHost], PipeConnection] | None = None,
    ) -> GpuHost:
        """Make a host of its capture; `connect` gives a connection that is there already."""
        return GpuHost(selected, capture, connect or self.connect, self._serving, self._gpu_runs, self._participation)

    def connect(self, host: SelectedHost, *, shared: bool = True) -> PipeConnection:
        """Make the connection of a host; it opens with its first command, and stays if it is to be shared by more."""
        sudo = self._settings.sudo or host.spec.sudo
        timeout_s = self._settings.connect_timeout_s
        if host.way == "local":
            return LocalConnection(host.alias, sudo=sudo, connect_timeout_s=timeout_s)
        return SshConnection(
            host.alias,
            host.destination,
            config=self._settings.ssh_config,
            sudo=sudo,
            connect_timeout_s=timeout_s,
            shared=shared,
        )

    def tell(self, line: str) -> None:
        """Hand a line on; `on_progress` changes while hosts are captured."""
        self.on_progress(line)

    def close(self) -> None:
        """End the server that came along, if it was started."""
        if "_embedded" in self.__dict__:
            self._embedded.close()

    def _serving(self, host: GpuHost) -> Serving | None:
        """Make the endpoint of a host; None if it has none."""
        spec = host.selected.spec
        address = self._settings.endpoint or spec.endpoint or ""
        recorded = host.selected.gathered.get("endpoint")
        if recorded is None and host.selected.way == "replay":
            address = ""
        elif recorded is not None and not address:
            address = "embedded" if recorded.get("embedded") else recorded["address"]
        if address in ("", "none"):
            return None
        from pytest_gpuinfra.gather.endpoint import Serving, ServingSettings

        settings = ServingSettings(
            address,
            max(0.0, self._settings.wait_s - self.waited_s.get(host.alias, 0.0)),
            (*spec.prompts, *self._settings.prompts),
            self._settings.api_key_env or spec.api_key_env,
            spec.expect.model,
        )
        serving = Serving(
            host.alias,
            settings,
            connection=lambda: host.service_connection,
            local=host.selected.way == "local" and spec.container is None,
            embedded=self._embedded,
            recorded=recorded,
        )
        serving.on_progress = self.tell
        if spec.service is not None and host.selected.way != "replay" and address != "embedded":
            from pytest_gpuinfra.gather.unit_watch import UnitWatch

            serving.unit_state = UnitWatch(lambda: host.service_connection, spec.service)
        return serving

    def _gpu_runs(self, host: GpuHost) -> GpuRuns | None:
        """Make the GPU programs of a host; None if it has no GPU that CUDA could use."""
        recorded = host.selected.gathered.get("gpu")
        if len(host.computing_gpus) < 1 or (host.selected.way == "replay" and recorded is None):
            return None
        from pytest_gpuinfra.gather.gpu import GpuRuns, GpuRunSettings

        arms = ("shm",) if host.expect.peer_access in ("blocked", "any") else ("shm", "p2p")
        return GpuRuns(
            host.alias,
            GpuRunSettings(
                host.computing_gpus,
                arms,
                self._settings.subsets,
                self._settings.python,
                peers=host.expect.peer_access != "blocked",
            ),
            connection=lambda: host.service_connection,
            host_connection=lambda: host.connection,
            baseline=lambda: host.facts.kernel_log,
            boot_id=lambda: host.facts.boot_id,
            recorded=recorded,
            on_progress=self.tell,
            service=None if host.selected.spec.service is None else lambda: host.facts.service,
        )

    def _participation(self, host: GpuHost) -> ParticipationRun | None:
        """Make the sampling of a host's GPUs under load; None if it has no endpoint of its own, or no GPU for it."""
        serving, recorded = host.serving, host.selected.gathered.get("participation")
        if serving is None or (host.selected.way == "replay" and recorded is None):
            return None
        address = serving.settings.address
        gpus = serving.expect.participation.gpus or host.computing_gpus
        if not gpus or (recorded is None and address == "embedded"):
            return None
        from pytest_gpuinfra.gather.endpoint import port_of
        from pytest_gpuinfra.gather.participation import ParticipationRun
        from pytest_gpuinfra.on_target.plan import SamplingPlan

        return ParticipationRun(
            host.alias,
            gpus,
            host.selected.spec.service,
            SamplingPlan(port=port_of(address)),
            load=serving.load,
            connection=lambda: host.connection,
            boot_id=lambda: host.facts.boot_id if serving.held is None or recorded else "",
            recorded=recorded,
            on_progress=self.tell,
        )

    @cached_property
    def _embedded(self) -> EmbeddedOnce:
        """The server that comes along, shared by the hosts of this process."""
        from pytest_gpuinfra.gather.endpoint import EmbeddedOnce

        return EmbeddedOnce()
