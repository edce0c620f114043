"""Who may import whom, over the syntax trees."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest_gpuinfra

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pytest_gpuinfra"
OURS = "pytest_gpuinfra"


def imports(file: Path) -> set[str]:
    """Give every module that a file imports, inside functions and for typing alike."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def offending(files: list[Path], forbidden: tuple[str, ...]) -> list[str]:
    """Give the imports of some files that begin with a forbidden module."""
    assert files
    return [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imports(file)
        if any(name == word or name.startswith(f"{word}.") for word in forbidden)
    ]


def files(pattern: str) -> list[Path]:
    """Give the package's files by pattern."""
    return sorted(PACKAGE.glob(pattern))


OWN = sorted({f"{OURS}.{file.stem}" for file in PACKAGE.iterdir() if not file.name.startswith("_")})
"""Modules and folders of ours."""


def test_what_runs_on_targets_imports_nothing_else() -> None:
    """Nothing of ours but its neighbours, and nothing that a target may lack."""
    controller = {PACKAGE / "on_target" / name for name in ("plan.py", "bundle.py")}
    programs = [file for file in files("on_target/**/*.py") if file not in controller]
    assert offending(programs, (OURS, "pytest", "requests", "numpy")) == []


def test_probe_and_runner_use_the_standard_library_alone() -> None:
    """What runs on any target imports what any target has."""
    neighbours = {file.stem for file in files("on_target/**/*.py")}
    probe = tuple(name for name in neighbours if name.startswith("probe"))
    for name in (*probe, "runner", "sampler", "cuda_program"):
        modules = {module.partition(".")[0] for module in imports(next(PACKAGE.glob(f"on_target/**/{name}.py")))}
        assert modules <= set(sys.stdlib_module_names) | neighbours, name


def test_suites_use_no_subprocess_and_no_connection() -> None:
    """A suite asks fixtures; it reaches nobody by itself."""
    suites = sorted((ROOT / "suites").rglob("*.py"))
    forbidden = ("subprocess", "socket", "os", "httpx", f"{OURS}.connection", f"{OURS}.capture", f"{OURS}.run")
    assert offending(suites, forbidden) == []


def test_suite_tests_have_one_assertion_and_a_docstring() -> None:
    """One item, one fact, one message; the first line of the docstring is the requirement in words."""
    for file in sorted((ROOT / "suites").rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                asserts = [part for part in ast.walk(node) if isinstance(part, ast.Assert)]
                branches = [part for part in ast.walk(node) if isinstance(part, (ast.If, ast.For, ast.While, ast.Try))]
                assert (len(asserts), branches) == (1, []), f"{file.name}::{node.name}"
                assert len((ast.get_docstring(node) or "").splitlines()) >= 3, f"{file.name}::{node.name}"


def test_no_assert_outside_a_test_body() -> None:
    """Our own code raises errors of its own; an AssertionError would be taken for a verdict."""
    allowed = {PACKAGE / "connection" / "pipe.py"}
    for file in PACKAGE.rglob("*.py"):
        if file not in allowed and "suites" not in file.parts:
            found = [node.lineno for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Assert)]
            assert not found, f"{file.relative_to(ROOT)}: {found}"


def test_public_names_are_importable_and_sorted() -> None:
    """`__all__` is what can be had."""
    assert pytest_gpuinfra.__all__ == sorted(pytest_gpuinfra.__all__)
    assert all(getattr(pytest_gpuinfra, name) is not None for name in pytest_gpuinfra.__all__)
