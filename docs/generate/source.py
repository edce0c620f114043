"""
What the source of suites and fixtures says: fixtures and what they need, marks, errors, and documents behind parsers.

By syntax trees alone; nothing is imported, and nothing is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest_gpuinfra

PACKAGE = Path(pytest_gpuinfra.__file__).parent


@dataclass(frozen=True, slots=True)
class Fixture:
    """A fixture, or a value fixture, as its file has it."""

    name: str
    needs: tuple[str, ...]
    doc: str
    returns: str
    code: str


@dataclass(frozen=True, slots=True)
class Module:
    """A file: its fixtures by name, and which module each imported name comes from."""

    tree: ast.Module
    fixtures: Mapping[str, Fixture]
    origin: Mapping[str, str]


def closure_of(names: Sequence[str], fixtures: Mapping[str, Fixture]) -> Iterator[Fixture]:
    """Give the fixtures of these names and those that they take, the nearest first, each once."""
    waiting, seen = list(names), set[str]()
    while waiting:
        name = waiting.pop(0)
        if name not in seen and name in fixtures:
            seen.add(name)
            yield fixtures[name]
            waiting += fixtures[name].needs


@cache
def read_module(file: Path) -> Module:
    """Read a file of fixtures, or a suite."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    fixtures: dict[str, Fixture] = {}
    origin: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            origin |= {alias.asname or alias.name: node.module for alias in node.names}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any("fixture" in ast.unparse(one) for one in node.decorator_list):
            needs = tuple(argument.arg for argument in node.args.args)
            returns = ast.unparse(node.returns) if node.returns else ""
            fixtures[node.name] = Fixture(node.name, needs, ast.get_docstring(node) or "", returns, ast.unparse(node))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call) and isinstance(node.target, ast.Name):
            words = [one.value for one in node.value.args if isinstance(one, ast.Constant)]
            if ast.unparse(node.value.func) == "value_fixture" and len(words) == 2:
                returns = ast.unparse(node.annotation)
                fixtures[node.target.id] = Fixture(node.target.id, (), str(words[1]), returns, "")
    return Module(tree, fixtures, origin)


def marks_of(node: ast.FunctionDef, name: str) -> Iterator[list[str]]:
    """Give the words of each mark of this name on a test."""
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == f"pytest.mark.{name}":
            yield [str(one.value) for one in mark.args if isinstance(one, ast.Constant)]


def level_of(node: ast.stmt) -> str:
    """Give the level that a `pytestmark` sets; "" for any other statement."""
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
        found = re.search(r"gpu_level\('(\w+)'\)", ast.unparse(node.value))
        return found[1] if found else ""
    return ""


def first_words(doc: str) -> str:
    """Give a docstring's first paragraph as a phrase."""
    text = " ".join(doc.strip().partition("\n\n")[0].split()).rstrip(".")
    return text.removeprefix("Give ").partition(": one test")[0]


@cache
def unobserved_by(module: str, judge: str) -> tuple[str, ...]:
    """Give the words in which a verdict's function says that something was not observed; "..." for what varies."""
    file = PACKAGE / Path(*module.split(".")[1:]).with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    waiting, seen, found = [judge], set[str](), list[str]()
    while waiting:
        name = waiting.pop(0)
        if name in seen or name not in functions:
            continue
        seen.add(name)
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                waiting.append(node.func.id)
                found += _unobserved(node)
    return tuple(dict.fromkeys(words for words in found if len(words) > 12 and not words.startswith("...")))


def _unobserved(call: ast.Call) -> list[str]:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    named = {one.arg: one.value for one in call.keywords}
    ending = named.get("ending", call.args[0] if call.args else None)
    is_error = isinstance(ending, ast.Constant) and ending.value == "error"
    if name == "_error" or (name == "_verdict" and is_error):
        return _words(call.args[1]) if len(call.args) > 1 else []
    return _words(named["observed"]) if name == "Verdict" and is_error and "observed" in named else []


def _words(node: ast.expr) -> list[str]:
    """Give the text of an expression; both texts of a choice."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)]
    if isinstance(node, ast.IfExp):
        return _words(node.body) + _words(node.orelse)
    if isinstance(node, ast.BoolOp):
        return [words for value in node.values for words in _words(value)]
    return _words(node.left) if isinstance(node, ast.BinOp) else []


def raises_of(doc: str) -> Iterator[str]:
    """Give the situations of a docstring's section Raises."""
    _, _, section = doc.partition("Raises:\n")
    for line in re.split(r"\n(?=\s{4}\S)", section.partition("\n\n")[0]):
        _, sign, words = " ".join(line.split()).partition(": ")
        if sign and words:
            text = words.rstrip(".")
            yield text[0].lower() + text[1:] if text[1:2].islower() else text


@cache
def source_of(module: str) -> str:
    """Give the paragraph "Source:" of a module of ours; "" if it has none, or is none of ours."""
    if not module.startswith("pytest_gpuinfra."):
        return ""
    path = PACKAGE / Path(*module.split(".")[1:])
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    if not file.exists():
        return ""
    doc = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    _, sign, rest = doc.partition("Source:")
    text = " ".join(rest.partition("\n\n")[0].split())
    return text if text.endswith(".") or not sign else f"{text}."
