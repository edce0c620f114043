"""Names of containers, and exactly what enters them and tells their state, those that cannot run here included."""

from __future__ import annotations

import json

import pytest

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.connection.bootstrap import HOST_REACHED, nested_command
from pytest_gpuinfra.connection.container import parse_container
from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.connection.nested import NestedConnection, connect_container
from pytest_gpuinfra.connection.ssh import SshConnection
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.container.state import ContainerState, parse_container_state

ENTER = {
    "pct:129": "pct exec 129 --",
    "lxc:infer": "lxc-attach -n infer --",
    "incus:infer": "incus exec infer -T --",
    "lxd:infer": "lxc exec infer -T --",
    "docker:infer-1": "docker exec -i infer-1",
    "podman:infer_1": "podman exec -i infer_1",
}


@pytest.mark.parametrize("name", ENTER)
def test_enter_is_exactly_this(name: str) -> None:
    """What stands before the command, word for word."""
    assert " ".join(parse_container(name).enter) == ENTER[name]


@pytest.mark.parametrize("name", ENTER)
def test_session_runs_enter_and_a_shell_on_the_host(name: str) -> None:
    """Over ssh: one more session of the host's connection; the words come out of the shell as they went in."""
    outer = SshConnection("node-a", "root@192.0.2.1")
    try:
        connection = connect_container(outer, parse_container(name))
        assert isinstance(connection, NestedConnection)
        argv = connection._session_argv()
        assert argv[:-1] == outer.control_argv()
        tool, _, rest = ENTER[name].partition(" ")
        assert f"echo {HOST_REACHED}; " in argv[-1]
        assert f"; f {tool}; case $f$z in " in argv[-1]
        assert f"exec $f {rest} /bin/sh -c \"$0\"' '" in argv[-1]
    finally:
        outer.close()


def test_sudo_enters_by_sudo() -> None:
    """Root is needed to enter, not inside."""
    line = nested_command(("pct", "exec", "129", "--"), sudo=True)
    assert "exec sudo -n $f exec 129 -- /bin/sh -c" in line
    assert line.count("sudo") == 1


@pytest.mark.parametrize("name", [*ENTER, "nspawn:infer"])
def test_line_is_plain_for_any_login_shell(name: str) -> None:
    """Two pieces in single quotes, and nothing in them that csh or fish reads otherwise."""
    line = nested_command(parse_container(name).enter)
    assert line.count("'") == 4
    assert not set("!\n\\`") & set(line)


def test_own_address_goes_through_the_hosts_connection() -> None:
    """A ProxyCommand shares the host's control socket."""
    outer = SshConnection("node-a", "root@192.0.2.1", config="/tmp/config")
    try:
        inner = connect_container(outer, parse_container("ssh:root@10.0.0.5"))
        assert isinstance(inner, SshConnection)
        (proxy,) = [word for word in inner.control_argv() if word.startswith("ProxyCommand=")]
        assert f"ControlPath={outer._socket}" in proxy
        assert proxy.endswith("-W %h:%p -- root@192.0.2.1")
        assert inner.control_argv()[-1] == "root@10.0.0.5"
        inner.close()
    finally:
        outer.close()


def test_own_address_from_this_machine_needs_no_proxy() -> None:
    """The host is this machine."""
    inner = connect_container(LocalConnection("here"), parse_container("ssh:ct"))
    assert isinstance(inner, SshConnection)
    assert not [word for word in inner.control_argv() if word.startswith("ProxyCommand=")]
    inner.close()


@pytest.mark.parametrize(
    "name", ["129", "vm:1", "pct:web", "docker:a b", "lxc:-x", "docker:$(id)", "pct:", "docker:a;b", "ssh:-oX=1"]
)
def test_other_names_are_refused(name: str) -> None:
    """No shell text comes in by the inventory."""
    with pytest.raises(ValueError, match="takes"):
        parse_container(name)


def said(text: str, status: int = 0, stderr: str = "") -> Reading:
    """Give the output of a command."""
    return Reading("the command", text, None, status, stderr)


INSPECT = json.dumps({"state": "running", "pid": 7, "started": "x", "restart": "unless-stopped", "restarts": 0})
LISTED = json.dumps([{"name": "c", "status": "Running", "config": {}, "expanded_config": {"boot.autostart": "true"}}])
LISTED_SILENT = json.dumps([{"name": "c", "status": "Stopped", "config": {}}])


@pytest.mark.parametrize(
    ("kind", "node", "expected"),
    [
        ("pct", {"state": said("status: running\n"), "config": said("arch: amd64\nonboot: 1\n")}, ("running", True)),
        ("pct", {"state": said("status: stopped\n"), "config": said("arch: amd64\n")}, ("stopped", False)),
        ("pct", {"state": said("status: running\n"), "config": said("", 2, "locked")}, ("running", None)),
        ("lxc", {"state": said("RUNNING\n"), "config": Reading("f", "lxc.start.auto = 1\n")}, ("running", True)),
        ("lxc", {"state": said("STOPPED\n"), "config": Reading("f", None, "EACCES: no")}, ("stopped", None)),
        ("incus", {"state": said(LISTED)}, ("running", True)),
        ("lxd", {"state": said(LISTED_SILENT)}, ("stopped", None)),
        ("docker", {"state": said(INSPECT)}, ("running", True)),
        ("podman", {"state": said(INSPECT.replace("unless-stopped", "no"))}, ("running", False)),
        ("nspawn", {"state": said("State=running\nLeader=7\n"), "boot": said("disabled\n", 1)}, ("running", False)),
    ],
)
def test_state_is_read_in_each_tools_words(
    kind: str, node: dict[str, Reading], expected: tuple[str, bool | None]
) -> None:
    """Running or not, and whether it comes back after a reboot."""
    state = parse_container_state(kind, "c", node)
    assert (state.word, state.autostart) == expected
    assert state.running == (expected[0] == "running")


@pytest.mark.parametrize(
    ("kind", "text", "stderr"),
    [
        ("pct", "", "Configuration file 'nodes/x/lxc/129.conf' does not exist"),
        ("lxc", "", "c doesn't exist"),
        ("docker", "", "Error: No such container: c"),
        ("nspawn", "", "Could not get path to machine: No machine 'c' known"),
    ],
)
def test_no_such_container_is_not_a_stopped_one(kind: str, text: str, stderr: str) -> None:
    """Nothing was observed of it."""
    node = {"state": said(text, 1, stderr), "config": said(""), "boot": said("")}
    with pytest.raises(FactUnavailable, match="there is no container"):
        parse_container_state(kind, "c", node)


@pytest.mark.parametrize("kind", ["pct", "lxc", "incus", "docker", "nspawn"])
def test_other_words_are_no_state(kind: str) -> None:
    """A tool that says something else is not understood, never taken for running."""
    node = {"state": said(""), "config": said(""), "boot": said("")}
    with pytest.raises((ParseError, FactUnavailable)):
        parse_container_state(kind, "c", node)


def test_missing_tool_is_unknown() -> None:
    """A host without pct is perhaps not the container's host."""
    node = {"state": Reading("pct", None, "ENOENT: No such file or directory"), "config": said("")}
    with pytest.raises(FactUnavailable, match="ENOENT"):
        parse_container_state("pct", "129", node)


def test_states_compare() -> None:
    """Plain values."""
    assert ContainerState("running", True, "x") == ContainerState("running", True, "x")
