"""The size of a recording: bounded, and every cut is said in the cut text and in the recording's own list."""

from __future__ import annotations

import json
from typing import Any

LIMITS = (4 << 20, 1 << 20, 256 << 10, 64 << 10)
"""Characters of one text, at most; the next one counts where the whole is still too large."""

WHOLE = 64 << 20
"""Characters of a host in a recording, at most, as far as its longest texts allow."""


def bounded(document: dict[str, Any], whole: int = WHOLE) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """
    Cut the longest texts of a recording.

    A kernel log loses its beginning, so that the record numbers tell that something is missing, as after a wrapped
    ring buffer; any other text loses its middle, with a note in its place.

    Returns:
        The document, and one row for each cut: where, characters, kept.
    """
    rows: list[dict[str, Any]] = []
    for limit in LIMITS:
        rows = []
        cut = _cut(document, "", limit, rows)
        if len(json.dumps(cut, ensure_ascii=False)) <= whole:
            break
    return cut, rows


def _cut(data: Any, where: str, limit: int, rows: list[dict[str, Any]]) -> Any:
    if isinstance(data, dict):
        return {key: _cut(value, f"{where}/{key}" if where else key, limit, rows) for key, value in data.items()}
    if isinstance(data, list):
        return [_cut(value, f"{where}/{place}", limit, rows) for place, value in enumerate(data)]
    if not isinstance(data, str) or len(data) <= limit:
        return data
    if where.endswith(("/kmsg/t", "/cuda/kmsg", "/torch/kmsg")):
        kept = data[-limit:].partition("\n")[2]
        while kept.startswith(" "):  # a record's continuation
            kept = kept.partition("\n")[2]
    else:
        half = limit // 2
        kept = f"{data[:half]}\n[... {len(data) - 2 * half} characters left out of the recording ...]\n{data[-half:]}"
    rows.append({"where": where, "characters": len(data), "kept": len(kept)})
    return kept
