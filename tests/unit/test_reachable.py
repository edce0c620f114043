"""Nothing public is in the package that neither the plugin, the command line, a suite nor a fixture reaches."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.unit.test_house import PACKAGE, ROOT, modules

ROOTS = ("plugin", "cli", "hooks", "fixtures.", "__init__", "endpoint.llamacpp_child")
"""Modules that pytest, a person, a user's test or a child of ours enters by name; suites besides."""
AWAITING = {
    "endpoint.error_body: ContextOverflow parse_context_overflow",
    "endpoint.health: WAITING",
    "endpoint.judge_answers: judge_body judge_streamed",
    "endpoint.judge_readiness: judge_health",
    "endpoint.refusals: judge_error_bodies judge_context_fit",
    "endpoint.speculation_logs: parse_llamacpp_log parse_vllm_v0_log interval parse_benchmark",
    "endpoint.stream: parse_stream read_lines",
    "subjects.gpu.driver: parse_module_version",
    "subjects.gpu.driver_parameters: judge_driver_parameters judge_driver_version",
    "subjects.gpu.topology: P2P_WORDS TopologyMatrix Topology parse_topology",
    "subjects.pci.acs: bridges_above judge_acs",
    "subjects.pci.link_judge: judge_link",
    "subjects.service.unit_settings: judge_unit_properties judge_unit_file judge_unreadable_unit",
    "subjects.transfers.collective_log: judge_nccl_log judge_engine_allreduce",
    "subjects.transfers.nccl_log: NcclWarning NcclLog parse_nccl_log",
    "subjects.transfers.peer_access: PeerAccess parse_peer_access",
    "subjects.transfers.peer_capability: judge_topology judge_peer_access",
}
"""Judges and parsers that are to become a check's, or to go; nothing is added here."""
EMBEDDED = re.compile(r"\bpytest_gpuinfra(?:\.\w+)+")


@cache
def trees() -> dict[str, ast.Module]:
    """Syntax trees of the package by dotted name, and of the suites by their path."""
    found = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in modules().items()}
    found["__init__"] = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    for file in sorted((ROOT / "suites").rglob("*.py")):
        found[str(file.relative_to(ROOT))] = ast.parse(file.read_text(encoding="utf-8"))
    return {name: tree for name, tree in found.items() if not runs_on_target(name)}


def runs_on_target(name: str) -> bool:
    """Whether a module is sent to a target as text; those import each other by name, and their own tests hold them."""
    return name.startswith("on_target.") and name.rsplit(".", maxsplit=1)[-1] not in ("plan", "bundle", "sampling")


def definitions(tree: ast.Module) -> dict[str, list[ast.AST]]:
    """Nodes of a module by the name that each defines; what defines none stands under ""."""
    found: dict[str, list[ast.AST]] = {"": []}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            names = [""]
        for name in names or [""]:
            found.setdefault(name, []).append(node)
    return found


def used(name: str, nodes: list[ast.AST], tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What some nodes of a module use: (module, name) of ours; name "" for a module as a whole."""
    origins: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pytest_gpuinfra"):
            module = (node.module or "").removeprefix("pytest_gpuinfra").removeprefix(".") or "__init__"
            for alias in node.names:
                whole = f"{module}.{alias.name}" if module != "__init__" else alias.name
                as_module = whole in trees()
                origins[alias.asname or alias.name] = (whole, "") if as_module else (module, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("pytest_gpuinfra."):
                    origins[alias.asname or alias.name] = (alias.name.removeprefix("pytest_gpuinfra."), "")
    local = definitions(tree)
    for top in nodes:
        for node in ast.walk(top):
            if isinstance(node, ast.Name):
                if node.id in origins:
                    yield origins[node.id]
                elif node.id in local:
                    yield name, node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in origins:
                module, _ = origins[node.value.id]
                yield module, node.attr
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                for word in re.findall(r"[A-Za-z_]\w*", node.value):  # annotations in quotes, names handed over as text
                    if word in origins:
                        yield origins[word]
                for path in EMBEDDED.findall(node.value):
                    module, _, last = path.removeprefix("pytest_gpuinfra.").rpartition(".")
                    yield (module, last) if module in trees() else (f"{module}.{last}".strip("."), "")


def reached() -> set[tuple[str, str]]:
    """Every (module, name) that a root leads to."""
    todo: list[tuple[str, str]] = []
    for name, tree in trees().items():
        if name.startswith(ROOTS) or "/" in name:
            todo += [(name, one) for one in definitions(tree)]
    for node in ast.walk(trees()["__init__"]):  # the public names and where they live
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            for key, value in pairs:
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                    todo.append((str(value.value), str(key.value)))
    found: set[tuple[str, str]] = set()
    while todo:
        module, name = todo.pop()
        if (module, name) in found or module not in trees():
            continue
        found.add((module, name))
        tree = trees()[module]
        todo += [(module, ""), *used(module, definitions(tree).get(name, []), tree)]
    return found


def test_nothing_public_is_out_of_reach() -> None:
    """A function, class or table that only tests reach proves code that nobody runs."""
    known = reached()
    left = {
        f"{module}: {name}"
        for module, tree in trees().items()
        if "/" not in module
        for name, nodes in definitions(tree).items()
        if name and not name.startswith("_") and (module, name) not in known and not _is_entry(nodes)
    }
    awaiting = {f"{line.split(': ')[0]}: {name}" for line in AWAITING for name in line.split(": ")[1].split()}
    assert left == awaiting


def _is_entry(nodes: list[ast.AST]) -> bool:
    """Whether a definition is entered by its decorator: a command, a fixture, a hook."""
    return any(isinstance(node, ast.FunctionDef) and node.decorator_list for node in nodes)


def test_the_walk_sees_what_nobody_calls(tmp_path: Path) -> None:
    """The walk does not follow an import alone: only what a reached definition names."""
    tree = ast.parse("def a():\n    return b()\n\ndef b():\n    return 1\n")
    assert set(used("m", definitions(tree)["a"], tree)) == {("m", "b")}
    assert set(used("m", definitions(tree)["b"], tree)) == set()
