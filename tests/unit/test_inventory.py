"""The inventory: what is legal, what is refused, and in which words."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from pytest_gpuinfra.cli import main
from pytest_gpuinfra.errors import InventoryError
from pytest_gpuinfra.inventory.inventory import json_schema, match_aliases, parse_inventory, read_inventory
from pytest_gpuinfra.session.select import select_hosts
from tests.recorded.reference.compose import HERE as REFERENCE


def parse(text: str) -> object:
    """Parse the text of an inventory."""
    return parse_inventory(tomllib.loads(text), "gpuinfra.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[host.a]", "host: unknown key; did you mean 'hosts'?"),
        ("[hosts.a]\nadress = 'x'", "hosts.a.adress: unknown key; did you mean 'address'?"),
        ("[hosts.a]\nexpect = 1", "hosts.a.expect: input should be a valid dictionary"),
        ("[hosts.a]\ngroup = 'gpus'\n[groups.gpu]", "hosts.a.group: no [groups.gpus]; did you mean 'gpu'?"),
        ("[hosts.'-a']", "an alias is letters, digits"),
        ("[hosts.all]", "'all' has a meaning of its own"),
        ("[hosts.a.expect]\npeer_access = 'maybe'", "'correct', 'blocked' or 'any', not 'maybe'"),
        ("[hosts.a.expect]\nconfidential = 'snp'", "'sev-snp', 'sev-es', 'sev', 'tdx' or 'none', not 'snp'"),
        ("[hosts.a.expect]\nunits = { 'a.service' = 'running' }", "'active', 'inactive', 'absent' or 'without-effect'"),
        ("[[hosts.a.expect.devices]]\npci = []", "devices[0].pci: tuple should have at least 1 item"),
        ("[[hosts.a.expect.devices]]\npci = ['1:0']", "not a PCI address: '1:0'"),
        (
            "[[hosts.a.expect.devices]]\npci = ['01:00.0']\ngroup_type = 'auto'",
            "'identity', 'DMA', 'DMA-FQ', 'blocked' or 'unmanaged', not 'auto'",
        ),
        (
            "[[hosts.a.expect.devices]]\npci = ['01:00.0']\n[[hosts.a.expect.devices]]\npci = ['0000:01:00.0']",
            "device 0000:01:00.0 stands in rows 0 and 1 of `devices`",
        ),
        ("[[hosts.a.expect.devices]]\npci = ['01:00.0', '01:00.0']", "stands twice in one row"),
        (
            "[hosts.a.expect]\nkernel_command_line = { has = ['iommu=pt'], lacks = ['iommu=pt'] }",
            "`has` and `lacks` both name 'iommu=pt'",
        ),
        (
            "[hosts.a.expect]\nconfidential = 'sev-snp'\n[[hosts.a.expect.devices]]\npci = ['01:00.0']\n"
            "group_type = 'identity'",
            '`confidential = "sev-snp"` and `devices[0].group_type = "identity"` exclude each other',
        ),
        (
            "[hosts.a.expect]\nconfidential = 'sev-snp'\nkernel_command_line = { has = ['iommu=pt'] }",
            "the kernel switches SNP off when pass-through is the default",
        ),
        ("[hosts.a.expect.kernel_log]\nallow = ['(']", "'(' is no regular expression"),
        ("[hosts.a.expect.kernel_log]\nxid_class = { x = 'fail' }", "takes Xid codes, not 'x'"),
    ],
)
def test_fault_is_named_with_key_and_remedy(text: str, said: str) -> None:
    """Each fault gives file, key, reason, and what would be legal."""
    with pytest.raises(InventoryError) as caught:
        parse(text)
    assert said in str(caught.value)
    assert str(caught.value).startswith("gpuinfra.toml:")
    assert "gpuinfra schema" in str(caught.value)


def test_all_faults_are_named_at_once() -> None:
    """Nobody corrects a file fault by fault."""
    with pytest.raises(InventoryError) as caught:
        parse("[hosts.a]\nadress = 'x'\n[hosts.b.expect]\npeer_acces = 'any'")
    assert "hosts.a.adress" in str(caught.value)
    assert "hosts.b.expect.peer_acces" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"[hosts", "is not TOML"), (b"\xff", "is not UTF-8 text"), (None, "cannot be read")],
)
def test_unreadable_file_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    """A file that is not there, not text, or not TOML."""
    file = tmp_path / "gpuinfra.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InventoryError, match=said):
        read_inventory(file)


def test_defaults_and_groups_apply_where_the_host_says_nothing() -> None:
    """Defaults, then the group, then the host; tables are joined, lists are replaced."""
    inventory = parse_inventory(
        tomllib.loads(
            "[defaults]\nsudo = true\nexpect = { kernel_release = 'd', driver_parameters = { A = 1, B = 1 } }\n"
            "[groups.g.expect]\nkernel_release = 'g'\ndriver_parameters = { B = 2 }\n"
            "[hosts.a]\ngroup = 'g'\n[hosts.b]\nsudo = false\n"
        ),
        "x",
    )
    first, second = inventory.hosts["a"], inventory.hosts["b"]
    assert (first.sudo, first.expect.kernel_release) == (True, "g")
    assert first.expect.driver_parameters == {"A": "1", "B": "2"}
    assert (second.sudo, second.expect.kernel_release) == (False, "d")


def test_peer_access_under_translation_is_a_warning() -> None:
    """Legal, and regretted: the header says so."""
    inventory = parse_inventory(
        tomllib.loads(
            "[hosts.a.expect]\npeer_access = 'correct'\n[[hosts.a.expect.devices]]\npci = ['01:00.0']\n"
            "driver = 'nvidia'\ngroup_type = 'DMA'"
        ),
        "x",
    )
    (warning,) = inventory.hosts["a"].expect.warnings()
    assert "01:00.0" in warning
    assert "may be corrupt" in warning


def test_names_of_hosts_are_resolved() -> None:
    """Alias, glob, all, destination, local: each host once, in the order asked for."""
    inventory = parse_inventory(tomllib.loads("[hosts.a-1]\naddress='root@192.0.2.1'\n[hosts.a-2]\n[hosts.b]"), "x")
    assert match_aliases("a-*", inventory) == ["a-1", "a-2"]
    selected = select_hosts(
        ["b", "all", "root@192.0.2.9", "ssh://op@[2001:db8::1]:2222", "local"], inventory, "gpuinfra.toml"
    )
    assert [(host.alias, host.way, host.destination) for host in selected] == [
        ("b", "ssh", "b"),
        ("a-1", "ssh", "root@192.0.2.1"),
        ("a-2", "ssh", "a-2"),
        ("192.0.2.9", "ssh", "root@192.0.2.9"),
        ("2001-db8-1-2222", "ssh", "ssh://op@[2001:db8::1]:2222"),
        ("local", "local", ""),
    ]


def test_local_may_have_an_expectation() -> None:
    """A host of the name local, or with that address, is this machine."""
    inventory = parse_inventory({"hosts": {"local": {}, "here": {"address": "local"}}}, "x")
    assert [host.way for host in select_hosts(["all"], inventory, "x")] == ["local", "local"]


def test_schema_describes_every_key() -> None:
    """Editors get a description of each key, and the reference inventory's keys are all in it."""
    schema = json_schema()
    host = schema["$defs"]["HostSpec"]["properties"]
    assert {"address", "group", "sudo", "expect", "endpoint", "container", "service"} <= set(host)
    document = tomllib.loads((REFERENCE / "gpuinfra.toml").read_text())
    assert set(document["hosts"]["node-a"]["expect"]) <= set(schema["$defs"]["Expectation"]["properties"])
    for name, field in schema["$defs"]["DeviceExpectation"]["properties"].items():
        assert field.get("description"), name


