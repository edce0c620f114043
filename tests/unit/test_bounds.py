"""What is read on a target is bounded while it is read, and what a container answers is checked before it is used."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from pytest_gpuinfra.capture import capture
from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.endpoint.json_text import read_json
from pytest_gpuinfra.errors import FactUnavailable, RecordingError
from pytest_gpuinfra.gather.gpu import GpuRuns, GpuRunSettings
from pytest_gpuinfra.input_file import parse_json
from pytest_gpuinfra.subjects.service.process import parse_limits
from pytest_gpuinfra.wire import Lines, WireError, load
from tests.fuzz.hostile import SAY, HostileConnection, event_output, frame, output, probe_output, session


def ask(*requests: capture.Request) -> capture.Capture:
    """Ask this machine."""
    connection = LocalConnection("here")
    try:
        taken = capture.take_capture(connection, requests, reached_by="local", timeout_s=60)
    finally:
        connection.close()
    taken.check_reached()
    return taken


@pytest.mark.parametrize(
    ("stream", "reason"), [("", "too long: only its first"), (">&2", "EFBIG: it printed more than")]
)
def test_command_that_prints_without_end_is_killed_with_its_group(stream: str, reason: str) -> None:
    """The item is an error with the reason, at once, and the others of the same answer are whole."""
    mark = f"y{os.getpid()}{len(stream)}"
    flood = capture.command("flood", "sh", "-c", f"yes {mark} {stream} & yes {mark} {stream}", timeout_s=40)
    node = ask(capture.node("x", flood, capture.command("good", "echo", "it"))).node("x")
    with pytest.raises(FactUnavailable, match=reason):
        node["flood"].require()
    assert node["good"].require_success() == "it\n"
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _has(pid, f"yes\0{mark}")]


def _has(pid: str, text: str) -> bool:
    try:
        return text.encode() in Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return False


def test_many_floods_at_once_leave_their_beginnings_and_an_answer() -> None:
    """All answers together are bounded, too: what is cut for that says so."""
    nodes = [capture.node(f"x{n}", capture.command("flood", "sh", "-c", "yes | head -c 4000000")) for n in range(8)]
    taken = ask(*nodes, capture.node("y", capture.file("file", "/proc/sys/kernel/osrelease")))
    errors = [taken.node(f"x{number}")["flood"].error or "" for number in range(8)]
    assert sum("only its first 4096 characters" in error for error in errors) >= 4
    assert taken.node("y")["file"].require()


@pytest.mark.parametrize("leave", ["sleep 77777 &", "setsid sleep 77777 &"])
def test_process_that_holds_the_output_does_not_hold_the_probe(leave: str) -> None:
    """What a command leaves behind may keep its pipe open; the output is there a second later all the same."""
    began = time.monotonic()
    node = ask(capture.node("x", capture.command("it", "sh", "-c", f"{leave} echo done", timeout_s=50))).node("x")
    assert node["it"].require_success() == "done\n"
    assert time.monotonic() - began < 40
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _has(pid, "sleep\x0077777")]


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A FIFO would wait and a device might act: neither is opened, nor by way of a link."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "bytes\udcff.conf").write_text("")
    node = ask(
        capture.node(
            "x",
            *(capture.file(name, str(tmp_path / name)) for name in ("fifo", "link")),
            capture.file("zero", "/dev/zero"),
            capture.hexadecimal("hex", "/dev/zero"),
            capture.listing("names", str(tmp_path)),
        )
    ).node("x")
    for name in ("fifo", "link", "zero", "hex"):
        with pytest.raises(FactUnavailable, match="EINVAL: no regular file"):
            node[name].require()
    assert node["names"].require() == "bytes\\xff.conf\nfifo\nlink"


def test_directory_of_too_many_entries_is_refused_as_a_whole(tmp_path: Path) -> None:
    """Part of a listing is no listing."""
    for number in range(16385):
        os.mknod(tmp_path / str(number))
    taken = ask(
        capture.tree("tree", str(tmp_path), capture.status("it", ".")),
        capture.node("x", capture.listing("names", str(tmp_path)), capture.listing("one", str(tmp_path), "77")),
    )
    with pytest.raises(FactUnavailable, match="EFBIG: more than 16384 names"):
        taken.tree("tree")
    assert "EFBIG" in (taken.node("x")["names"].error or "")
    assert taken.node("x")["one"].require() == "77"


BAD = "the answer from inside is no answer of a probe"
INNER = {
    "another's request": (session(probe_output({"host": {"": {"release": {"t": "forged"}}}})), BAD),
    "its own way in": (session(probe_output({"way-in": {"": {"session": {"t": "forged"}}}})), BAD),
    "nested": (session(output(b"[" * 100000)), BAD),
    "no last frame": (session(probe_output({}), end=b""), "exit status"),
    "last frame a list": (session(probe_output({}), end=frame(b"x", b"[]")), "exit status"),
    "flood": (session(output(b" " * (14 << 20))), "EFBIG: it printed more than"),
}


@pytest.mark.parametrize("what", INNER)
def test_container_that_answers_what_it_likes_spoils_itself_alone(tmp_path: Path, what: str) -> None:
    """The host's own answers stand, and what was asked inside is an error with the reason."""
    said, reason = INNER[what]
    (tmp_path / "said").write_bytes(said)
    enter = [sys.executable, "-IS", "-c", SAY, str(tmp_path / "said")]
    taken = ask(
        capture.node("host", capture.file("release", "/proc/sys/kernel/osrelease")),
        capture.inside("way-in", enter, [capture.node("in", capture.file("release", "/proc/sys/kernel/osrelease"))]),
    )
    assert taken.node("host")["release"].require() == Path("/proc/sys/kernel/osrelease").read_text()
    with pytest.raises(FactUnavailable, match=reason):
        taken.node("in")


