"""One host of a run, as tests see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.capture.evidence import Evidence, evidence
from pytest_gpuinfra.capture.selected import SelectedHost
from pytest_gpuinfra.connection.nested import connect_container
from pytest_gpuinfra.connection.protocol import CommandResult, Connection, OnOutput
from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError
from pytest_gpuinfra.host.container import GpuContainer, observed_testinfra
from pytest_gpuinfra.host.facts import HostFacts
from pytest_gpuinfra.inventory.inventory import Expectation, container_of
from pytest_gpuinfra.subjects.pci.function import NVIDIA

if TYPE_CHECKING:
    import testinfra.host  # type: ignore[import-untyped]

    from pytest_gpuinfra.gather.endpoint import Serving
    from pytest_gpuinfra.gather.gpu import GpuRuns
    from pytest_gpuinfra.gather.groups import HostCollective
    from pytest_gpuinfra.gather.participation import ParticipationRun


class GpuHost:
    """
    One host: what is expected of it, what was seen there, and a way to run more there.

    Attributes:
        alias: Its name in ids and reports.
        expect: What the inventory declares.
        expectation_from: File that declares it; "" if nothing is expected.
        capture: The raw answers behind the facts.
        serving: Its inference endpoint; None if it has none.
        baseline_areas: Areas of facts that an earlier recording holds of it; () without a baseline.
        gpu_runs: The GPU programs on it; None if it has no GPU that CUDA could use.
        participation: What its GPUs do under a load on its endpoint; None if it lacks either.
        collectives: Groups of hosts whose items it carries: those of which it is the first host in this run.
        observe: Called with the evidence that the test which runs now observes.
        shown: Raw text made of the facts so far, by fixture, kind and label of the item's target (observed.py).
        on_facts: Called when facts are about to be parsed, of which a run of many hosts keeps few.
    """

    def __init__(
        self,
        selected: SelectedHost,
        capture: Capture,
        connect: Callable[[SelectedHost], Connection],
        serving: Callable[[GpuHost], Serving | None] = lambda _: None,
        gpu_runs: Callable[[GpuHost], GpuRuns | None] = lambda _: None,
        participation: Callable[[GpuHost], ParticipationRun | None] = lambda _: None,
    ) -> None:
        self.alias = selected.alias
        self.expect: Expectation = selected.spec.expect
        self.expectation_from = selected.expectation_from
        self.selected = selected
        self.capture = capture
        self._facts: HostFacts | None = None
        self.baseline_areas: tuple[str, ...] = ()
        self.shown: dict[tuple[str, str, str], tuple[Evidence, ...]] = {}
        self.observe: Callable[[Evidence], None] = lambda _: None
        self.on_facts: Callable[[GpuHost], None] = lambda _: None
        self._connect = connect
        self._connection: Connection | None = None
        self.serving = serving(self)
        self.gpu_runs = gpu_runs(self)
        self.participation = participation(self)
        self.collectives: tuple[HostCollective, ...] = ()

    @property
    def facts(self) -> HostFacts:
        """What was seen, parsed on first use."""
        if self._facts is None:
            self._facts = HostFacts(self.capture, self.selected.spec)
            self.on_facts(self)
        return self._facts

    @property
    def has_facts(self) -> bool:
        """Whether parsed facts are held."""
        return self._facts is not None

    def release(self) -> None:
        """Drop what was parsed; it is parsed anew when it is used again."""
        self._facts = None
        self.shown.clear()
        container: GpuContainer | None = self.__dict__.get("container")
        if container is None or not container.connected:
            self.__dict__.pop("container", None)

    @cached_property
    def computing_gpus(self) -> tuple[str, ...]:
        """
        PCI addresses of the GPUs that CUDA is to use: expected on nvidia, or, where none is expected, seen there.

        A row of the inventory that names no driver counts unless its GPU is seen to be another vendor's, or to be on
        another driver. Shape (n,), in the inventory's order, else by address.
        """
        if self.expect.devices:
            rows = [(address, row.driver) for row in self.expect.devices for address in row.pci]
            return tuple(address for address, driver in rows if not self.elsewhere(address, driver))
        return tuple(address for address, driver in self.observed_gpus.items() if driver == "nvidia")

    def elsewhere(self, address: str, driver: str | None) -> str:
        """
        Say why the nvidia driver is not to show a GPU; "" if it is.

        Args:
            address: PCI address of the GPU.
            driver: Driver that the inventory declares for it; None for none: then what it is bound to decides.
        """
        if driver is not None:
            return "" if driver == "nvidia" else f"it is to be on {driver}"
        try:
            function = self.facts.pci_functions[address]
            vendor, bound = function.vendor_id, function.driver
        except GpuInfraError:
            return ""
        if bound not in (None, "nvidia"):
            return f"it is on {bound}"
        return "" if vendor == NVIDIA else f"it is no NVIDIA GPU (vendor {vendor:#06x})"

    @cached_property
    def observed_gpus(self) -> Mapping[str, str | None]:
        """
        Drivers of the GPUs that were seen, by PCI address; "unknown" for one that cannot be read.

        Empty if none was seen, or if no function can be: what cannot be read, `PciFunctions.unread` names.
        """
        try:
            gpus = self.facts.pci_functions.gpus
        except GpuInfraError:
            return {}
        found: dict[str, str | None] = {}
        for gpu in gpus:
            try:
                found[gpu.address] = gpu.driver
            except GpuInfraError:
                found[gpu.address] = "unknown"
        return found

    def gathered(self) -> dict[str, Any]:
        """Give what was gathered after the capture, as plain data for the recording."""
        parts = {"endpoint": self.serving, "gpu": self.gpu_runs, "participation": self.participation}
        found = {name: part.gathered() for name, part in parts.items() if part is not None}
        groups = {group.name: data for group in self.collectives if (data := group.gathered())}
        return {name: data for name, data in {**found, "collectives": groups}.items() if data}

    @property
    def connection(self) -> Connection:
        """
        The connection to it, opened on first use.

        Raises:
            FactUnavailable: The host is replayed from a recording: nothing can be run there.
        """
        if self.selected.way == "replay":
            raise FactUnavailable(
                self.alias,
                "a recording answers only what it holds; nothing can be run on it",
                remedy="run against the host itself",
            )
        if self._connection is None:
            self._connection = self._connect(self.selected)
        return self._connection

    @cached_property
    def container(self) -> GpuContainer | None:
        """The container that the inventory names; None if it names none."""
        container = container_of(self.selected.spec)
        if container is None:
            return None
        return GpuContainer(
            self.alias,
            container,
            self.facts.container,
            lambda: connect_container(self.connection, container),
            self._observed,
        )

    @property
    def service_connection(self) -> Connection:
        """
        The connection to where the service runs: into the container if there is one, else to the host.

        Raises:
            FactUnavailable: The host is replayed.
        """
        return self.connection if self.container is None else self.container.connection

    @cached_property
    def testinfra(self) -> testinfra.host.Host:
        """testinfra's `Host` on it: service, file, process, package, sysctl, socket, mount_point, ..."""
        return observed_testinfra(self.connection, self._observed)

    def _observed(self, piece: Evidence) -> None:
        """Hand evidence to the test that runs now; `observe` is another function for each."""
        self.observe(piece)

    def run(
        self,
        *argv: str,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        on_output: OnOutput | None = None,
    ) -> CommandResult:
        """
        Run a command there; its output becomes evidence of the test that runs.

        Raises:
            FactUnavailable: The host is replayed.
            CommandTimeout: The deadline passed; the command and its process group were killed.
            UnreachableError, ProbeError: There is no session with the host, or it broke off.
        """
        result = self.connection.run(argv, stdin=stdin, timeout_s=timeout_s, env=env, on_output=on_output)
        self.observe(
            evidence(
                f"{self.alias}$ {' '.join(argv)}",
                f"{result.stdout}{result.stderr}\nexit status {result.exit_status}",
            )
        )
        return result

    def close(self) -> None:
        """End the connection and what runs over it, if there is any."""
        if self.serving is not None:
            self.serving.close()
        if "container" in self.__dict__ and self.container is not None:
            self.container.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __repr__(self) -> str:
        return f"GpuHost({self.alias!r}, {self.selected.reached_by!r})"


def aliases_text(aliases: Sequence[str], limit: int = 4) -> str:
    """Name some hosts, and count the rest."""
    shown = ", ".join(aliases[:limit])
    return shown if len(aliases) <= limit else f"{shown} and {len(aliases) - limit} more"