@pytest.mark.parametrize(
    ("expect", "words"),
    [
        ('devices = [{pci = ["01:00.0"], driver = "nvida"}]', "did you mean 'nvidia'"),
        ('devices = [{pci = ["01:00.0"], companion_driver = "vfio"}]', "companion_driver = 'vfio'"),
        ('units = {"nvidia-persistenced" = "active"}', "'nvidia-persistenced.service'"),
        ('service = {after = ["network-online"]}', "'network-online.service'"),
    ],
)
def test_what_looks_mistyped_is_warned_of(expect: str, words: str, tmp_path: Path) -> None:
    """It is legal, and `gpuinfra check` names it."""
    (tmp_path / "gpuinfra.toml").write_text(f'[hosts.a]\nservice = "x"\nexpect.{expect}\n')
    ended = CliRunner().invoke(main, ["check", str(tmp_path / "gpuinfra.toml")])
    assert ended.exit_code == 0, ended.output
    assert words in ended.output


def test_what_nothing_can_judge_is_refused(tmp_path: Path) -> None:
    """A model without an endpoint, by its host and key."""
    (tmp_path / "gpuinfra.toml").write_text('[hosts.a]\nexpect.model.id = "m"\n')
    ended = CliRunner().invoke(main, ["check", str(tmp_path / "gpuinfra.toml")])
    assert ended.exit_code == 2
    assert "hosts.a: `expect.model.id` needs `endpoint`" in ended.output
