"""Naming many hosts: hostlists, groups, Ansible's own inventory, Slurm's nodes; aliases stay what they were."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pytest_gpuinfra.capture.selected import SelectedHost
from pytest_gpuinfra.errors import InventoryError
from pytest_gpuinfra.inventory.inventory import Inventory, parse_inventory
from pytest_gpuinfra.inventory.names.hostlist import expand, is_hostlist
from pytest_gpuinfra.inventory.names.slurm import pick_slurm_hosts
from pytest_gpuinfra.session.select import select_hosts


def inventory_of(text: str) -> Inventory:
    """Parse the text of an inventory."""
    return parse_inventory(tomllib.loads(text), "gpuinfra.toml")


def select(*names: str, inventory: str = "") -> list[SelectedHost]:
    """Give the hosts that options name."""
    return select_hosts(names, inventory_of(inventory), "gpuinfra.toml" if inventory else "")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[08-11]", ["node08", "node09", "node10", "node11"]),
        ("root@node[1-2]", ["root@node1", "root@node2"]),
        ("ssh://op@node[1-2]:2222", ["ssh://op@node1:2222", "ssh://op@node2:2222"]),
        ("login1,node[1-3/2]", ["login1", "node1", "node3"]),
        ("r[1-2]n[1-2].example.org", [f"r{r}n{n}.example.org" for r in (1, 2) for n in (1, 2)]),
        ("node[1,3],node[3,5]", ["node1", "node3", "node5"]),
        ("root@10.0.0.[9-11]", ["root@10.0.0.9", "root@10.0.0.10", "root@10.0.0.11"]),
    ],
)
def test_hostlist_stands_for_its_names(text: str, names: list[str]) -> None:
    """In the order of their numbers, padded as written, with what stands around the host's name."""
    assert is_hostlist(text)
    assert expand(text, "x") == names
    assert [host.destination for host in select(text)] == names


@pytest.mark.parametrize("text", ["node-a", "gpu-[ab]*", "gpu[!1]", "ssh://op@[2001:db8::1]:2222", "root@node-a"])
def test_what_is_no_hostlist_is_left_alone(text: str) -> None:
    """Globs with letters in brackets, and IPv6 addresses, are none."""
    assert not is_hostlist(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node[3-1]", "'3-1' in [3-1] is no range"),
        ("node[1-]", "'1-' in [1-] is no range"),
        ("node[1-2],", "nothing stands before or behind a comma"),
        ("user[1-2]@node", "has a range outside of the host's name"),
        ("node[1-900000000]", "more than 100000 hosts"),
        ("a[1-1000]b[1-1000]", "more than 100000 hosts"),
        ("node[1-3", "the brackets are neither a range of numbers nor an IPv6 address"),
        ("gpu-[ab]", "the brackets are neither a range of numbers nor an IPv6 address"),
        ("-oProxyCommand=x", "does not begin with a dash"),
    ],
)
def test_slip_in_a_hostlist_is_named(text: str, said: str) -> None:
    """What was written, what is wrong with it, and what would be legal."""
    with pytest.raises(InventoryError) as caught:
        select(text)
    assert f"--gpu-host={text}" in str(caught.value)
    assert said in str(caught.value)
    assert "what to do:" in str(caught.value)


def test_hostlist_of_aliases_takes_what_the_inventory_expects() -> None:
    """Declared ones by their alias, others as destinations; none twice."""
    hosts = select("n[1-3]", "n2", "root@n9", "root@n[8-9]", inventory="[hosts.n2]\naddress = 'root@192.0.2.2'\n")
    assert [(host.alias, host.destination) for host in hosts] == [
        ("n1", "n1"),
        ("n2", "root@192.0.2.2"),
        ("n3", "n3"),
        ("n9", "root@n9"),
        ("n8", "root@n8"),
    ]
    assert [host.expectation_from for host in hosts] == ["", "gpuinfra.toml", "", "", ""]


