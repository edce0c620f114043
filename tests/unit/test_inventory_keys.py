"""Each key of the inventory is judged by a check, and its place in the file is told."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuinfra.inventory.inventory import Expectation, parse_inventory, read_inventory
from pytest_gpuinfra.inventory.keys import QUALIFIERS, legal_keys, place_of
from pytest_gpuinfra.session.ledger import MARKS

SUITES = Path(__file__).parents[2] / "suites"


def marked() -> Iterator[str]:
    """Keys that the suites' tests name in their marks."""
    for file in SUITES.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MARKS:
                yield from (str(ast.literal_eval(argument)) for argument in node.args)


def test_each_key_is_judged_by_a_check() -> None:
    """A key that is added to the inventory, and that no suite's test names in a mark, is judged by nobody."""
    named = {key.replace("device.", "devices.", 1) if key.startswith("device.") else key for key in marked()}
    named |= {"devices.pci"} if "devices" in named else set()
    assert legal_keys(Expectation) - named == QUALIFIERS


TEXT = """
[defaults]
expect.kernel_release = "a"
[groups.big.expect]
peer_access = "blocked"
[groups.small.expect]
peer_access = "any"
[hosts."node[1-2]"]
group = "big"
expect.driver_version = "5*"
[hosts.node1.expect.model]  # a comment
id = "x"
speculation = {enabled = true}
[[hosts.node1.expect.devices]]
pci = ["01:00.0"]
[[hosts.node1.expect.devices]]
pci = ["02:00.0"]
driver = "nvidia"
[hosts.node1]
endpoint = "http://localhost:1"
"""
PLACES = {
    "kernel_release": 3,
    "peer_access": 5,
    "driver_version": 10,
    "model.id": 12,
    "model.speculation.enabled": 13,
    "devices[0].pci": 15,
    "devices[1].pci": 17,
    "devices[1].driver": 18,
    "endpoint": 20,
}


@pytest.mark.parametrize(("key", "line"), PLACES.items())
def test_place_of_a_key(key: str, line: int, tmp_path: Path) -> None:
    """It stands in the host's own table, in a hostlist's, its group's, or among the defaults."""
    file = tmp_path / "gpuinfra.toml"
    file.write_text(TEXT)
    spec = read_inventory(file).hosts["node1"]
    assert key in spec.declared
    assert place_of(key, "node1", spec.group, str(file)) == f"{file}, line {line}"


def test_all_declared_keys_have_their_place(tmp_path: Path) -> None:
    """The table above is complete."""
    (tmp_path / "gpuinfra.toml").write_text(TEXT)
    assert set(read_inventory(tmp_path / "gpuinfra.toml").hosts["node1"].declared) == set(PLACES)


def test_place_without_a_file() -> None:
    """What a plugin or a recording declares has a source and no line."""
    assert place_of("model.id", "a", None, "the recording x.json") == "the recording x.json"


def test_empty_list_that_expects_something_is_a_key() -> None:
    """`group_mates = []` says that a GPU shares its group with nothing."""
    raw = {"hosts": {"a": {"expect": {"devices": [{"pci": ["01:00.0"], "group_mates": []}], "peer_access": "any"}}}}
    assert parse_inventory(raw, "x").hosts["a"].declared == ("devices[0].pci", "devices[0].group_mates")
