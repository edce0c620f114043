"""The inventory's words on containers and services: what is taken, what is refused, and what travels along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinfra.errors import InventoryError
from pytest_gpuinfra.host.requests import requests_on_host
from pytest_gpuinfra.inventory.inventory import parse_inventory, read_inventory


def host(**keys: Any) -> dict[str, Any]:
    """Give an inventory of one host."""
    return {"hosts": {"a": keys}}


def test_names_are_put_into_one_form() -> None:
    """A unit without a suffix is a service."""
    spec = parse_inventory(host(container="pct:129", service="sglang-qwen"), "x").hosts["a"]
    assert (spec.container, spec.service) == ("pct:129", "sglang-qwen.service")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"container": "129"}, "takes KIND:NAME"),
        ({"container": "pct:web"}, "takes pct:NUMBER"),
        ({"container": "docker:$(id)"}, "holds letters"),
        ({"service": "-x"}, "takes the name of a systemd unit"),
        ({"service": "a/b"}, "takes the name of a systemd unit"),
        ({"expect": {"service": {"enabled": True}}}, "`expect.service` needs `service`"),
        ({"expect": {"container": {"autostart": True}}}, "`expect.container` needs `container`"),
        ({"service": "x", "expect": {"service": {"ranks": 1, "transport": "SHM"}}}, "needs two ranks"),
        (
            {"service": "x", "expect": {"service": {"transport": "SHM", "environment": {"NCCL_SHM_DISABLE": "1"}}}},
            "exclude each other",
        ),
        ({"service": "x", "expect": {"service": {"environment": {"A": True}}}}, "environment"),
        ({"service": "x", "expect": {"service": {"enviroment": {}}}}, "did you mean 'environment'"),
        ({"container": "pct:1", "expect": {"container": {"shm_min_gib": 0}}}, "shm_min_gib"),
    ],
)
def test_what_makes_no_sense_is_refused(keys: dict[str, Any], words: str) -> None:
    """Before any host is touched."""
    with pytest.raises(InventoryError, match=words.replace("(", r"\(").replace("$", r"\$")):
        parse_inventory(host(**keys), "x")


def test_numbers_are_words_and_false_is_not_set() -> None:
    """TOML has numbers; a process has text."""
    expect = {"service": {"environment": {"NCCL_NTHREADS": 512, "NCCL_P2P_LEVEL": False}, "arguments": {"--tp": 4}}}
    spec = parse_inventory(host(service="x", expect=expect), "x").hosts["a"].expect.service
    assert spec.environment == {"NCCL_NTHREADS": "512", "NCCL_P2P_LEVEL": False}
    assert spec.arguments == {"--tp": "4"}


def test_users_copies_travel_with_the_expectation(tmp_path: Path) -> None:
    """A worker, a recording and a replay on another machine have them; secrets in them are masked."""
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy/x.service").write_text("[Service]\nEnvironment=HF_TOKEN=hunter22\n")
    (tmp_path / "deploy/o.conf").write_text("[Service]\n")
    (tmp_path / "gpuinfra.toml").write_text(
        '[hosts.a]\nservice = "x"\n[hosts.a.expect.service]\nunit_file = "deploy/x.service"\n'
        'drop_ins = { "o.conf" = "deploy/o.conf" }\n'
    )
    spec = read_inventory(tmp_path / "gpuinfra.toml").hosts["a"]
    assert spec.expect.service.unit_file_text == "[Service]\nEnvironment=HF_TOKEN=[masked]\n"
    assert spec.expect.service.drop_in_texts == {"o.conf": "[Service]\n"}
    again = parse_inventory({"hosts": {"a": spec.model_dump(mode="json", exclude_defaults=True)}}, "x").hosts["a"]
    assert again == spec


def test_copy_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Its path is said."""
    (tmp_path / "gpuinfra.toml").write_text('[hosts.a]\nservice = "x"\n[hosts.a.expect.service]\nunit_file = "no"\n')
    with pytest.raises(InventoryError, match=f"{tmp_path}/no: cannot be read"):
        read_inventory(tmp_path / "gpuinfra.toml")


def test_nothing_named_asks_nothing() -> None:
    """A host without container and service costs nothing more."""
    assert requests_on_host(parse_inventory(host(), "x").hosts["a"]) == []


def test_service_without_a_container_is_asked_on_the_host() -> None:
    """Its request is not wrapped, and the list of variables goes along."""
    expect = {"service": {"read_environment": ["MY_*"], "environment": {"OTHER": "1"}}}
    requests = {
        one["id"]: one for one in requests_on_host(parse_inventory(host(service="x", expect=expect), "x").hosts["a"])
    }
    assert requests["service"]["unit"] == "x.service"
    assert {"NCCL_*", "MY_*", "OTHER"} <= set(requests["service"]["names"])
    assert "HF_TOKEN" not in requests["service"]["names"]


def test_container_is_entered_once_for_everything() -> None:
    """One session inside holds the service's request, too."""
    requests = requests_on_host(parse_inventory(host(container="lxc:web", service="x"), "x").hosts["a"])
    (inside,) = [one for one in requests if one["kind"] == "inside"]
    assert inside["enter"][:4] == ["lxc-attach", "-n", "web", "--"]
    assert "service" in [one["id"] for one in inside["requests"]]
    assert "service" not in [one["id"] for one in requests]