def test_same_name_with_another_user_is_another_host() -> None:
    """Its alias says so, and stays the same from run to run."""
    assert [host.alias for host in select("a@n1,b@n1,a@n1")] == ["n1", "n1-again"]


MANY = """
[defaults.expect]
kernel_release = "6.*"
[groups.rack1.expect]
driver_version = "580.*"
[hosts."node[01-04]"]
address = "root@{alias}.mgmt"
group = "rack1"
[hosts.node03]
address = "root@192.0.2.3"
expect = { driver_version = "575.*" }
[hosts.login]
"""


def test_hosts_of_the_file_may_be_hostlists() -> None:
    """One key for many; the keys of a host's own name come first; {alias} is filled in."""
    hosts = {host.alias: host for host in select("all", inventory=MANY)}
    assert list(hosts) == ["node01", "node02", "node03", "node04", "login"]
    assert hosts["node04"].destination == "root@node04.mgmt"
    assert hosts["node03"].destination == "root@192.0.2.3"
    assert [host.spec.expect.driver_version for host in hosts.values()] == ["580.*", "580.*", "575.*", "580.*", None]
    assert {host.spec.expect.kernel_release for host in hosts.values()} == {"6.*"}
    assert hosts["node01"].spec is hosts["node02"].spec


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[hosts.'n[1-3]']\n[hosts.'n[3-4]']", "hosts.n[3-4]: 'n3' is in hosts.n[1-3] as well"),
        ("[hosts.'n[3-1]']", "hosts.n[3-1]: '3-1' in [3-1] is no range"),
        ("[hosts.'n[1-2]']\nadress = 'x'", "hosts.n[1-2].adress: unknown key; did you mean 'address'?"),
        ("[hosts.'_[1-2]']", "hosts._1: an alias is letters"),
        ("[hosts.'n[1-2]']\ngroup = 'g'", "hosts.n[1-2].group: no [groups.g]"),
    ],
)
def test_slip_in_a_hostlist_of_the_file_is_named_once(text: str, said: str) -> None:
    """By its key, not once for each host."""
    with pytest.raises(InventoryError) as caught:
        inventory_of(text)
    assert said in str(caught.value)
    assert str(caught.value).count("adress") <= 1


def test_group_of_the_file_is_named_with_an_at_sign() -> None:
    """A group, or a glob of groups; an unknown one names those that there are."""
    assert [host.alias for host in select("@rack*", inventory=MANY)] == ["node01", "node02", "node03", "node04"]
    with pytest.raises(InventoryError, match=r"no host of gpuinfra.toml is in such a group; groups: @rack1"):
        select("@rack2", inventory=MANY)


ANSIBLE = """
all:
  vars: { ansible_user: root }
  children:
    gpu:
      children: { h200: {}, b200: {} }
    h200:
      hosts: { "node[01:02]": {}, odd: { ansible_host: 192.0.2.7, ansible_port: 2222, ansible_become: true } }
    b200:
      hosts: { v6: { ansible_host: "2001:db8::1", ansible_port: 2222, ansible_user: op } }
    odd_ones: { hosts: { switch: { ansible_connection: network_cli } } }
    templated: { hosts: { late: { ansible_user: "{{ lookup('env', 'USER') }}" } } }
    here: { hosts: { controller: { ansible_connection: local } } }
"""


@pytest.fixture
def ansible_file(tmp_path: Path) -> Path:
    """Give an inventory of Ansible's."""
    file = tmp_path / "hosts.yml"
    file.write_text(ANSIBLE)
    return file


