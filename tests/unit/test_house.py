"""The house: one order of rooms, an import points down only; subjects are pure; a module is in the order."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from pytest_gpuinfra.options import Settings, declared

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pytest_gpuinfra"
ORDER = (
    ("on_target",),
    ("masking",),
    ("errors", "pci_address", "hooks", "wire", "visible"),
    ("input_file",),
    ("connection",),
    ("inventory", "options"),
    ("capture",),
    *((f"subjects.{name}",) for name in ("verdict", "event", "pci", "kernel_log")),
    ("subjects.boot", "subjects.gpu", "subjects.outliers"),
    ("subjects.service",),
    ("subjects.container",),
    ("subjects.transfers",),
    ("subjects.groups", "subjects.participation", "subjects.path_safety"),
    ("endpoint",),
    ("gather",),
    ("host",),
    ("record",),
    ("diagnosis",),
    ("session",),
    ("fixtures",),
    ("report",),
    ("merge",),
    ("first_inventory",),
    ("plugin", "cli"),
)
"""Rooms bottom up; those of one row do not import each other."""
RANK = {room: rank for rank, row in enumerate(ORDER) for room in row}


def modules() -> dict[str, Path]:
    """Modules of the package by dotted name below it, packages by the name of their folder."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        if name != "__init__" and not name.startswith("suites"):
            found[name] = file
    return found


def room(module: str) -> str | None:
    """Room of a module; None for one that has no place in the order."""
    parts = module.split(".")
    return next((name for n in (2, 1) if (name := ".".join(parts[:n])) in RANK), None)


def imports(file: Path) -> set[str]:
    """Modules of ours that a file imports, in functions and for types alike."""
    known = modules()
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name.removeprefix("pytest_gpuinfra.") in known else node.module for name in names}
    return {name.removeprefix("pytest_gpuinfra.") for name in found if name.startswith("pytest_gpuinfra.")}


def test_every_module_has_a_room() -> None:
    """A file at the root, or in a folder that the order does not name, is in nobody's room."""
    assert [name for name in modules() if room(name) is None and name != "subjects"] == []


def test_imports_point_down() -> None:
    """A room imports only what stands above it in ORDER."""
    upwards = [
        f"{name} imports {other}"
        for name, file in sorted(modules().items())
        for other in sorted(imports(file))
        if (here := room(name)) and (there := room(other)) and here != there and RANK[there] >= RANK[here]
    ]
    assert upwards == []


@pytest.mark.parametrize("name", sorted(name for name in modules() if name.startswith("subjects.")))
def test_subjects_are_pure(name: str) -> None:
    """Text in, values out: nothing is opened, asked, or waited for."""
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    forbidden = ("subprocess", "socket", "os", "time", "threading", "urllib", "httpx", "testinfra", "torch", "pytest")
    assert not [word for word in imported if word.split(".")[0] in forbidden]
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"open", "print", "input"}


def test_an_option_has_one_place() -> None:
    """Its name stands at its field of `Settings` alone: who wants its value takes that, and README's table is made."""
    names = {option.name for _, _, _, option in declared()}
    without = [one.name for one in fields(Settings) if "options" not in one.metadata]
    assert without == ["keep_connections"]
    elsewhere = [
        f"{name}: {node.value}"
        for name, file in sorted(modules().items())
        if name not in ("options", "cli")  # commands of `gpuinfra` have options of their own
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert elsewhere == []
    asked = [name for name, file in modules().items() if ".addoption(" in file.read_text(encoding="utf-8")]
    assert asked == ["options"]
