"""JSON of a server: read within bounds, so that whatever is made of it can be shown, compared and written down."""

from __future__ import annotations

from typing import Any

from pytest_gpuinfra.wire import load

MAX_CHARACTERS = 2 << 20
MAX_DEPTH = 64
"""Nested levels; the deepest answer of any engine has eight."""


def read_json(text: str) -> Any:
    """
    Read one document; of a key that stands twice the last one counts, as for any client.

    Raises:
        WireError: It is none, or one beyond these bounds; the text says what is wrong.
    """
    return load(text, depth=MAX_DEPTH, most=MAX_CHARACTERS, unique=False)
