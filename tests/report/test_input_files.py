"""Files that come from outside: refused with file, place and reason, at once, and one bad host spoils no other."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pytest_gpuinfra.cli import main
from tests.plugin.conftest import judge_recording, run_pytest
from tests.report.made import REFERENCE, TWO_GPUS

DEEP = 100_000


def fifo(path: Path) -> None:
    """Make a FIFO that nobody writes to."""
    os.mkfifo(path)


def listening(path: Path) -> None:
    """Make a socket's name in the file system."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


SPECIAL: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (fifo, "is a FIFO"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a device"),
    "socket": (listening, "is a socket"),
    "nothing": (lambda path: None, "No such file"),
    "no text": (lambda path: path.write_bytes(b"a = 1\n\xff\xfe"), "is not UTF-8 text (byte 6, line 2)"),
    "hole": (lambda path: path.touch() or os.truncate(path, 1 << 40), "is too large"),
}


def command(*arguments: str | Path) -> Result:
    """Run the command line; a traceback is an exception of the result."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_text_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """As inventory, recording, either side of a comparison, list of nodes; every message names the file."""
    monkeypatch.chdir(tmp_path)
    make, reason = SPECIAL[kind]
    bad = tmp_path / "bad"
    make(bad)
    (tmp_path / "runs").mkdir()
    for argv in (
        ("check", bad),
        ("report", bad),
        ("compare", bad, REFERENCE),
        ("compare", REFERENCE, bad),
        ("init", f"--gpu-host=replay:{bad}"),
        ("merge", tmp_path / "runs", f"--expect-file={bad}"),
        ("merge", tmp_path / "runs", f"--gpu-inventory={bad}"),
    ):
        ended = command(*argv)
        assert ended.exit_code == 2, (argv, ended.output, ended.exception)
        assert "bad: " in ended.output
        assert reason in ended.output, argv
        assert "what to do" in ended.output


@pytest.mark.parametrize("option", ["--gpu-host=replay:bad", "--gpu-inventory=bad", "--gpu-baseline=bad", "root"])
def test_run_refuses_special_files(tmp_path: Path, option: str) -> None:
    """A usage error of pytest's; the inventory at the root is one as well, and not passed over."""
    fifo(tmp_path / ("gpuinfra.toml" if option == "root" else "bad"))
    host = [] if option.startswith("--gpu-host") else [f"--gpu-host=replay:{REFERENCE}"]
    ended = run_pytest(tmp_path, *host, *([] if option == "root" else [option]), "--gpu-recording=none", timeout_s=60)
    assert ended.returncode == 4, ended.stdout + ended.stderr
    assert "is a FIFO" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_files_of_the_inventory_are_read_the_same_way(tmp_path: Path) -> None:
    """A unit file and prompts that are no regular files: the inventory's key, the file, the reason."""
    fifo(tmp_path / "unit")
    inventory = tmp_path / "gpuinfra.toml"
    inventory.write_text('[hosts.a]\nservice = "x"\n[hosts.a.expect.service]\nunit_file = "unit"\n')
    ended = command("check", inventory)
    assert ended.exit_code == 2
    assert "unit: is a FIFO" in ended.output


TOML = {
    "deep array": ("a = " + "[" * DEEP, "nested deeper than 64 levels (line 1)"),
    "deep table": ("x = 1\n[" + ".".join("a" * DEEP) + "]", "nested deeper than 64 levels (line 2)"),
    "dotted key": ("a." * DEEP + "a = 1", "nested deeper than 64 levels (line 1)"),
    "quoted keys": ('"a" . ' * DEEP + "a = 1", "nested deeper than 64 levels (line 1)"),
    "nested tables": ("[defaults" + ".a" * 70 + "]", "nested deeper than 64 levels"),
    "twice": ("[hosts.a]\n[hosts.a]", "is not TOML"),
    "huge number": ("[hosts.a.expect.model]\nmax_model_len = 1" + "0" * 30, "hosts.a.expect.model.max_model_len"),
    "huger number": ("[hosts.a.expect.model]\nmax_model_len = 1" + "0" * 9000, "is not TOML"),
    "not a number": ("[hosts.a.expect.model]\nmax_model_len = nan", "is no finite number"),
    "infinite": ("[hosts.a.expect]\ngpu = { temperature_max_c = inf }", "is no finite number"),
    "control": ('[hosts.a]\naddress = "a\\u0007"', "hosts.a.address: holds a control character"),
}


@pytest.mark.parametrize("kind", TOML)
def test_odd_inventory_is_refused_with_its_place(tmp_path: Path, kind: str) -> None:
    """No traceback of ours, whatever it holds."""
    text, reason = TOML[kind]
    (tmp_path / "gpuinfra.toml").write_text(text)
    ended = command("check", tmp_path / "gpuinfra.toml")
    assert ended.exit_code == 2, (ended.output, ended.exception)
    assert reason in ended.output
    assert "gpuinfra.toml: " in ended.output


