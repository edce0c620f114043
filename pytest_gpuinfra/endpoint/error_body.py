"""
Error bodies of inference servers: five shapes, one value.

Source: bodies of SGLang 0.5.16 (flat), vLLM 0.32 and llama.cpp b6xxx (nested), TGI 3 (a string and a type),
FastAPI ("detail", text or list); cases C104 and C107.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpuinfra.endpoint.json_text import read_json

LONGEST = 2000
"""Characters of a message that are kept."""


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """
    What a server says about a request that it refuses.

    Attributes:
        message: Its message, at most 2,000 characters; never empty.
        code: Its own numeric code; None if it gives none (or a word, which is then in type).
        type: Its word for the kind of error; None if it gives none.
    """

    message: str
    code: int | None = None
    type: str | None = None


def parse_error_body(text: str) -> ErrorBody | None:
    """
    Read the error out of a body, whichever of the five shapes it has.

    Returns:
        None if the body is empty, no JSON object, or an object without an error.
    """
    try:
        body = read_json(text)
    except ValueError:
        return None
    return error_in(body)


def error_in(body: object) -> ErrorBody | None:
    """Read the error out of a decoded body; None if it holds none."""
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if isinstance(error, dict):
        return _from_fields(error)
    if isinstance(error, str) and error:
        return ErrorBody(error[:LONGEST], _number(body.get("code")), _word(body.get("error_type") or body.get("type")))
    if "detail" in body:
        return _from_detail(body["detail"])
    if body.get("object") == "error" or ("message" in body and "choices" not in body):
        return _from_fields(body)
    return None


def _from_fields(fields: dict[str, object]) -> ErrorBody | None:
    message = fields.get("message")
    if not isinstance(message, str) or not message:
        return None
    code = fields.get("code")
    return ErrorBody(message[:LONGEST], _number(code), _word(fields.get("type")) or _word(code))


def _from_detail(detail: object) -> ErrorBody | None:
    if isinstance(detail, str) and detail:
        return ErrorBody(detail[:LONGEST])
    if isinstance(detail, list):
        parts = [
            f"{'.'.join(str(step) for step in _list(item.get('loc')))}: {item.get('msg', '')}".strip(": ")
            for item in detail
            if isinstance(item, dict)
        ]
        return ErrorBody("; ".join(parts)[:LONGEST]) if any(parts) else None
    return _from_fields(detail) if isinstance(detail, dict) else None


def _number(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
        return int(value)
    return value if isinstance(value, int) else None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _word(value: object) -> str | None:
    return value[:LONGEST] if isinstance(value, str) and value and not value.isdigit() else None
