"""What was recorded of one unit, container, host or endpoint is not taken for what the inventory names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pytest_gpuinfra.cli import main
from pytest_gpuinfra.connection.destination import refusal, url_refusal
from pytest_gpuinfra.errors import InventoryError
from pytest_gpuinfra.inventory.inventory import Inventory
from pytest_gpuinfra.session.select import select_hosts
from tests.plugin.conftest import REFERENCE, judge_recording

SUITES = Path(__file__).parents[2] / "suites"
SGLANG = REFERENCE.parent / "sglang" / "recording.json"


@pytest.mark.parametrize(
    ("key", "other", "files", "names"),
    [
        (
            'service = "sglang-qwen"',
            'service = "another"',
            ("test_service_unit.py",),
            ("sglang-qwen.service", "another.service"),
        ),
        (
            'container = "pct:129"',
            'container = "pct:130"',
            ("test_container_state.py", "test_service_unit.py"),
            ("pct:129", "pct:130"),
        ),
        ('container = "pct:129"', 'container = "docker:129"', ("test_container_state.py",), ("pct:129", "docker:129")),
        ('container = "pct:129"', "", ("test_service_unit.py",), ("pct:129", "the host itself")),
        (
            'address = "root@192.0.2.10"',
            'address = "root@192.0.2.99"',
            ("test_service_unit.py", "test_container_state.py"),
            ("root@192.0.2.10", "root@192.0.2.99"),
        ),
    ],
)
def test_recording_of_another_is_an_error_that_names_both(
    tmp_path: Path, key: str, other: str, files: tuple[str, ...], names: tuple[str, str]
) -> None:
    """Nothing passes, nothing fails: nothing was seen of what the inventory names."""
    text = (REFERENCE / "gpuinfra.toml").read_text()
    assert key in text
    if not other:
        text = (
            text.split("[hosts.node-a.expect.container]")[0]
            + text.partition("[hosts.node-a.expect.service]")[1]
            + (text.partition("[hosts.node-a.expect.service]")[2])
        )
    for copy in REFERENCE.iterdir():
        if copy.is_dir():
            (tmp_path / copy.name).symlink_to(copy)
        elif copy.suffix in (".service", ".conf"):
            (tmp_path / copy.name).write_text(copy.read_text())
    (tmp_path / "gpuinfra.toml").write_text(text.replace(key, other))
    suites = [str(SUITES / "serving" / file) for file in files]
    judged = judge_recording(tmp_path, str(REFERENCE / "recording.json"), "--gpu-inventory=gpuinfra.toml", *suites)
    found = judged.of_host("node-a")
    assert found.ended("error"), judged.output
    assert [name for name in found.ended("passed", "failed") if "[host]" not in name] == []
    message = found.messages[found.ended("error")[0]]
    assert all(name in message for name in names), message


def test_endpoint_of_another_address_is_an_error_that_names_both(tmp_path: Path) -> None:
    """By the inventory, and by the command line; the one that was asked, by any way of writing it, is judged."""
    document = json.loads(SGLANG.read_text())
    document |= {"hosts": {"plain": document["hosts"]["plain"]}, "order": ["plain"], "results": []}
    (tmp_path / "r.json").write_text(json.dumps(document))
    inventory = ("--gpu-inventory=gpuinfra.toml",)
    suites = [str(SUITES / "serving" / name) for name in ("test_endpoint_ready.py", "test_endpoint_answers.py")]
    other = "http://127.0.0.1:39999"
    judged = judge_recording(tmp_path, "r.json", f"--gpu-endpoint={other}", *suites)
    found = judged.of_host("plain")
    assert found.ended("passed", "failed") == []
    message = found.messages[found.ended("error")[0]]
    assert "http://127.0.0.1:30000" in message
    assert other in message
    (tmp_path / "gpuinfra.toml").write_text(f'[hosts.plain]\nendpoint = "{other}"\n')
    assert judge_recording(tmp_path, "r.json", *inventory, *suites).of_host("plain").ended("passed", "failed") == []
    (tmp_path / "gpuinfra.toml").write_text('[hosts.plain]\nendpoint = "http://127.0.0.1:30000/v1/"\n')
    assert judge_recording(tmp_path, "r.json", *inventory, *suites).of_host("plain").ended("passed")


BAD = (
    "-oProxyCommand=touch /tmp/x",
    "-v",
    "root@-oProxyCommand=x",
    "-l@host",
    "ssh://-x",
    "ssh://root@-x:22",
    "a b",
    "a\tb",
    "a\nb",
    "a\x1bb",
    "a\u202eb",
    "a\u00a0b",
    "host%h",
    "%h@host",
    "ssh://%25h@host",
    "$(id)@host",
    "host`id`",
    "ho'st",
    'ho"st',
    "host;id",
    "host|id",
    "host&",
    "a<b",
    "{a}",
    "root@",
    "@host",
    "ssh://host:99999",
    "ssh://host:x",
    "back\\@host",
    "[a]",
    "ssh://root%0a@host",
)
GOOD = (
    "node-a",
    "root@node-a",
    "root@192.0.2.10",
    "ssh://root@192.0.2.10:2222",
    "ssh://host",
    "root@2001:db8::1",
    "ssh://op@[2001:db8::1]:2222",
    "root@fe80::1%eth0",
    "ssh://root@[fe80::1%eth0]:22",
    "first.last@node_1.example.org",
    "user@domain@host",
    "DOMAIN\\user@host",
    "machine$@host",
    "ssh://user%40domain@host",
    "rack1/node3",
    "bücher.example",
)


@pytest.mark.parametrize("text", BAD)
def test_what_ssh_would_take_for_something_else_is_no_destination(tmp_path: Path, text: str) -> None:
    """In the inventory, by `gpuinfra check` with file and key; of a container, of a group; and on the command line."""
    assert refusal(text)
    keys = {
        "hosts.a.address": f"[hosts.a]\naddress = {json.dumps(text)}\n",
        "hosts.a.container": f"[hosts.a]\ncontainer = {json.dumps('ssh:' + text)}\n",
        "collectives.g.addresses.a": (
            f'[hosts.a]\n[hosts.b]\n[collectives.g]\nhosts = ["a", "b"]\naddresses = {{ a = {json.dumps(text)} }}\n'
        ),
    }
    for key, content in keys.items():
        (tmp_path / "gpuinfra.toml").write_text(content)
        ended = CliRunner().invoke(main, ["check", str(tmp_path / "gpuinfra.toml")])
        assert ended.exit_code == 2, (key, ended.output)
        assert "gpuinfra.toml:" in ended.output
        assert key in ended.output, ended.output
        assert text not in ended.output or text.isprintable()
    if "[" not in text:
        with pytest.raises(InventoryError):
            select_hosts([text], Inventory(), "")


@pytest.mark.parametrize("text", GOOD)
def test_what_ssh_reaches_is_a_destination(text: str) -> None:
    """All that is legal stays legal."""
    assert refusal(text) == ""
    (host,) = select_hosts([text], Inventory(), "")
    assert host.destination == text


@pytest.mark.parametrize(
    "content",
    [
        '[hosts.a]\nservice = "-x"',
        '[hosts.a]\nservice = "a*"',
        '[hosts.a]\nservice = "a b"',
        '[hosts.a]\nservice = "../x"',
        '[hosts.a.expect.units]\n"--all" = "active"',
        '[hosts.a.expect.units]\n"nvidia*" = "active"',
        '[hosts.a]\ncontainer = "docker:-x"',
        '[hosts.a]\ncontainer = "docker:a b"',
        '[hosts.a]\nendpoint = "http://-x:1"',
        '[hosts.a]\nendpoint = "http://a b"',
        '[hosts.a]\nendpoint = "http://$(id)/"',
        '[hosts.a]\nendpoint = "http://a:99999"',
        '[hosts.a]\nendpoint = "http://"',
        '[hosts.a]\napi_key_env = "-x"',
    ],
)
def test_names_that_tools_would_take_for_options_are_refused(tmp_path: Path, content: str) -> None:
    """Units, containers, endpoints, variables: file, key, what is legal."""
    (tmp_path / "gpuinfra.toml").write_text(content)
    ended = CliRunner().invoke(main, ["check", str(tmp_path / "gpuinfra.toml")])
    assert ended.exit_code == 2, ended.output
    assert "gpuinfra.toml:" in ended.output
    assert "hosts.a." in ended.output


@pytest.mark.parametrize("text", ["http://localhost:30000", "https://api.example.org/v1", "http://[::1]:8000"])
def test_addresses_of_endpoints_stay_legal(text: str) -> None:
    """As engines print them."""
    assert url_refusal(text) == ""