def test_byte_order_mark_is_read_and_an_empty_file_says_so(tmp_path: Path) -> None:
    """As editors on Windows save it."""
    file = tmp_path / "gpuinfra.toml"
    file.write_bytes(b"\xef\xbb\xbf[hosts.a]\n")
    assert command("check", file).output == "a: no device expected\n"
    file.write_text("# nothing yet\n")
    ended = command("check", file)
    assert ended.exit_code == 0
    assert "names no host, and is empty" in ended.output


def three_hosts(path: Path, change: Callable[[dict[str, Any]], str | None]) -> None:
    """Write a recording of three hosts, the second of which was changed; a text replaces its whole part."""
    document = json.loads(TWO_GPUS.read_text())
    host = json.dumps(document["hosts"]["h200"])
    document["hosts"] = {alias: json.loads(host) for alias in ("a", "b", "c")}
    document |= {"order": ["a", "b", "c"], "results": []}
    part = change(document["hosts"]["b"])
    if part is not None:
        document["hosts"]["b"] = "HERE"
    path.write_text(json.dumps(document, ensure_ascii=True).replace('"HERE"', part or ""))


def _set(*keys: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(host: dict[str, Any]) -> None:
        for key in keys[:-1]:
            host = host[key]
        host[keys[-1]] = to

    return change


def _part(text: str) -> Callable[[dict[str, Any]], str]:
    return lambda _: text


COMMAND = {"name": "a", "kind": "command"}
CLIMBED: dict[str, Any] = {"base_url": "http://h:1", "rungs": [], "stop": "ready", "waited_s": 0.0, "wait_s": 0.0}
ASKED = {"address": "http://127.0.<b>]]>0.1:31000", "readiness": CLIMBED, "exchanges": []}
GROUP: dict[str, Any] = {"expect": {"hosts": []}, "runs": {}}
BAD_HOSTS: dict[str, tuple[Callable[[dict[str, Any]], str | None], str]] = {
    "nothing": (_part("null"), "hosts.b"),
    "a list": (_part("[]"), "hosts.b"),
    "deep": (_part('{"spec": ' + "[" * DEEP + "]" * DEEP + "}"), "nested deeper than 64 levels"),
    "twice": (_part('{"spec": {}, "spec": {}}'), "hosts.b: spec: stands twice"),
    "not a number": (_part('{"spec": {"a": NaN}}'), "hosts.b: spec.a: is no finite number"),
    "huge number": (_part('{"spec": {"a": 1' + "0" * 9999 + "}}"), "hosts.b: spec.a: is no number of 64 bits"),
    "half a pair": (_part('{"spec": {"a": "\\ud800"}}'), "hosts.b: spec.a: holds half of a surrogate pair"),
    "broken": (_part('{"spec": {} "capture": 1}'), "is not JSON"),
    "no capture": (lambda host: host.pop("capture") and None, "hosts.b.capture: field required"),
    "no text": (_set("capture", "answers", "boot", "", "boot_id", "t", to=5), "answers.boot..boot_id.t"),
    "no tree": (_set("capture", "answers", "boot", to=[]), "hosts.b.capture.answers.boot"),
    "no reading": (_set("capture", "answers", "boot", "", to={"boot_id": {"q": 1}}), "boot_id.q"),
    "text and reason": (_set("capture", "answers", "boot", "", "boot_id", to={"t": "", "e": ""}), "text or a reason"),
    "cut": (_set("capture", "answers", "boot", "", "boot_id", to={"t": "", "cut": -1}), "than nothing"),
    "nobody asked": (_set("capture", "answers", "another", to={}), "nobody asked for 'another'"),
    "refused": (_set("capture", "answers", "boot", to={"!": {}}), "'boot' was refused without a reason"),
    "requests": (_set("capture", "requests", to=[{"id": "x"}]), "hosts.b.capture.requests[0].kind"),
    "a command": (_set("capture", "requests", to=[{"id": "x", "kind": "node", "items": [COMMAND]}]), "'argv'"),
    "gathered": (_set("gathered", to={"gpu": {"cuda": {"lines": 5}}}), "hosts.b.gathered.gpu.cuda.lines"),
    "endpoint": (_set("gathered", to={"endpoint": {"exchanges": []}}), "hosts.b.gathered.endpoint.address"),
    "endpoint's address": (_set("gathered", to={"endpoint": ASKED}), "endpoint.address: it is no URL"),
    "group": (_set("gathered", to={"collectives": {"g": GROUP}}), "collectives.g.expect"),
    "expectation": (_set("spec", to={"expect": {"peer_acess": "correct"}}), "peer_acess: unknown key"),
    "address": (_set("spec", to={"address": "-oProxyCommand=touch /tmp/x"}), "hosts.b.address"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_HOSTS)
def test_one_bad_host_of_a_recording_spoils_no_other(tmp_path: Path, kind: str) -> None:
    """It is ERROR with the reason on every page; the other two are read as they were."""
    change, reason = BAD_HOSTS[kind]
    three_hosts(tmp_path / "r.json", change)
    ended = command("report", tmp_path / "r.json")
    assert ended.exit_code == 0, (ended.output, ended.exception)
    assert "b: could not be judged" in ended.output.replace("**", "")
    assert reason in ended.output.replace("\\", "").replace("&lt;", "<"), ended.output
    assert "3 hosts: 1 could not be judged" in ended.output
    compared = command("compare", TWO_GPUS, tmp_path / "r.json")
    assert compared.exit_code == 1, (compared.output, compared.exception)


def test_one_bad_host_is_an_error_of_a_replay_and_the_others_are_judged(tmp_path: Path) -> None:
    """Items, recording and exit status as ever."""
    three_hosts(tmp_path / "r.json", BAD_HOSTS["no text"][0])
    suite = Path(__file__).parents[2] / "suites" / "host" / "test_boot.py"
    judged = judge_recording(tmp_path, "r.json", str(suite.parent / "test_kernel_log.py"))
    for alias in ("a", "c"):
        assert judged.of_host(alias).ended("passed")
    assert not judged.of_host("b").ended("passed", "failed")
    assert "answers.boot..boot_id.t" in next(iter(judged.of_host("b").messages.values()))
    assert "INTERNALERROR" not in judged.output


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.pop("order"), "order: field required"),
        (lambda d: d.update(version=2), "version 2"),
        (lambda d: d.update(version="9" * 9999), "a recording of version"),
        (lambda d: d.update(results=[{"id": "x", "host": "nobody"}]), "results[0]"),
        (lambda d: d.update(results=5), "results: "),
        (lambda d: d.update(hosts=[]), "hosts: "),
        (lambda d: d.update(trimmed=[{"where": 1}]), "trimmed"),
    ],
)
def test_recording_that_is_damaged_as_a_whole_says_where(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], reason: str
) -> None:
    """What belongs to no single host."""
    document = json.loads(TWO_GPUS.read_text())
    change(document)
    (tmp_path / "r.json").write_text(json.dumps(document))
    ended = command("report", tmp_path / "r.json")
    assert ended.exit_code == 2, (ended.output, ended.exception)
    assert reason in ended.output


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "a\u202eb", ""])
def test_hosts_with_other_names_than_hosts_have_reach_no_file(tmp_path: Path, name: str) -> None:
    """Such a host is ERROR under a name made of it; nothing is written outside of the run's own folders."""
    document = json.loads(TWO_GPUS.read_text())
    host = json.dumps(document["hosts"].pop("h200"))
    document["hosts"] = {name: json.loads(host), "good": json.loads(host)}
    document |= {"order": [name, "good"], "results": []}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "r.json").write_text(json.dumps(document))
    suite = Path(__file__).parents[2] / "suites" / "host" / "test_kernel_log.py"
    judged = judge_recording(tmp_path / "in", "r.json", str(suite), "-n2", "--alluredir=allure")
    assert judged.of_host("good").ended("passed")
    others = [alias for alias in judged.recording["hosts"] if alias != "good"]  # type: ignore[attr-defined]
    assert len(others) == 1
    assert judged.of_host(others[0]).ended("error")
    assert not judged.of_host(others[0]).ended("passed", "failed")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_host_that_the_order_leaves_out_is_an_error(tmp_path: Path) -> None:
    """It is not dropped without a word, and one that is named and missing is one, too."""
    three_hosts(tmp_path / "r.json", lambda _: None)
    document = json.loads((tmp_path / "r.json").read_text())
    document["order"] = ["a", "c", "d"]
    (tmp_path / "r.json").write_text(json.dumps(document))
    output = command("report", tmp_path / "r.json").output
    assert "b: could not be judged" in output.replace("**", "")
    assert "d: could not be judged" in output.replace("**", "")


