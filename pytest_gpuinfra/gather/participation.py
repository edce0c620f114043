"""
Participation of a host's GPUs in its service: sampled once a session, while a load of our own runs.

What the sampler said is written into the recording line by line, with what became of the load;
a replayed host is judged by them again, as long as they belong to the same boot.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pytest_gpuinfra.connection.protocol import Connection
from pytest_gpuinfra.endpoint.stream import StreamAnswer
from pytest_gpuinfra.errors import EndpointError, FactUnavailable, GpuInfraError, ProbeError
from pytest_gpuinfra.gather.event_lines import EventLines
from pytest_gpuinfra.on_target.bundle import packed
from pytest_gpuinfra.on_target.plan import SamplingPlan
from pytest_gpuinfra.subjects.participation.judge import LoadOutcome
from pytest_gpuinfra.subjects.participation.samples import Participation, parse_participation

STREAMS = 4
_FIRST_ANSWER_S = 20.0
_ALLOWANCE_S = 60.0

Load = Callable[[int], AbstractContextManager[list[StreamAnswer | EndpointError]]]


@dataclass
class ParticipationRun:
    """
    The sampling of one host, taken on first use.

    Attributes:
        alias: The host's alias.
        gpus: PCI addresses of the GPUs that the service is to run on.
        unit: Its unit with its suffix; None if the inventory names none.
        plan: What the sampler is to do.
        load: Keeps so many requests under way while a block runs.
        connection: Gives the connection to the host, which sees every process.
        boot_id: Gives the boot that the facts belong to.
        recorded: What an earlier run said; None for a live host.
        on_progress: Called with a line when it begins.
    """

    alias: str
    gpus: tuple[str, ...]
    unit: str | None
    plan: SamplingPlan
    load: Load
    connection: Callable[[], Connection]
    boot_id: Callable[[], str]
    recorded: Mapping[str, Any] | None = None
    on_progress: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._said: Mapping[str, Any] | None = self.recorded

    @property
    def said(self) -> Mapping[str, Any]:
        """
        What the sampler wrote, and what became of the load.

        Raises:
            EndpointError: The endpoint is not ready.
        """
        with self._lock:
            if self._said is None:
                self._said = self._sample()
            return self._said

    @cached_property
    def seen(self) -> Participation:
        """
        What every GPU did.

        Raises:
            FactUnavailable: Nothing could be read, or it belongs to another boot.
            ProbeError, EndpointError: The sampler did not come to its end, or the endpoint is not ready.
        """
        said = self.said
        if said.get("error"):
            raise ProbeError(f"{self.alias}: sampler: {said['error']}", remedy=said.get("remedy", ""))
        seen = parse_participation(said["lines"], source=f"{self.alias}: sampler")
        if seen.boot_id != self.boot_id():
            raise FactUnavailable(
                f"{self.alias}: sampler",
                f"it belongs to boot {seen.boot_id}, the facts to boot {self.boot_id()}",
                remedy="run on the host itself",
            )
        return seen

    @cached_property
    def outcome(self) -> LoadOutcome:
        """What became of the load."""
        load = self.said["load"]
        return LoadOutcome(load["streams"], load["answered"], tuple(load["failures"]))

    def gathered(self) -> dict[str, Any] | None:
        """Give what was sampled, as plain data for the recording; None if nothing was."""
        return dict(self._said) if self._said is not None else None

    def _sample(self) -> dict[str, Any]:
        """Run the sampler under load; gives what it said, or why it said nothing."""
        output = EventLines(self.alias, self.on_progress)
        said: dict[str, Any] = {"lines": output.lines}
        self.on_progress(f"{self.alias}: GPUs sampled for {self.plan.duration_s:g} s under {STREAMS} requests at once")
        with self.load(STREAMS) as results:
            until = time.monotonic() + _FIRST_ANSWER_S
            while not results and time.monotonic() < until:
                time.sleep(0.05)
            try:
                result = self.connection().run_program(
                    packed("sampler"),
                    self.plan.document(),
                    timeout_s=self.plan.duration_s + _ALLOWANCE_S,
                    on_output=output.feed,
                    site=False,
                    keep_output=False,
                )
                if not output.lines:
                    why = result.stderr.strip()[-600:]
                    said["error"] = f"it ended with status {result.exit_status} and said nothing: {why}"
            except GpuInfraError as error:
                said |= {"error": error.reason, "remedy": error.remedy}
        failures = [one.reason for one in results if isinstance(one, EndpointError)]
        said["load"] = {"streams": STREAMS, "answered": len(results) - len(failures), "failures": failures[:20]}
        return said
