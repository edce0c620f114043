"""The shape in which every adapter answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.verdict.base import Verdict

Result: TypeAlias = tuple[str, str, Mapping[str, Any]]
"""Verdict in the cases' words, the product's reason, what was read by the cases' keys."""

_WORDS = {"ok": "pass", "wrong": "fail", "skip": "skip", "error": "error"}


def result(verdict: Verdict, parsed: Mapping[str, Any]) -> Result:
    """Rename the product's ending."""
    word = "pass (warn)" if verdict.ok and verdict.warnings else _WORDS[verdict.ending]
    return word, str(verdict), parsed


def unread(error: GpuInfraError, parsed: Mapping[str, Any]) -> Result:
    """Rename the product's error."""
    return "error", str(error), parsed
