"""
The inference endpoint of one host, asked once for each thing that tests want to know.

Answers are kept for the session and written into the recording; a replayed host is judged by them again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from pytest_gpuinfra.connection.protocol import Connection
from pytest_gpuinfra.connection.tunnel import Tunnel
from pytest_gpuinfra.endpoint.address import parse_address, port_in
from pytest_gpuinfra.endpoint.bad_requests import Refusal, send_bad_requests
from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.embedded import EmbeddedServer
from pytest_gpuinfra.endpoint.engine import EngineFacts
from pytest_gpuinfra.endpoint.models import ModelList
from pytest_gpuinfra.endpoint.prompts import Prompt, read_prompts
from pytest_gpuinfra.endpoint.readiness import Readiness, Rung, UnitState
from pytest_gpuinfra.endpoint.smoke import Asked, ask_both_ways, ask_concurrently, ask_prompt, ask_repeatedly
from pytest_gpuinfra.endpoint.speculation import SpeculationRun
from pytest_gpuinfra.endpoint.speculation_run import run_speculation
from pytest_gpuinfra.endpoint.stream import StreamAnswer
from pytest_gpuinfra.endpoint.throughput import Throughput, background_load, measure_throughput
from pytest_gpuinfra.endpoint.transcript import RecordingTransport, ReplayTransport
from pytest_gpuinfra.endpoint.transport import dial, make_transport
from pytest_gpuinfra.errors import EndpointError, FactUnavailable, RecordingError
from pytest_gpuinfra.inventory.model import ModelExpectation

EMBEDDED = "embedded"
REPEATS = 8
STREAMS = 8
CONCURRENT = 32
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """
    What the command line and the inventory say of an endpoint.

    Attributes:
        address: URL as seen from where the service runs; "embedded" for the server that comes along; "" for none.
        wait_s: How long to wait until it is ready, in seconds.
        prompts: Files of prompts beside those that come along.
        api_key_env: Variable of the controller's environment that holds the API key; None for no key.
        expect: What is expected of the model.
    """

    address: str
    wait_s: float = 0.0
    prompts: tuple[str, ...] = ()
    api_key_env: str | None = None
    expect: ModelExpectation = field(default_factory=ModelExpectation)


class EmbeddedOnce:
    """The embedded server, started by the first host that asks for it, ended with the session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: EmbeddedServer | None = None

    def url(self) -> str:
        """
        Give the address of the running server.

        Raises:
            EndpointError: It cannot be started.
        """
        with self._lock:
            if self._server is None:
                server = EmbeddedServer()
                server.start()
                server.wait()
                self._server = server
            return self._server.base_url

    def close(self) -> None:
        """End the server, if it was started."""
        with self._lock:
            if self._server is not None:
                self._server.close()
                self._server = None


