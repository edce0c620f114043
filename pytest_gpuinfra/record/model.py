"""
The shape of recordings: models that a document is held against before anything in it is used, and their JSON Schema.

Readings stay raw, and lines of the GPU programs stay text: their readers refuse what they do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Required

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from pytest_gpuinfra.endpoint.readiness import Readiness
from pytest_gpuinfra.inventory.groups import CollectiveExpectation
from pytest_gpuinfra.inventory.inventory import endpoint_url

FORMAT = "pytest-gpuinfra recording"
VERSION = 1
_CLOSED = ConfigDict(extra="forbid", allow_inf_nan=False)
_OPEN = ConfigDict(extra="allow", allow_inf_nan=False)


def _needs(key: str, *names: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Check that a part of some kind holds what its readers take for granted: "command:argv" where `key` is command."""

    def check(data: Mapping[str, Any]) -> Mapping[str, Any]:
        for rule in names:
            value, _, name = rule.partition(":")
            if data[key] == value and name not in data:
                raise ValueError(f"{key} {value!r} without {name!r}")
        return data

    return check


class Reading(TypedDict, total=False):
    """One reading of one source on the target."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    t: Annotated[str, Field(description="text, as read")]
    e: Annotated[str, Field(description="why there is none")]
    x: Annotated[int | None, Field(description="exit status of a command")]
    s: Annotated[str, Field(description="its standard error")]
    cut: Annotated[int, Field(description="bytes dropped of a text that was too long")]


class Item(TypedDict, total=False):
    """One item of a request, as the probe takes it."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]
    name: Required[str]
    kind: Required[str]
    path: str
    argv: list[str]


_FILES = ("file", "hex", "link", "list", "stat", "statvfs", "sample")
AnyItem = Annotated[Item, AfterValidator(_needs("kind", "command:argv", *(f"{kind}:path" for kind in _FILES)))]


class Request(TypedDict, total=False):
    """One request, as the probe takes it."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]
    id: Required[str]
    kind: Required[str]
    items: list[AnyItem]
    root: str
    unit: str
    enter: list[str]
    requests: list[AnyRequest]


AnyRequest = Annotated[Request, AfterValidator(_needs("kind", "service:unit", "inside:enter", "inside:requests"))]


class CaptureData(BaseModel):
    """What one host answered."""

    model_config = _CLOSED
    reached_by: str = Field(description="how, in a person's words: ssh root@node-a")
    taken_at: str = Field(description="UTC, ISO 8601, by the controller's clock")
    took_s: float
    round_trips: int
    python: str = Field(description="version of the target's Python")
    uid: int | None = Field(description="user id there")
    error: tuple[str, str, str] | None = Field(description="class, reason, remedy, where the host gave no answer")
    requests: tuple[AnyRequest, ...]
    answers: dict[str, dict[str, dict[str, Reading]]] = Field(description="by request id, entry, name")


class Program(TypedDict, total=False):
    """One run of one GPU program."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    lines: Required[Annotated[list[str], Field(description="its events, line by line")]]
    error: str
    remedy: str
    kmsg: str | None
    log_reason: str
    stand_in_allowed: bool


class Exchange(TypedDict, total=False):
    """One exchange with an endpoint; see endpoint/transcript.py."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    method: Required[str]
    path: Required[str]
    request: Required[str]
    took_s: float
    status: Annotated[int, Field(ge=100, le=999)]
    headers: dict[str, str]
    pieces: list[str]
    failed: str
    reason: str


def _answered(data: Exchange) -> Exchange:
    names = ("status", "headers", "pieces") if "status" in data else ("failed", "reason")
    missing = [name for name in names if name not in data]
    if missing:
        raise ValueError(f"an exchange without {missing[0]!r}")
    return data


def _is_readiness(data: dict[str, Any]) -> dict[str, Any]:
    _READINESS.validate_python(data)
    return data


_READINESS = TypeAdapter(Readiness)


class Speed(TypedDict):
    """One measurement of an endpoint's speed; see endpoint/throughput.py."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    streams: int
    requests: int
    failures: list[str]
    tokens: int
    counted: bool
    wall_s: float
    first_token_s: list[float]
    stream_tokens_per_s: list[float]


