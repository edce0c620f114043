"""The probe, run for real on this machine: text or the error in its place, and no opinion."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinfra.capture import capture
from pytest_gpuinfra.capture.capture import Capture, take_capture
from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.errors import CommandTimeout, FactUnavailable, ProbeError, UnreachableError
from tests.recorded.made_host import probe_module


def ask(*requests: capture.Request, deadline_s: float = 30.0) -> Capture:
    """Capture this machine by these requests."""
    connection = LocalConnection("here")
    try:
        return take_capture(connection, requests, reached_by="local", timeout_s=deadline_s)
    finally:
        connection.close()


def test_files_links_and_listings_give_text_or_errno(tmp_path: Path) -> None:
    """Each item stands for itself; a missing one is told apart from an empty one."""
    (tmp_path / "text").write_bytes("grün\xff\n".encode() + b"\xff")
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("text")
    node = ask(
        capture.node(
            "x",
            capture.file("text", f"{tmp_path}/text"),
            capture.file("empty", f"{tmp_path}/empty"),
            capture.file("missing", f"{tmp_path}/missing"),
            capture.file("directory", f"{tmp_path}"),
            capture.hexadecimal("hex", f"{tmp_path}/text"),
            capture.link("link", f"{tmp_path}/link"),
            capture.listing("names", f"{tmp_path}"),
            capture.status("stat", f"{tmp_path}/text"),
        )
    ).node("x")
    assert node["text"].text == "grünÿ\n\\xff"
    assert (node["empty"].text, node["empty"].missing) == ("", False)
    assert (node["missing"].text, node["missing"].missing) == (None, True)
    assert (node["directory"].error or "").startswith("EISDIR")
    assert node["hex"].text == (tmp_path / "text").read_bytes().hex()
    assert node["link"].text == "text"
    assert node["names"].text == "empty\nlink\ntext"
    assert json.loads(node["stat"].text or "")["size"] == 9


def test_a_name_that_others_chose_is_one_line(tmp_path: Path) -> None:
    """A line feed in a file's name, or in a link, makes no second name."""
    (tmp_path / "a\nb").touch()
    (tmp_path / "link").symlink_to("a\nb")
    node = ask(capture.node("x", capture.listing("names", f"{tmp_path}"), capture.link("link", f"{tmp_path}/link")))
    assert node.node("x")["names"].text == "a\\x0ab\nlink"
    assert node.node("x")["link"].text == "a\\x0ab"


def test_text_that_was_cut_is_no_text(tmp_path: Path) -> None:
    """Of a file that is too long, what stands behind the cut is unknown; nobody may take the rest for the whole."""
    (tmp_path / "long").write_text("a\n" * 140000)
    node = ask(
        capture.node(
            "x", capture.file("file", f"{tmp_path}/long"), capture.command("command", "seq", "1000000", "1999999")
        )
    ).node("x")
    for name, read in (("file", 262144), ("command", 4194304)):
        with pytest.raises(FactUnavailable, match=f"too long: only its first {read} characters were read"):
            node[name].require()
        assert not node[name].missing


def test_commands_give_output_status_and_deadline() -> None:
    """A command that fails, one that is not there, and one that hangs are three things."""
    node = ask(
        capture.node(
            "x",
            capture.command("good", "sh", "-c", "echo out; echo err >&2"),
            capture.command("bad", "sh", "-c", "exit 3"),
            capture.command("none", "no-such-program"),
            capture.command("slow", "sleep", "30", timeout_s=0.2),
        )
    ).node("x")
    assert (node["good"].text, node["good"].stderr, node["good"].exit_status) == ("out\n", "err\n", 0)
    assert node["bad"].exit_status == 3
    with pytest.raises(FactUnavailable, match="exit status 3"):
        node["bad"].require_success()
    assert node["none"].missing
    with pytest.raises(FactUnavailable, match="ETIMEDOUT"):
        node["slow"].require()


def test_long_text_is_cut_and_counted(tmp_path: Path) -> None:
    """A file beyond the limit keeps its beginning; the answer says how much was left out."""
    (tmp_path / "long").write_text("x" * 300000)
    answer = ask(capture.node("x", capture.file("long", f"{tmp_path}/long"))).answers["x"][""]["long"]
    assert len(answer["t"]) == 262144
    assert answer["cut"] > 0