def test_ansible_names_hosts_and_gpuinfra_toml_says_what_is_expected(ansible_file: Path) -> None:
    """Read by ansible-inventory itself: address, user, port, privilege; groups of the same name apply."""
    expected = "[groups.h200.expect]\ndriver_version = '580.*'\n[hosts.node02]\naddress = 'op@node02.mgmt'\n"
    hosts = select(f"ansible:{ansible_file}:gpu", inventory=expected)
    assert [(host.alias, host.destination, host.spec.sudo, host.spec.expect.driver_version) for host in hosts] == [
        ("node01", "root@node01", False, "580.*"),
        ("node02", "op@node02.mgmt", False, None),
        ("odd", "ssh://root@192.0.2.7:2222", True, "580.*"),
        ("v6", "ssh://op@[2001:db8::1]:2222", False, None),
    ]


def test_ansible_host_with_a_local_connection_is_this_machine(ansible_file: Path) -> None:
    """It is not reached by ssh."""
    assert [(host.alias, host.way) for host in select(f"ansible:{ansible_file}:here")] == [("controller", "local")]


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (":h20", "the inventory has no group 'h20'; did you mean 'h200'?"),
        (":odd_ones", "host switch: ansible_connection is 'network_cli', and hosts are reached by ssh"),
        (":templated", "host late: ansible_user is a template"),
        ("x", "there is no"),
    ],
)
def test_slip_in_an_ansible_inventory_is_named(ansible_file: Path, group: str, said: str) -> None:
    """A group that is not there, a host that cannot be taken over, a file that does not exist."""
    with pytest.raises(InventoryError) as caught:
        select(f"ansible:{ansible_file}{group}")
    assert said in str(caught.value)
    assert "what to do:" in str(caught.value)


def test_unreadable_ansible_inventory_is_an_error(tmp_path: Path) -> None:
    """Ansible alone calls it empty, and succeeds."""
    (tmp_path / "hosts.yml").write_text("all: [oops\n")
    with pytest.raises(InventoryError, match="ansible-inventory failed"):
        select(f"ansible:{tmp_path}/hosts.yml")


def test_missing_tools_are_named_with_what_brings_them(monkeypatch: pytest.MonkeyPatch, ansible_file: Path) -> None:
    """A machine without Slurm's clients, and one without Ansible."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InventoryError, match=r"there is no sinfo on this machine(?s:.*)slurm-client"):
        select("slurm:gpu")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(InventoryError, match=r"there is no ansible-inventory on this machine(?s:.*)ansible-core"):
        select(f"ansible:{ansible_file}")


SINFO = "gpu|n1|192.0.2.1\ngpu|n2|n2\ndebug|n2|n2\ndebug|login|login\n"


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("gpu", ["n1", "n2"]),
        ("gpu,debug", ["n1", "n2", "login"]),
        ("n[2,1]", ["n1", "n2"]),
        ("all", ["n1", "n2", "login"]),
        ("login,gpu", ["login", "n1", "n2"]),
    ],
)
def test_slurm_names_partitions_and_nodes(wanted: str, names: list[str]) -> None:
    """Each node once, at the address that Slurm uses, in the partitions that it is in."""
    hosts = pick_slurm_hosts(SINFO, wanted)
    assert [host.name for host in hosts] == names
    assert {host.name: (host.address, host.groups) for host in hosts if host.name in ("n1", "n2")} == {
        "n1": ("192.0.2.1", ("gpu",)),
        "n2": ("n2", ("gpu", "debug")),
    }


@pytest.mark.parametrize(
    ("text", "wanted", "said"),
    [
        (SINFO, "gpus", r"node 'gpus'; did you mean 'gpu'\?(?s:.*)partitions here: gpu, debug"),
        (SINFO, "n[2-3]", "no partition or node 'n3'"),
        ("", "all", "Slurm shows no node"),
        ("slurm_load_partitions: oops", "gpu", "a line of another shape: 'slurm_load_partitions: oops'"),
    ],
)
def test_what_slurm_does_not_know_is_named(text: str, wanted: str, said: str) -> None:
    """A node that Slurm does not list is an error, not left out."""
    with pytest.raises(InventoryError, match=said):
        pick_slurm_hosts(text, wanted)
