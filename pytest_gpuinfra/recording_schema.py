"""The JSON Schema of recordings."""

from __future__ import annotations

from typing import Any

from pytest_gpuinfra.recording import FORMAT, VERSION


def _object(properties: dict[str, Any], *, optional: tuple[str, ...] = (), description: str = "") -> dict[str, Any]:
    return {
        "type": "object",
        **({"description": description} if description else {}),
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def recording_schema() -> dict[str, Any]:
    """Give the schema; answers and what was gathered are open in it: their readers refuse what they do not know."""
    reading = _object(
        {
            "t": _text("text, as read"),
            "e": _text("why there is none"),
            "x": {"type": ["integer", "null"], "description": "exit status of a command"},
            "s": _text("its standard error"),
        },
        optional=("t", "e", "x", "s"),
        description="one reading of one source on the target",
    )
    tree = {
        "type": "object",
        "additionalProperties": {"type": "object", "additionalProperties": {"$ref": "#/$defs/reading"}},
    }
    capture = _object(
        {
            "reached_by": _text("how, in a person's words: ssh root@node-a"),
            "taken_at": _text("UTC, ISO 8601, by the controller's clock"),
            "took_s": {"type": "number"},
            "round_trips": {"type": "integer"},
            "python": _text("version of the target's Python"),
            "uid": {"type": ["integer", "null"], "description": "user id there"},
            "error": {
                "type": ["array", "null"],
                "items": {"type": "string"},
                "description": "class, reason, remedy, where the host gave no answer",
            },
            "requests": {"type": "array", "items": {"type": "object", "required": ["id", "kind"]}},
            "answers": {"type": "object", "additionalProperties": tree, "description": "by request id, entry, name"},
        }
    )
    host = _object(
        {
            "spec": {"type": "object", "description": "how it was declared: a host of the inventory's schema"},
            "capture": capture,
            "gathered": {
                "type": "object",
                "description": "what was gathered after the capture: 'gpu' (events of the GPU programs, line by line), "
                "'endpoint' (its readiness and every exchange), 'collectives' (groups of which it is the first host: "
                "what is expected, and every host's events by run)",
            },
        }
    )
    result = _object(
        {
            "id": _text("pytest's node id"),
            "host": _text("alias"),
            "outcome": {"enum": ["passed", "failed", "error", "skipped"]},
            "message": _text("what pytest showed; empty for a pass"),
            "took_s": {"type": "number"},
        }
    )
    cut = _object(
        {"where": _text("path in this document"), "characters": {"type": "integer"}, "kept": {"type": "integer"}}
    )
    document = _object(
        {
            "format": {"const": FORMAT},
            "version": {"const": VERSION},
            "plugin": _text("version of pytest-gpuinfra that wrote it"),
            "started_at": _text("UTC, ISO 8601"),
            "order": {"type": "array", "items": {"type": "string"}, "description": "aliases in the run's order"},
            "hosts": {"type": "object", "additionalProperties": host},
            "results": {"type": "array", "items": result},
            "exit_status": {
                "type": ["integer", "null"],
                "description": "pytest's own: 0 or 1 where the run came to its end, 2 to 5 where it did not",
            },
            "trimmed": {"type": "array", "items": cut, "description": "what was cut out for the recording's size"},
        },
        optional=("trimmed", "exit_status"),
    )
    schema = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": schema, "title": FORMAT, **document, "$defs": {"reading": reading}}
