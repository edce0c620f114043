"""Prompt files: questions with known answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

from pytest_gpuinfra.errors import InventoryError
from pytest_gpuinfra.input_file import parse_toml, read_text

DEFAULT_FILE = Path(__file__).with_name("prompts.toml")
AnswerKind: TypeAlias = Literal["integer", "exact", "regex", "tolerance"]
_KEYS = {"name", "prompt", "expected", "kind", "tolerance", "max_tokens", "system"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """
    One question with its answer.

    Attributes:
        name: Word that -k accepts.
        prompt: What the user says.
        expected: The answer, as text: a number, a text, or a regular expression.
        kind: How the answer is compared.
        tolerance: Largest distance from the expected number, for kind "tolerance".
        max_tokens: Longest answer, reasoning included.
        system: System message; None for none.
    """

    name: str
    prompt: str
    expected: str
    kind: AnswerKind = "integer"
    tolerance: float = 0.0
    max_tokens: int = 1024
    system: str | None = None


def read_prompts(*files: Path) -> tuple[Prompt, ...]:
    """
    Read the shipped prompts and those of the user's files; a later one replaces an earlier one of its name.

    Raises:
        InventoryError: A file cannot be read, or has an entry that is none; names file and entry.
    """
    prompts: dict[str, Prompt] = {}
    for file in (DEFAULT_FILE, *files):
        text = read_text(file, InventoryError, remedy="see --gpu-prompts")
        prompts.update({prompt.name: prompt for prompt in parse_prompts(text, str(file))})
    return tuple(prompts.values())


def parse_prompts(text: str, source: str = "prompts") -> tuple[Prompt, ...]:
    """
    Read the text of a prompt file.

    Raises:
        InventoryError: No TOML, no [[prompts]], or an entry that is none.
    """
    table = parse_toml(text, source, InventoryError)
    entries = table.get("prompts")
    if set(table) != {"prompts"} or not isinstance(entries, list) or not entries:
        raise InventoryError(f"{source}: holds {', '.join(table) or 'nothing'}", remedy="it takes [[prompts]] only")
    prompts = tuple(_prompt(entry, f"{source}, prompts[{at}]") for at, entry in enumerate(entries))
    names = [prompt.name for prompt in prompts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InventoryError(f"{source}: two prompts are named {twice!r}")
    return prompts


def _prompt(entry: object, where: str) -> Prompt:
    if not isinstance(entry, Mapping):
        raise InventoryError(f"{where}: no table")
    fields = cast("Mapping[str, Any]", entry)
    unknown = sorted(set(fields) - _KEYS)
    if unknown:
        raise InventoryError(f"{where}: unknown key {unknown[0]!r}", remedy=f"legal are {', '.join(sorted(_KEYS))}")
    for key in ("name", "prompt", "expected"):
        if not isinstance(fields.get(key), str | (int if key == "expected" else str)) or fields[key] == "":
            raise InventoryError(f"{where}: `{key}` is missing or no text")
    kind = fields.get("kind", "integer")
    if kind not in get_args(AnswerKind):
        raise InventoryError(f"{where}: kind {kind!r}", remedy=f"legal are {', '.join(get_args(AnswerKind))}")
    prompt = Prompt(**{**fields, "expected": str(fields["expected"]), "kind": kind})
    problem = _problem(prompt)
    if problem:
        raise InventoryError(f"{where}, {prompt.name!r}: {problem}")
    return prompt


def _problem(prompt: Prompt) -> str:
    if not re.fullmatch(r"[\w.-]+", prompt.name):
        return "`name` takes letters, digits, dot, dash and underscore"
    if not isinstance(prompt.max_tokens, int) or prompt.max_tokens < 1:
        return "`max_tokens` is a positive number"
    try:
        if prompt.kind == "integer":
            int(prompt.expected)
        elif prompt.kind == "tolerance":
            float(prompt.expected)
        elif prompt.kind == "regex":
            re.compile(prompt.expected)
    except (ValueError, re.error) as error:
        return f"`expected` does not fit kind {prompt.kind!r}: {error}"
    return "" if prompt.kind != "tolerance" or prompt.tolerance > 0 else "kind 'tolerance' needs `tolerance`"