class Serving:
    """
    One host's endpoint and everything that was learned of it.

    Args:
        alias: The host's alias.
        settings: What to ask, and what is expected.
        connection: Gives the connection to where the service runs, through which the endpoint is asked.
        local: Whether that is this machine itself, so that it can be asked without.
        embedded: The server that comes along.
        recorded: What an earlier run gathered; None for a live host.
    """

    def __init__(
        self,
        alias: str,
        settings: ServingSettings,
        *,
        connection: Callable[[], Connection],
        local: bool,
        embedded: EmbeddedOnce,
        recorded: Mapping[str, Any] | None = None,
    ) -> None:
        self.alias = alias
        self.settings = settings
        self.expect = settings.expect
        self.unit_state: Callable[[], UnitState | None] | None = None
        self.on_progress: Callable[[str], None] | None = None
        self._connection = connection
        self._local = local
        self._embedded = embedded
        self._recorded = recorded
        self._tunnel: Tunnel | None = None
        self._transport: RecordingTransport | None = None
        self._asked: dict[str, Asked] = {}
        self._models_at: float | None = None
        self._lock = threading.RLock()

    @property
    def held(self) -> Mapping[str, Any] | None:
        """
        What an earlier run gathered of this endpoint; None for a live host.

        Raises:
            EndpointError: It is of another endpoint.
        """
        if self._recorded is None:
            return None
        asked, address = self.settings.address, str(self._recorded["address"])
        embedded = bool(self._recorded.get("embedded"))
        if (asked and embedded != (asked == EMBEDDED)) or (asked and not embedded and not _same(asked, address)):
            raise EndpointError(
                f"{self.alias}: the recording is of another endpoint, {EMBEDDED if embedded else address}, "
                f"and {asked} is asked for",
                remedy="correct `endpoint` in the inventory, or run on the host itself",
            )
        return self._recorded

    @cached_property
    def prompts(self) -> tuple[Prompt, ...]:
        """Questions with known answers, those of the user's files included."""
        return read_prompts(*(Path(file) for file in self.settings.prompts))

    @cached_property
    def endpoint(self) -> InferenceEndpoint:
        """
        The endpoint; nothing is sent by making it.

        Raises:
            EndpointError: There is none, its address is none, or the embedded server does not start.
            UnreachableError: The tunnel to it cannot be had.
        """
        held = self.held
        if held is not None:
            return self._make(held["address"], ReplayTransport(held["exchanges"]), None)
        address = self._embedded.url() if self.settings.address == EMBEDDED else self.settings.address
        url = parse_address(address)
        if self._local or self.settings.address == EMBEDDED:
            self._transport = RecordingTransport(make_transport(url))
            return self._make(address, self._transport, dial(url))
        self._tunnel = Tunnel(self._connection(), url.host, port_in(url))
        self._tunnel.open()
        self._transport = RecordingTransport(make_transport(url, uds=self._tunnel.path))
        return self._make(address, self._transport, self._tunnel.probe)

    def _make(
        self, address: str, transport: httpx.BaseTransport, connect: Callable[[float], None] | None
    ) -> InferenceEndpoint:
        return InferenceEndpoint(
            address,
            model=self.expect.id,
            api_key_env=self.settings.api_key_env if self._recorded is None else None,
            api=self.expect.api,
            transport=transport,
            connect=connect,
        )

    @cached_property
    def readiness(self) -> Readiness:
        """How far the server got in the time that it was given."""
        held = self.held
        if held is not None:
            return _readiness(held["readiness"])
        return self.endpoint.readiness(
            wait_s=self.settings.wait_s,
            model=self.expect.id,
            unit_state=self.unit_state,
            on_progress=self.on_progress,
        )

    def ready(self) -> InferenceEndpoint:
        """
        Give the endpoint once it is ready and warm.

        Raises:
            EndpointError: It is not ready; nothing that it would answer now could be judged.
        """
        with self._lock:
            if not self.readiness.ready:
                missing = self.readiness.missing
                raise EndpointError(
                    f"{self.alias}: {self.readiness.base_url} is not ready: {missing}",
                    remedy="see the readiness check of this host; --gpu-wait=SECONDS waits for it",
                )
            _ = self._warm_up
            return self.endpoint

    @cached_property
    def _warm_up(self) -> bool:
        self.endpoint.warm_up()
        return True

    @cached_property
    def models(self) -> ModelList:
        """The model list."""
        endpoint = self.ready()
        self._models_at = time.time()
        return endpoint.models()

    @property
    def models_at(self) -> float:
        """
        When the model list was asked for, seconds since the epoch by the controller's clock; as it was, in a replay.

        Raises:
            FactUnavailable: The recording does not hold it.
        """
        _ = self.models
        at = self._models_at if self._recorded is None else self._recorded.get("models_at")
        if at is None:
            raise FactUnavailable("time of the model list", "the recording does not hold it", remedy="run on the host")
        return float(at)

    @cached_property
    def engine(self) -> EngineFacts:
        """Which engine it is, and what it tells of itself."""
        return self.ready().engine()

    def asked(self, prompt: Prompt) -> Asked:
        """Ask one question, once a session."""
        with self._lock:
            endpoint = self.ready()
            if prompt.name not in self._asked:
                self._asked[prompt.name] = ask_prompt(endpoint, prompt)
            return self._asked[prompt.name]

    @cached_property
    def repeats(self) -> Sequence[Asked]:
        """The first question, again and again. Shape (REPEATS,)."""
        return ask_repeatedly(self.ready(), self.prompts[0], REPEATS)

    @cached_property
    def concurrent(self) -> Sequence[Asked]:
        """All questions in turn, many at the same time. Shape (CONCURRENT,)."""
        return ask_concurrently(self.ready(), self.prompts, streams=STREAMS, times=CONCURRENT)

    @cached_property
    def both_ways(self) -> tuple[Asked, Asked]:
        """The first question as a whole, and as a stream."""
        return ask_both_ways(self.ready(), self.prompts[0])

    @cached_property
    def refusals(self) -> tuple[Refusal, ...]:
        """What bad requests got."""
        served = self.models.get(self.ready().model_id())
        return send_bad_requests(self.ready(), served.max_model_len if served else None)

    @cached_property
    def after_refusals(self) -> Asked:
        """The first question again, after the bad requests."""
        _ = self.refusals
        return ask_prompt(self.ready(), self.prompts[0])

    @cached_property
    def speculation(self) -> SpeculationRun:
        """Speculation counters before and after requests of our own."""
        return run_speculation(self.ready())

    def throughput(self, streams: int) -> Throughput:
        """
        Measure speed with so many requests at the same time, once a session; a replay gives what was measured then.

        Raises:
            FactUnavailable: The recording holds no such measurement.
        """
        held = self.held
        if held is not None:
            return _throughput(held, streams)
        with self._lock:
            if streams not in self._throughput:
                endpoint = self.ready()
                with self._transport.unrecorded() if self._transport else nullcontext():
                    measured = measure_throughput(endpoint, streams=streams, requests=max(8, 4 * streams))
                self._throughput[streams] = measured
            return self._throughput[streams]

    @cached_property
    def _throughput(self) -> dict[int, Throughput]:
        return {}

    @contextmanager
    def load(self, streams: int) -> Iterator[list[StreamAnswer | EndpointError]]:
        """
        Keep so many requests under way until the block ends; they stay out of the recording.

        Yields:
            A list that grows by one entry a request: its answer, or its failure.

        Raises:
            EndpointError: The endpoint is not ready.
        """
        endpoint, transport = self.ready(), self._transport
        if transport is None:
            raise EndpointError(f"{self.alias}: a recording takes no load", remedy="run against the host itself")
        with transport.unrecorded(), background_load(endpoint, streams=streams) as results:
            yield results

    def gathered(self) -> dict[str, Any] | None:
        """Give what was learned, as plain data for the recording; None if nothing was asked."""
        if self._recorded is not None:
            return dict(self._recorded)
        if "endpoint" not in self.__dict__ or self._transport is None or "readiness" not in self.__dict__:
            return None
        return {
            "address": self.endpoint.base_url,
            "embedded": self.settings.address == EMBEDDED,
            "readiness": asdict(self.readiness),
            "models_at": self._models_at,
            "exchanges": list(self._transport.exchanges),
            "throughput": [asdict(self._throughput[streams]) for streams in sorted(self._throughput)],
        }

    def stop(self) -> None:
        """Cut the requests under way, and those to come; may be called from any thread."""
        endpoint = self.__dict__.get("endpoint")
        if endpoint is not None:
            endpoint.limits.under_way.stop()

    def close(self) -> None:
        """End tunnel and connections."""
        if "endpoint" in self.__dict__:
            self.endpoint.close()
        if self._tunnel is not None:
            self._tunnel.close()