def test_tree_asks_each_entry_the_same(tmp_path: Path) -> None:
    """A filter takes entries by the beginning of a file or by name; a missing directory is an empty tree."""
    for name, kind in (("a", "0x03"), ("b", "0x02"), ("c", "0x02")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "class").write_text(kind)
    where = {"file": "class", "prefixes": ["0x03"], "or": ["c"]}
    taken = ask(
        capture.tree("all", str(tmp_path), capture.file("class", "class")),
        capture.tree("some", str(tmp_path), capture.file("class", "class"), where=where),
        capture.tree("none", f"{tmp_path}/none", capture.file("class", "class")),
        capture.tree("file", f"{tmp_path}/a/class", capture.file("class", "class")),
    )
    assert sorted(taken.tree("all")) == ["a", "b", "c"]
    assert sorted(taken.tree("some")) == ["a", "c"]
    assert taken.tree("some")["a"]["class"].source == f"{tmp_path}/a/class"
    assert taken.tree("none") == {}
    with pytest.raises(FactUnavailable, match="ENOTDIR"):
        taken.tree("file")


def test_what_nobody_asked_is_unavailable() -> None:
    """An answer that is not there is never an empty one."""
    with pytest.raises(FactUnavailable, match="the capture does not hold it"):
        ask().node("boot")


def test_probe_that_hangs_is_a_capture_that_says_so() -> None:
    """The deadline of the whole capture holds, and names what to look at."""
    taken = ask(capture.node("x", capture.command("slow", "sleep", "60", timeout_s=60)), deadline_s=0.5)
    with pytest.raises(ProbeError, match=r"did not end within 0\.5 s"):
        taken.check_reached()


def test_unknown_request_is_an_error_of_that_request() -> None:
    """A request of another kind spoils nothing else."""
    taken = ask({"id": "odd", "kind": "odd"}, capture.node("x", capture.file("f", "/proc/uptime")))
    assert taken.node("x")["f"].text
    with pytest.raises(FactUnavailable, match="knows no request kind"):
        taken.tree("odd")


@pytest.mark.parametrize("damage", [{"exit": 1}, {"stdout": "no json"}, {"stdout": '{"schema": 99}'}])
def test_answer_of_another_shape_is_a_probe_error(damage: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that dies, prints something else, or speaks another schema gives no capture that could be judged."""
    program = f"print({damage.get('stdout', '')!r}, end=''); raise SystemExit({damage.get('exit', 0)})"
    monkeypatch.setattr(capture, "_probe_source", lambda: program)
    with pytest.raises(ProbeError):
        ask().check_reached()


def test_capture_survives_its_json() -> None:
    """What is written down is what was taken, errors included."""
    taken = ask(capture.node("x", capture.file("f", "/proc/sys/kernel/osrelease")))
    assert Capture.from_json("here", json.loads(json.dumps(taken.to_json()))).node("x") == taken.node("x")
    failed = Capture("a", "ssh a", (), error=("UnreachableError", "a: no route to it", "check the network"))
    again = Capture.from_json("a", json.loads(json.dumps(failed.to_json())))
    with pytest.raises(UnreachableError, match="a: no route to it"):
        again.check_reached()


def test_deadline_error_says_command_and_output() -> None:
    """The caller of a command learns what it had written by then."""
    connection = LocalConnection("here")
    with pytest.raises(CommandTimeout, match="said this") as caught:
        connection.run(["sh", "-c", "echo said this; sleep 30"], timeout_s=0.5)
    assert caught.value.timeout_s == 0.5


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/usr/bin/python3").exists(), reason="needs root and a system Python")
def test_start_of_a_services_python_runs_as_its_user() -> None:
    """What sitecustomize does is tried with the service's rights, environment and flags, never with the probe's."""
    probe = probe_module("probe_service")
    environment = {"NCCL_PROTO": "LL", "HF_TOKEN": "x", "PYTHONSTARTUP": "/x"}
    argv = ["/usr/bin/python3", "-B", "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(argv, user=65534, group=65534, extra_groups=[], env=environment, cwd="/") as service:
        time.sleep(0.3)
        seen = json.loads(probe.run_startup(probe.Subject(service.pid), ["NCCL_*", "PYTHON*"])["t"])
        code = probe.STARTUP
        probe.STARTUP = (
            "import json, os; print(json.dumps({'version': '', 'executable': '', 'prefix': '', 'files': {},"
            " 'times': {}, 'environ': {'NCCL_UID': str(os.getuid())}}))"
        )
        who = json.loads(probe.run_startup(probe.Subject(service.pid), ["NCCL_*"])["t"])
        probe.STARTUP = code
        service.kill()
    assert seen["environ"] == {"NCCL_PROTO": "LL", "PYTHONSTARTUP": "/x"}
    assert seen["executable"] == "/usr/bin/python3"
    assert who["environ"] == {"NCCL_UID": "65534"}
