"""
The model list: who is served, and how long a context may be.

Source: /v1/models of vLLM 0.32 and SGLang 0.5 ("max_model_len"), llama.cpp ("meta.n_ctx", of one slot),
transformers serve 5.24 (neither, created 0), other proxies ("context_window"); cases C089 and C094.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pytest_gpuinfra.endpoint.json_text import read_json
from pytest_gpuinfra.errors import ParseError

MAX_MODELS = 10_000
MAX_ID = 500


@dataclass(frozen=True, slots=True)
class ServedModel:
    """
    One entry of a model list.

    Attributes:
        id: What a request must name.
        max_model_len: Longest context in tokens, prompt and answer together; None if the list does not tell.
        max_model_len_source: Field that it came from; None if it is not told.
        created: Unix time, in the server's own unit (seconds, if it is right); None if it is missing.
        owned_by: Server's own word for itself ("sglang", "vllm", "llamacpp", "local"); None if missing.
        root: Path or name that the id stands for; None if missing.
    """

    id: str
    max_model_len: int | None = None
    max_model_len_source: str | None = None
    created: float | None = None
    owned_by: str | None = None
    root: str | None = None


@dataclass(frozen=True, slots=True)
class ModelList:
    """
    Answer of /v1/models.

    Attributes:
        models: Entries, in the server's order; may be empty.
        raw: Body, verbatim.
    """

    models: tuple[ServedModel, ...]
    raw: str = ""

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids, in the server's order."""
        return tuple(model.id for model in self.models)

    def get(self, id: str) -> ServedModel | None:
        """Give the model of this id; None if it is not listed."""
        return next((model for model in self.models if model.id == id), None)


def parse_models(text: str) -> ModelList:
    """
    Read the body of /v1/models.

    Raises:
        ParseError: No JSON, no list of models in it, or an entry without an id.
    """
    source = "/v1/models"
    try:
        body = read_json(text)
    except ValueError as error:
        raise ParseError(source, 0, text, f"no JSON ({error})") from None
    entries = body.get("data") if isinstance(body, dict) else body
    if not isinstance(entries, list):
        raise ParseError(source, 0, text, 'no list under "data"')
    if len(entries) > MAX_MODELS:
        raise ParseError(source, 0, text, f"{len(entries)} models in it")
    return ModelList(tuple(_model(entry, source) for entry in entries), text)


def _model(entry: object, source: str) -> ServedModel:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or len(entry["id"]) > MAX_ID:
        raise ParseError(source, 0, json.dumps(entry), "an entry without an id that could be one")
    length, where = _context(entry)
    created = entry.get("created")
    return ServedModel(
        id=entry["id"],
        max_model_len=length,
        max_model_len_source=where,
        created=float(created) if isinstance(created, int | float) and not isinstance(created, bool) else None,
        owned_by=_text(entry.get("owned_by")),
        root=_text(entry.get("root")),
    )


def _context(entry: dict[str, object]) -> tuple[int | None, str | None]:
    meta = entry.get("meta")
    places = [("max_model_len", entry), ("context_length", entry), ("context_window", entry)]
    if isinstance(meta, dict):
        places.insert(1, ("n_ctx", meta))
    for name, fields in places:
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value, name if fields is entry else f"meta.{name}"
    return None, None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
