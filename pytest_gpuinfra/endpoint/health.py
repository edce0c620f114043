"""
Answers of a health route: what each engine means by its status and body.

Source: SGLang 0.5 http_server.py (/health: empty bodies), llama.cpp tools/server (503 "Loading model",
and the older "no slot available"), TGI 3 router (503 "unhealthy"), vLLM 0.32 (empty 200),
transformers serve 5.24; cases C087 to C093.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_gpuinfra.endpoint.error_body import error_in
from pytest_gpuinfra.endpoint.json_text import read_json
from pytest_gpuinfra.masking import first_of

HealthState: TypeAlias = Literal[
    "ok",
    "busy",
    "starting",
    "loading",
    "unhealthy",
    "unauthorized",
    "throttled",
    "absent",
    "redirect",
    "foreign",
]
"""
ok: ready by its own word. busy: ready, all slots taken. starting: 503 without a word (SGLang, gateways).
loading: 503, and says that the model is loading. unhealthy: says so, or any other 5xx.
unauthorized: 401 or 403. throttled: 429. absent: no such route on this server. redirect: 3xx.
foreign: 200 with a web page, so something else than an inference server answers.
"""

ALIVE: frozenset[HealthState] = frozenset({"ok", "busy"})
"""States that pass the health rung."""


@dataclass(frozen=True, slots=True)
class Health:
    """
    One answer of a health route.

    Attributes:
        state: What it means.
        status: HTTP status.
        body: Body, verbatim, at most 2,000 characters; "" is usual and good (SGLang, vLLM).
        error: The server's own word or message; None if it gave none.
        error_type: Its kind of error; None if it gave none.
    """

    state: HealthState
    status: int
    body: str = ""
    error: str | None = None
    error_type: str | None = None

    def __str__(self) -> str:
        said = f" {self.error or first_of(' '.join(self.body.split()), 120)!r}" if self.body else " with an empty body"
        return f"{self.status}{said} ({self.state})"


def parse_health(status: int, body: str, content_type: str | None = None) -> Health:
    """
    Read one answer of /health.

    Args:
        status: HTTP status.
        body: Body; may be empty.
        content_type: Content-Type header; None if there was none, which is usual with an empty body.
    """
    text = body.strip()
    word, error_type = _said(text)
    return Health(_state(status, text, content_type, word), status, body[:2000], word, error_type)


def _said(text: str) -> tuple[str | None, str | None]:
    try:
        body = read_json(text)
    except ValueError:
        return (text[:80] if text and len(text) <= 80 and "<" not in text else None), None
    error = error_in(body)
    if error:
        return error.message, error.type
    if isinstance(body, dict) and isinstance(body.get("status"), str):
        return body["status"], None
    return None, None


def _state(status: int, text: str, content_type: str | None, word: str | None) -> HealthState:
    said = (word or "").lower()
    by_status: dict[int, HealthState] = {
        401: "unauthorized",
        403: "unauthorized",
        404: "absent",
        405: "absent",
        501: "absent",
        429: "throttled",
    }
    if status in by_status:
        return by_status[status]
    if 300 <= status < 400:
        return "redirect"
    if "loading" in said:
        return "loading"
    if "no slot available" in said:
        return "busy"
    if status >= 400:
        waiting = status in (502, 503, 504) and (not text or "<html" in text.lower() or "starting" in said)
        return "starting" if waiting else "unhealthy"
    if _is_page(text, content_type):
        return "foreign"
    return "unhealthy" if said in ("unhealthy", "error", "down", "fail", "failed") else "ok"


def _is_page(text: str, content_type: str | None) -> bool:
    head = text[:200].lower()
    return "text/html" in (content_type or "").lower() or head.startswith(("<!doctype", "<html"))