def test_files_that_a_recording_names_are_not_opened(tmp_path: Path) -> None:
    """Prompts of a recorded host are files of another machine."""
    document = json.loads((REFERENCE.parents[1] / "sglang" / "recording.json").read_text())
    document |= {"hosts": {"plain": document["hosts"]["plain"]}, "order": ["plain"], "results": []}
    document["hosts"]["plain"]["spec"]["prompts"] = [str(tmp_path / "secret")]
    (tmp_path / "secret").write_text("root:x:0")
    (tmp_path / "r.json").write_text(json.dumps(document))
    suite = Path(__file__).parents[2] / "suites" / "serving" / "test_endpoint_answers.py"
    judged = judge_recording(tmp_path, "r.json", str(suite))
    assert judged.of_host("plain").ended("passed")
    assert "root:x:0" not in judged.output


def test_page_with_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    """Before anything is judged, with the endings that are known."""
    ended = run_pytest(tmp_path, f"--gpu-host=replay:{REFERENCE}", "--gpu-summary=x.pdf")
    assert ended.returncode == 4
    assert "FILE.md or FILE.html" in ended.stderr
    for argv in (("report", REFERENCE, "-o", "x.pdf"), ("compare", REFERENCE, REFERENCE, "-o", "x.pdf")):
        refused = command(*argv)
        assert refused.exit_code == 2
        assert ".md" in refused.output