def test_run_without_a_plan_proves_nothing() -> None:
    """A GPU program that is complete, or has results, and never said on which boot and what, is an error."""
    end = json.dumps({"event": "end", "complete": True, "took_s": 1.0, "stuck": []})
    connection = HostileConnection(session(event_output([end])))

    def baseline() -> None:
        raise FactUnavailable("x", "there is none")

    runs = GpuRuns("evil", GpuRunSettings(()), lambda: connection, lambda: connection, baseline, lambda: "b")  # type: ignore[arg-type]
    try:
        with pytest.raises(Exception, match="its events do not fit together: complete without a plan"):
            _ = runs.cuda
    finally:
        connection.close()


def test_half_of_a_process_limits_is_an_error_of_ours() -> None:
    """The kernel tells all limits: a line that is half, or a limit that is missing, was lost on the way."""
    line = "Max locked memory         8388608              8388608              bytes\n"
    whole = parse_limits(Reading("/proc/7/limits", "Limit  Soft Limit\n" + line))
    assert whole["Max locked memory"] == 8388608
    with pytest.raises(Exception, match="no Max open files among the limits"):
        _ = whole["Max open files"]
    with pytest.raises(Exception, match="not a limit of a process"):
        parse_limits(Reading("/proc/7/limits", "Limit  Soft Limit\n" + line + "Max open fi"))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 33 + "]" * 33,
        "[" * 100000,
        '{"a": NaN}',
        "1e999",
        "9" * 30,
        "9" * 5000,
        '"\\ud800"',
        '{"\\udc00": 1}',
        '{"a": 1, "a": 2}',
        "{",
        "",
    ],
)
def test_json_that_nobody_may_pass_on_is_refused(text: str) -> None:
    """Too deep, no number, beyond 64 bits, half a surrogate pair, or no JSON."""
    with pytest.raises(WireError):
        load(text)


@pytest.mark.parametrize("text", ["[" * 65 + "]" * 65, "[" * 100000, "[NaN]", "1e999", "9" * 21, '"\\ud800"', "{", ""])
def test_files_and_servers_are_read_as_strictly(text: str) -> None:
    """Whatever is refused off the wire is refused in a file and from a server, each in its own error."""
    with pytest.raises(RecordingError, match=r"x\.json: "):
        parse_json(text, "x.json", RecordingError)
    with pytest.raises(WireError):
        read_json(text)


def test_why_json_is_refused_can_be_written_down() -> None:
    """The place of what is wrong holds keys of the document, which may be no text."""
    with pytest.raises(WireError) as refused:
        load('{"\\ud800": [{"a": NaN}]}')
    str(refused.value).encode()
    assert "[0].a" in refused.value.place or "ud800" in refused.value.place


def test_json_that_may_pass_is_read() -> None:
    """Brackets in a text do not count, and a whole surrogate pair is a character."""
    assert load(json.dumps({"a": "[" * 1000, "b": "\U0001f525"})) == {"a": "[" * 1000, "b": "\U0001f525"}


def test_line_that_does_not_end_is_refused() -> None:
    """Lines come whole, however they arrive; one that is too long is an error before it is held."""
    lines = Lines(10)
    assert [lines.feed(piece) for piece in ("ab", "c\nd", "e\n\nf")] == [[], ["abc"], ["de", ""]]
    assert lines.rest == "f"
    with pytest.raises(WireError):
        lines.feed("x" * 10)
