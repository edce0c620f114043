"""
Which engine serves, and what it tells of itself.

An unknown engine still gets everything that the OpenAI API gives; only the engine's own account is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from pytest_gpuinfra.endpoint.failures import BrokenAnswer, NoAnswer
from pytest_gpuinfra.endpoint.json_text import read_json
from pytest_gpuinfra.endpoint.metrics import PATHS, Metrics, pick_metrics
from pytest_gpuinfra.endpoint.server_info import (
    ServerInfo,
    parse_llamacpp_info,
    parse_sglang_info,
    parse_tgi_info,
    parse_version,
)
from pytest_gpuinfra.errors import ParseError

if TYPE_CHECKING:
    from pytest_gpuinfra.endpoint.client import InferenceEndpoint

EngineName: TypeAlias = Literal[
    "SGLang", "vLLM", "llama.cpp", "transformers serve", "TGI", "TensorRT-LLM", "OpenAI-compatible", "unknown"
]

_BY_METRICS: tuple[tuple[str, EngineName], ...] = (
    ("sglang:", "SGLang"),
    ("vllm:", "vLLM"),
    ("llamacpp:", "llama.cpp"),
    ("tgi_", "TGI"),
    ("trtllm_", "TensorRT-LLM"),
)
_BY_OWNER: dict[str, EngineName] = {
    "sglang": "SGLang",
    "vllm": "vLLM",
    "llamacpp": "llama.cpp",
    "tensorrt_llm": "TensorRT-LLM",
}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """
    The engine and its own account.

    Attributes:
        name: Engine; "OpenAI-compatible" where a model list is all that is known.
        evidence: What showed it ("owned_by", "/metrics", ...); "" if nothing did.
        info: What it tells of itself; all None where it tells nothing.
        metrics_path: Where its metrics text is; None if it has none.
    """

    name: EngineName
    evidence: str = ""
    info: ServerInfo = field(default_factory=ServerInfo)
    metrics_path: str | None = None

    def __str__(self) -> str:
        return self.name + (f" {self.info.version}" if self.info.version else "")


def detect_engine(
    *, models: str | None = None, metrics: Metrics | None = None, routes: frozenset[str] = frozenset()
) -> tuple[EngineName, str]:
    """
    Tell the engine from what it answered.

    Args:
        models: Body of /v1/models; None if it gave none.
        metrics: Its metrics; None if it has none.
        routes: Those of /server_info, /props, /info and /version that answered 200 with JSON of that engine.

    Returns:
        The engine, and what showed it.
    """
    for prefix, name in _BY_METRICS:
        if metrics is not None and metrics.has_prefix(prefix):
            return name, f"series {prefix}* in {metrics.path}"
    entries = _entries(models)
    for entry in entries:
        owner = entry.get("owned_by")
        if isinstance(owner, str) and owner in _BY_OWNER:
            return _BY_OWNER[owner], f"owned_by {owner!r} in /v1/models"
    by_route: tuple[tuple[str, EngineName], ...] = (
        ("/server_info", "SGLang"),
        ("/props", "llama.cpp"),
        ("/info", "TGI"),
    )
    for route, name in by_route:
        if route in routes:
            return name, f"{route} answers as {name} does"
    if any(isinstance(entry.get("status"), dict) and entry.get("created") == 0 for entry in entries):
        return "transformers serve", "created 0 and a status in /v1/models"
    return ("OpenAI-compatible", "/v1/models") if entries else ("unknown", "")


def read_engine(endpoint: InferenceEndpoint) -> EngineFacts:
    """Ask the routes by which engines are known; a route that fails tells nothing, and raises nothing."""
    bodies: dict[str, str] = {}
    for path in (
        "/v1/models",
        *PATHS,
        "/server_info",
        "/get_server_info",
        "/props",
        "/slots",
        "/info",
        "/version",
    ):
        if path == "/get_server_info" and "/server_info" in bodies:
            continue
        try:
            answer = endpoint.get(path, total_s=10.0)
        except (NoAnswer, BrokenAnswer):
            continue
        if answer.status == 200:
            bodies[path] = answer.text
    return engine_from(bodies)


def engine_from(bodies: dict[str, str]) -> EngineFacts:
    """
    Tell the engine and its account from recorded bodies.

    Args:
        bodies: Body by path, of those that answered 200.
    """
    metrics = pick_metrics((path, 200, bodies[path]) for path in PATHS if path in bodies)
    infos: dict[str, ServerInfo] = {}
    sglang = bodies.get("/server_info") or bodies.get("/get_server_info")
    readers: tuple[tuple[str, Callable[[], ServerInfo]], ...] = (
        ("/server_info", lambda: parse_sglang_info(sglang or "")),
        (
            "/props",
            lambda: parse_llamacpp_info(bodies["/props"], bodies.get("/slots"), bodies.get("/v1/models")),
        ),
        ("/info", lambda: parse_tgi_info(bodies["/info"])),
        ("/version", lambda: parse_version(bodies["/version"])),
    )
    for path, read in readers:
        if path not in bodies and not (path == "/server_info" and sglang):
            continue
        try:
            infos[path] = read()
        except ParseError:
            continue  # a route of the same name on another engine
    name, evidence = detect_engine(models=bodies.get("/v1/models"), metrics=metrics, routes=frozenset(infos))
    route = {"SGLang": "/server_info", "llama.cpp": "/props", "TGI": "/info"}.get(name, "/version")
    info = infos.get(route, ServerInfo())
    if name == "vLLM" and metrics is not None:  # it has these series only while it speculates
        info = replace(info, speculates=bool(metrics.named("vllm:spec_decode_num_drafts_total")))
    return EngineFacts(name, evidence, info, metrics.path if metrics else None)


def _entries(models: str | None) -> list[dict[str, object]]:
    try:
        body = read_json(models or "null")
    except ValueError:
        return []
    data = body.get("data") if isinstance(body, dict) else None
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