class Endpoint(TypedDict, total=False):
    """What was learned of the inference endpoint."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    address: Required[Annotated[str, Field(pattern="^https?://"), AfterValidator(endpoint_url)]]
    embedded: bool
    readiness: Required[Annotated[dict[str, Any], AfterValidator(_is_readiness)]]
    models_at: float | None
    exchanges: Required[list[Annotated[Exchange, AfterValidator(_answered)]]]
    throughput: list[Speed]


class Load(TypedDict):
    """What became of the requests during which GPUs were sampled."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    streams: int
    answered: int
    failures: list[str]


class Sampling(TypedDict, total=False):
    """GPUs sampled under load."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    lines: Required[list[str]]
    load: Required[Load]
    error: str
    remedy: str


class HostRun(TypedDict, total=False):
    """One host's part of a program that runs on several."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    lines: Required[list[str]]
    error: str


def _is_collective(data: dict[str, Any]) -> dict[str, Any]:
    CollectiveExpectation.model_validate(data)
    return data


class Group(TypedDict):
    """A group of hosts of which this one is the first."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    expect: Annotated[dict[str, Any], AfterValidator(_is_collective), Field(description="what is expected of it")]
    runs: Annotated[dict[str, dict[str, HostRun]], Field(description="every host's events by run and alias")]


class Gathered(TypedDict, total=False):
    """What was gathered after the capture."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    gpu: Annotated[dict[Literal["cuda", "torch"], Program], Field(description="the GPU programs' events")]
    endpoint: Annotated[Endpoint, Field(description="its readiness and every exchange")]
    participation: Sampling
    collectives: Annotated[dict[str, Group], Field(description="groups of which it is the first host, by name")]


class HostData(BaseModel):
    """One host of a recording."""

    model_config = _CLOSED
    spec: dict[str, Any] = Field(description="how it was declared: a host of the inventory's schema")
    capture: CaptureData
    gathered: Gathered


class ResultData(TypedDict):
    """How one item ended."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    id: Annotated[str, Field(description="pytest's node id")]
    host: Annotated[str, Field(description="alias")]
    outcome: Literal["passed", "failed", "error", "skipped"]
    message: Annotated[str, Field(description="what pytest showed; empty for a pass")]
    took_s: float


class Cut(TypedDict):
    """What was cut out for the recording's size."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    where: Annotated[str, Field(description="path in this document")]
    characters: int
    kept: int


class RunData(BaseModel):
    """A recording but for what its hosts hold."""

    model_config = _OPEN
    plugin: str = Field(description="version of pytest-gpuinfra that wrote it")
    started_at: str = Field(description="UTC, ISO 8601")
    order: list[str] = Field(description="aliases in the run's order")
    results: list[Any]
    exit_status: int | None = Field(
        None, description="pytest's own: 0 or 1 where the run came to its end, 2 to 5 where it did not"
    )
    narrowed: dict[str, str] = Field(
        default_factory=dict, description='which part of all checks was run, by alias: "8 of 425 checks (-k xid)"'
    )
    trimmed: list[Cut] = Field(default_factory=list, description="what was cut out for the recording's size")
    hosts: dict[str, Any]


class Document(RunData):
    """A recording, whole."""

    model_config = _CLOSED
    format: Literal["pytest-gpuinfra recording"]
    version: Literal[1]
    hosts: dict[str, HostData]
    results: list[ResultData]


def recording_schema() -> dict[str, Any]:
    """Give the JSON Schema of recordings."""
    schema = Document.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": FORMAT}


def fault_of(error: ValidationError) -> str:
    """Put the first of pydantic's errors into words: path and reason."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"] if part != "[key]")
    reason = str(first["msg"]).removeprefix("Value error, ")
    return f"{path.lstrip('.')}: {reason[:1].lower()}{reason[1:]}"