def _same(one: str, other: str) -> bool:
    """Whether two addresses are of one endpoint."""
    return parse_address(one) == parse_address(other)


def port_of(address: str) -> int | None:
    """Give the port of an endpoint on the host itself; None for one elsewhere, such as behind a proxy of the site."""
    try:
        url = parse_address(address)
    except EndpointError:
        return None  # whoever asks the endpoint says so
    return port_in(url) if url.host in _LOOPBACK else None


def _throughput(recorded: Mapping[str, Any], streams: int) -> Throughput:
    """Give the speed that was measured when a recording was made: a replay has none of its own."""
    for data in recorded.get("throughput", ()):
        try:
            lists = ("failures", "first_token_s", "stream_tokens_per_s")
            measured = Throughput(**{**data, **{name: tuple(data[name]) for name in lists}})
        except (KeyError, TypeError) as error:
            raise RecordingError(f"the recorded throughput is damaged: {type(error).__name__} {error}") from None
        if measured.streams == streams:
            return measured
    raise FactUnavailable(
        f"throughput with {streams} streams", "the recording holds no such measurement", remedy="run on the host itself"
    )


def _readiness(data: Mapping[str, Any]) -> Readiness:
    """Rebuild the readiness from a recording."""
    try:
        return Readiness(
            **{
                **data,
                "rungs": tuple(Rung(**rung) for rung in data["rungs"]),
                "models": tuple(data["models"]),
                "history": tuple(data["history"]),
                "unit": UnitState(**data["unit"]) if data["unit"] else None,
            }
        )
    except (KeyError, TypeError) as error:
        raise RecordingError(f"the recorded readiness is damaged: {type(error).__name__} {error}") from None
