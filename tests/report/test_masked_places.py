"""Secrets of every kind, planted in every place of a host: in nothing that a run shows, writes or leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinfra.on_target.probe.probe_names import MASK, WITHHELD
from tests.plugin.conftest import STRICT, judge_recording, strict_environment
from tests.report.made import REFERENCE
from tests.report.masked_forms import FORMS, NAMED, PLACED, S

SUITES = Path(__file__).parents[2] / "suites"
LINES = [text for text in [*NAMED, *PLACED, *FORMS] if "\n" not in text]
TEXTS = [*NAMED, *PLACED, *(f"it was {form} there" for form in FORMS)]
PASSWORD = "An0ther-Value88"
"""Of the endpoint's address, so that the run knows it by value; the others are known by name, form and place alone."""
KEY = "no-f0rm-at-all-Value99"
SECRETS = [S[3:], PASSWORD, KEY, *(form[-12:] for form in FORMS)]
WORDS = [text for text in LINES if not set(text) & set(" '\"")]


def found_in(text: str) -> list[str]:
    """Give the secrets that a text holds, escaped or not."""
    return [secret for secret in SECRETS if secret in text or secret in text.replace("\\", "")]


def test_there_are_enough_kinds() -> None:
    """Sixty secrets of thirty kinds stand in lines, and many of them in single words."""
    assert len(TEXTS) >= 60
    assert len(FORMS) >= 30
    assert len(WORDS) >= 30


def planted() -> dict[str, Any]:
    """Give the reference recording with secrets in each place that its facts are read from; it stays readable."""
    document: dict[str, Any] = json.loads(REFERENCE.read_text())
    host = document["hosts"]["node-a"]
    answers = host["capture"]["answers"]
    answers["boot"][""]["cmdline"]["t"] = answers["boot"][""]["cmdline"]["t"].strip() + " " + " ".join(WORDS) + "\n"
    after = int(answers["kernel_log"][""]["kmsg"]["t"].splitlines()[-1].split(",")[1]) + 1
    answers["kernel_log"][""]["kmsg"]["t"] += "".join(
        f"6,{number},9{number:09},-;{line}\n" for number, line in enumerate(LINES, after)
    )
    service = answers["service"]
    service[""]["journal"]["t"] += "".join(
        "\n" + json.dumps({"message": text, "priority": "3", "pid": "412"}) for text in TEXTS
    )
    service[""]["show"]["t"] += "".join(f"Environment={word}\n" for word in WORDS)
    unit = service["file /etc/systemd/system/sglang-qwen.service"]["text"]
    unit["t"] += "".join(f"# {line}\nEnvironment={line}\n" for line in LINES)
    drop_in = {"text": {"t": "[Service]\n" + "".join(f"Environment={line}\n" for line in LINES)}, "stat": {"t": "{}"}}
    service["drop-in /etc/systemd/system/sglang-qwen.service.d/x.conf"] = drop_in
    service["directory /etc/systemd/system/sglang-qwen.service.d"] = {"names": {"t": "x.conf"}}
    service["environment /etc/environment"]["text"]["t"] = "\n".join(LINES)
    for name in ("process 412", "process 455"):
        argv = json.loads(service[name]["argv"]["t"])
        argv["argv"] += LINES
        service[name]["argv"]["t"] = json.dumps(argv)
        environ = json.loads(service[name]["environ"]["t"])
        environ["values"] |= {f"NCCL_X{number}": line for number, line in enumerate(LINES)}
        service[name]["environ"]["t"] = json.dumps(environ)
    for name in ("config", "state"):
        answers["container"][""][name]["t"] += "".join(f"env: {line}\n" for line in LINES)
    host["spec"]["expect"]["service"]["unit_file_text"] += "".join(f"Environment={line}\n" for line in LINES)
    host["spec"]["expect"]["kernel_command_line"]["has"] += WORDS
    host["spec"]["expect"]["service"]["environment"] |= {f"NCCL_Y{number}": word for number, word in enumerate(WORDS)}
    host["capture"]["reached_by"] = "ssh " + " ".join(WORDS)
    host["gathered"] = {"endpoint": endpoint()}
    own = {"id": "own", "kind": "node", "items": [{"name": "x", "kind": "file", "path": "/srv/x"}]}
    host["capture"]["requests"].append(own)
    answers["own"] = {"": {"x": {"t": "\n".join(TEXTS)}}}
    document["results"] = [
        {
            "id": f"host/test_x.py::test_{number}[node-a]",
            "host": "node-a",
            "outcome": "failed" if number % 2 else "error",
            "message": f"node-a: x\n  observed: {text}",
            "took_s": 0.0,
        }
        for number, text in enumerate(TEXTS)
    ]
    return document


