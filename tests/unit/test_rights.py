"""The command line that asks for reading rights, and the sudoers file that grants it."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from pytest_gpuinfra.cli import main
from pytest_gpuinfra.connection.bootstrap import remote_command
from pytest_gpuinfra.connection.rights import READ_PYTHONS, explain_refusal, sudoers_text
from pytest_gpuinfra.inventory.inventory import parse_inventory


def granted(user: str, group: str) -> list[str]:
    """Give the commands of the file as sudo compares them: one text a command, escapes taken away."""
    lines = sudoers_text(user, group).replace("\\\n", " ").splitlines()
    (alias,) = [line.partition(" = ")[2] for line in lines if line.startswith("Cmnd_Alias GPUINFRA_READ = ")]
    commands = re.split(r"(?<!\\),", alias)
    return [re.sub(r"\\(.)", r"\1", command).strip() for command in commands]


def test_what_is_granted_is_what_is_asked_for() -> None:
    """The text behind `sudo -n` in the session's command line is that of the file, for each Python."""
    line = remote_command(sudo="read")
    asked = line.partition("exec sudo -n ")[2].partition("$f ")[0]
    asked = asked.replace("$(id -un)", "op").replace("$(id -gn)", "users")

    assert granted("op", "users") == [f"{asked}{python} *" for python in READ_PYTHONS]
    assert f"for f in {' '.join(READ_PYTHONS)}; do" in line


def test_wildcard_stands_behind_the_program_alone() -> None:
    """No option of setpriv is free, and nothing that sudoers would expand stands in front of the program."""
    for command in granted("op", "op"):
        words, python, rest = command.rpartition(" /usr/")
        assert re.fullmatch(r"/usr/bin/setpriv( --[a-z-]+(=[-+a-z_,]+)?)+", words)
        assert f"{python}{rest}" in [f" {path} *" for path in READ_PYTHONS]


def test_command_line_survives_every_shell() -> None:
    """Within its single quotes it holds nothing that a csh or fish reads otherwise."""
    text = remote_command(sudo="read").removeprefix("exec /bin/sh -c '").removesuffix("'")
    assert not set(text) & set("'!\\\n")


@pytest.mark.parametrize(
    "name", ["", "a b", "ALL", "root,op", "op=", "-u", "op\nroot ALL=(ALL) ALL", "#0", "%wheel", "ö"]
)
def test_name_that_sudoers_would_read_otherwise_is_refused(name: str) -> None:
    """A name is plain, or nothing is printed."""
    ended = CliRunner().invoke(main, ["sudoers", f"--user={name}"])
    assert ended.exit_code == 2
    assert "Cmnd_Alias" not in ended.output
    assert CliRunner().invoke(main, ["sudoers", "--user=op", f"--group={name}"]).exit_code == 2 or not name


@pytest.mark.parametrize(
    ("sudo", "output", "meant"),
    [
        (True, "sudo: a password is required\n", "sudo -n python3"),
        ("read", "sudo: a password is required\n", "gpuinfra sudoers --user=NAME"),
        ("read", "motd\nsetpriv: unrecognized option '--ambient-caps=-all'\n", "util-linux 2.31"),
    ],
)
def test_refusal_says_what_to_allow(sudo: bool, output: str, meant: str) -> None:
    """Refused by sudo or by setpriv, the remedy is that of the rights that were asked for."""
    refusal = explain_refusal("node-a", sudo, output)
    assert refusal is not None
    assert meant in str(refusal)


def test_other_failures_are_no_refusal() -> None:
    """Without sudo, and for what neither of the two says."""
    assert explain_refusal("node-a", False, "sudo: a password is required\n") is None
    assert explain_refusal("node-a", "read", "Connection closed by peer, sudo or not") is None


def test_inventory_takes_both_rights() -> None:
    """`sudo` is true, false or "read", and nothing else."""
    hosts = parse_inventory({"hosts": {"a": {"sudo": "read"}, "b": {"sudo": True}}}, "here").hosts
    assert (hosts["a"].sudo, hosts["b"].sudo) == ("read", True)
    with pytest.raises(Exception, match="sudo"):
        parse_inventory({"hosts": {"a": {"sudo": "some"}}}, "here")