def endpoint() -> dict[str, Any]:
    """Give an endpoint with secrets in its address, headers, bodies and paths."""
    exchanges = [
        {
            "method": "GET",
            "path": f"/v1?token={S}",
            "request": json.dumps({"text": text}),
            "status": 500,
            "headers": {"x-api-key": S, "set-cookie": f"sid={S}", "server": text},
            "pieces": [text, json.dumps({"detail": text})],
        }
        for text in TEXTS
    ]
    readiness = {
        "base_url": f"http://user:{PASSWORD}@localhost:1",
        "rungs": [],
        "models": [],
        "waited_s": 0.0,
        "wait_s": 0.0,
        "stop": "ready",
    }
    return {"address": f"http://user:{PASSWORD}@localhost:1", "readiness": readiness, "exchanges": exchanges}


def spoilt() -> dict[str, Any]:
    """Give the reference recording with secrets behind each of its readings: most end in an error that shows them."""
    document: dict[str, Any] = json.loads(REFERENCE.read_text())
    for reading in readings(document["hosts"]["node-a"]["capture"]["answers"]):
        for key in ("t", "e", "s"):
            if key in reading:
                reading[key] += "\n" + "\n".join(TEXTS)
    return document


def readings(answers: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give every reading of a host's answers."""
    for entries in answers.values():
        for node in entries.values():
            yield from node.values()


OWN = """
import json, pathlib, pytest
from pytest_gpuinfra import FactUnavailable

TEXTS = json.loads(pathlib.Path(__file__).parent.parent.joinpath("in", "texts.json").read_text())

def test_own_reading(gpu_facts, gpu_evidence):
    text = gpu_facts.answer("own")["x"].require()
    gpu_evidence.attach("x", text)
    lines = text.splitlines()
    assert lines == []

@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_locals(gpu_host, number):
    text = TEXTS[number]
    encoded = json.dumps({"x": text})
    listed = [text]
    mapped = {"x": {"y": text}}
    print(text, encoded, listed, mapped)
    assert not text, f"it was {text}"

@pytest.fixture
def unknown(gpu_host):
    raise FactUnavailable("x", "it printed " + "; ".join(TEXTS))

def test_unknown(unknown):
    pass

def test_crash(gpu_host):
    environ = dict(enumerate(TEXTS))
    raise RuntimeError(environ)

def test_skips(gpu_host):
    pytest.skip(TEXTS[0])
"""
CLI = ("-c", "from pytest_gpuinfra.cli import main; main()")
EVERYWHERE = (
    *("-vv", "-l", "-rA", "--junitxml=junit.xml", "--alluredir=allure", "--gpu-recording=recording.json"),
    *("--gpu-summary=summary.md", "--gpu-summary=summary.html", "-p", "no:cacheprovider"),
)


def run_in(folder: Path, *command: str) -> str:
    """Run a command in a folder, with a private folder for temporary files; gives all that it printed."""
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**strict_environment(), "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "INTERNALERROR" not in ended.stdout + ended.stderr, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout + ended.stderr


def shown_in(folder: Path) -> dict[str, list[str]]:
    """Give the secrets by each file below a folder that holds any, tests of ours left out."""
    found = {str(file.relative_to(folder)): found_in(file.read_text()) for file in folder.rglob("*") if file.is_file()}
    return {file: secrets for file, secrets in found.items() if secrets}


def leaks(output: str) -> list[str]:
    """Give the lines of an output that hold a secret."""
    return [line for line in output.splitlines() if found_in(line)]


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("make", [planted, spoilt], ids=["planted", "spoilt"])
def test_no_secret_of_any_kind_is_shown_written_or_left(make: Any, workers: str, tmp_path: Path) -> None:
    """Terminal with locals, JUnit, Allure, recording, pages, compare, merge, workers, temporary files."""
    given, folder = tmp_path / "in", tmp_path / "run"
    nodes = tmp_path / "nodes" / "node-a"
    for path in (given, folder, nodes):
        path.mkdir(parents=True)
    (nodes / "recording.json").write_text(json.dumps(make()))
    (given / "host.json").write_text(json.dumps(make()))
    (given / "texts.json").write_text(json.dumps(TEXTS))
    (folder / "test_own.py").write_text(OWN)
    arguments = ["-m", "pytest", *STRICT, "--gpu-host=replay:../in/host.json", *EVERYWHERE, "-n", workers]
    output = run_in(folder, *arguments, str(SUITES), "test_own.py")
    assert leaks(output) == []
    assert output.count(MASK) > 100
    before = str(REFERENCE)
    for form in ("terminal", "markdown", "json"):
        for after in ("recording.json", "../in/host.json"):
            assert leaks(run_in(folder, *CLI, "compare", before, after, f"--format={form}")) == []
    for command in (
        ["report", "../in/host.json", "-o", "again.html", "-o", "again.md"],
        ["merge", "../nodes", "-o", "merged.html"],
        ["init", "--gpu-host=replay:../in/host.json"],
    ):
        assert leaks(run_in(folder, *CLI, *command)) == []
    written = {file.name for file in folder.rglob("*") if file.is_file()}
    assert written >= {"junit.xml", "recording.json", "summary.md", "summary.html", "again.html", "again.md"}
    assert shown_in(folder) == {}


def test_host_of_long_lines_is_judged_and_one_of_countless_secrets_is_unknown(tmp_path: Path) -> None:
    """80 lines of "secret" change nothing; a kernel log of which a part was withheld in its recording is an error."""
    suite = str(SUITES / "host" / "test_kernel_log.py")
    document = json.loads(REFERENCE.read_text())
    log = document["hosts"]["node-a"]["capture"]["answers"]["kernel_log"][""]["kmsg"]
    kept = log["t"]
    after = int(kept.splitlines()[-1].split(",")[1]) + 1
    (tmp_path / "plain.json").write_text(json.dumps(document))
    plain = judge_recording(tmp_path, "plain.json", suite).of_host("node-a").outcomes
    log["t"] = kept + "".join(f"6,{n},9{n:09},-;{'secret' * 2000}\n" for n in range(after, after + 80))
    (tmp_path / "long.json").write_text(json.dumps(document))
    assert judge_recording(tmp_path, "long.json", suite).of_host("node-a").outcomes == plain
    log["t"] = kept + "".join(f"6,{n},9{n:09},-;password=x{n}\n" for n in range(after, after + 50_000))
    (tmp_path / "many.json").write_text(json.dumps(document))
    judge_recording(tmp_path, "many.json", suite)
    written = (tmp_path / "judged.json").read_text()
    assert WITHHELD in written
    (tmp_path / "withheld.json").write_text(written)
    again = judge_recording(tmp_path, "withheld.json", suite).of_host("node-a")
    assert not again.ended("passed", "failed")
    assert "withheld" in next(iter(again.messages.values()))


def drift_of(folder: Path, expected: str, deployed: str) -> tuple[dict[str, str], str]:
    """Judge a unit file against its copy, each with a line more; gives outcomes, and what JUnit has of them."""
    document = json.loads(REFERENCE.read_text())
    host = document["hosts"]["node-a"]
    host["spec"]["expect"]["service"]["unit_file_text"] += f"Environment=DB_PASSWORD={expected}\n"
    unit = host["capture"]["answers"]["service"]["file /etc/systemd/system/sglang-qwen.service"]["text"]
    unit["t"] += f"Environment=DB_PASSWORD={deployed}\n"
    (folder / "r.json").write_text(json.dumps(document))
    suite = str(SUITES / "serving" / "test_service_drift.py")
    judged = judge_recording(folder, "r.json", suite, "-k", "unit_file", "--junitxml=junit.xml").of_host("node-a")
    return dict(judged.outcomes), (folder / "junit.xml").read_text()


def test_what_is_masked_is_not_told_as_the_same(tmp_path: Path) -> None:
    """On both sides: a note; on one side alone: unknown, not wrong."""
    outcomes, written = drift_of(tmp_path, MASK, MASK)
    assert set(outcomes.values()) == {"passed"}
    assert "1 values are masked and were not compared" in written
    outcomes, written = drift_of(tmp_path, "", MASK)
    assert set(outcomes.values()) == {"error"}
    assert "masked on one side" in written
    assert set(drift_of(tmp_path, "a", "b")[0].values()) <= {"failed", "passed"}


def test_compare_tells_how_much_was_masked(tmp_path: Path) -> None:
    """A fact that is masked in both recordings is counted, and said not to be compared."""
    document = json.loads(REFERENCE.read_text())
    line = document["hosts"]["node-a"]["capture"]["answers"]["boot"][""]["cmdline"]
    for name, value in (("a.json", "aaaaaaaa"), ("b.json", "bbbbbbbb")):
        whole = line["t"]
        line["t"] = f"{whole.strip()} rd.luks.key={value}\n"
        (tmp_path / name).write_text(json.dumps(document))
        line["t"] = whole
    assert "(1 of them masked, not compared)" in run_in(tmp_path, *CLI, "compare", "a.json", "b.json")


class ProcessList(threading.Thread):
    """Looks at command line and environment of each process that begins below this one, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.others = below(os.getpid())
        self.ended = threading.Event()
        self.commands: set[bytes] = set()
        self.environments: set[bytes] = set()

    def run(self) -> None:
        """Look until told to end."""
        while not self.ended.wait(0.01):
            for pid in below(os.getpid(), without=self.others):
                with contextlib.suppress(OSError):
                    self.commands.add(Path(f"/proc/{pid}/cmdline").read_bytes())
                    self.environments.update(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))


def below(root: int, without: Set[int] = frozenset()) -> set[int]:
    """Give the processes that descend from one, but not these, such as a lab's host, nor what descends from them."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found - without:
        found |= more
    return found - {root}


HOOKS = """
from pytest_gpuinfra.capture.capture import command, file, node

def pytest_gpuinfra_requests(config):
    return [node("own", file("unit", "UNIT"), file("cmdline", "CMDLINE"), command("slow", "sleep", "1"))]
"""
LIVE = """
def test_own(gpu_facts, gpu_evidence):
    node = gpu_facts.answer("own")
    unit, cmdline = node["unit"].require(), node["cmdline"].require()
    gpu_evidence.attach("unit", unit)
    gpu_evidence.attach("cmdline", cmdline)
    assert unit == cmdline

def test_endpoint(gpu_endpoint):
    assert gpu_endpoint.ask("1+1?").answer == "unknown"
"""


def test_no_secret_is_in_the_process_list_of_a_live_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real probe of this machine: files full of secrets, an endpoint with a password, a key in a variable."""
    given, folder = tmp_path / "in", tmp_path / "run"
    given.mkdir()
    folder.mkdir()
    (given / "x.service").write_text("".join(f"Environment={line}\n" for line in LINES))
    (given / "cmdline").write_text(" ".join(WORDS))
    hooks = HOOKS.replace("UNIT", str(given / "x.service")).replace("CMDLINE", str(given / "cmdline"))
    (folder / "conftest.py").write_text(hooks)
    (folder / "test_own.py").write_text(LIVE)
    (folder / "gpuinfra.toml").write_text(
        f'[hosts.here]\naddress = "local"\nendpoint = "http://user:{PASSWORD}@127.0.0.1:9"\napi_key_env = "OUR_KEY"\n'
    )
    monkeypatch.setenv("OUR_KEY", KEY)
    watcher = ProcessList()
    watcher.start()
    try:
        arguments = [
            "-m",
            "pytest",
            *STRICT,
            "--gpu-host=here",
            "--gpu-inventory=gpuinfra.toml",
            *EVERYWHERE,
            "test_own.py",
        ]
        output = run_in(folder, *arguments)
    finally:
        watcher.ended.set()
        watcher.join()
    assert any(b"pytest" in command for command in watcher.commands)
    assert len(watcher.commands) > 1
    assert [command for command in watcher.commands if found_in(command.decode("utf-8", "replace"))] == []
    holding = [text for text in watcher.environments if found_in(text.decode("utf-8", "replace"))]
    assert holding == [f"OUR_KEY={KEY}".encode()]
    assert "test_own[here]" in output
    assert leaks(output) == []
    (folder / "gpuinfra.toml").unlink()
    assert shown_in(folder) == {}
