"""Characters that a reader does not see, or that steer a terminal, are escapes wherever a host's words come out."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from pytest_gpuinfra.cli import main
from tests.plugin.conftest import run_pytest
from tests.report.made import REFERENCE, ROOT, TWO_GPUS

CLASSES = {
    "C0": "\x07\x08\x00",
    "ANSI": "\x1b[31m\x1b]0;owned\x07",
    "CR": "\r",
    "DEL": "\x7f",
    "C1": "\x9b31m\x85",
    "embedding": "\u202a\u202b\u202d\u202e\u202c",
    "isolate": "\u2066\u2067\u2068\u2069",
    "mark": "\u200e\u200f\u061c",
    "separator": "\u2028\u2029",
    "no width": "\u200b\u2060\ufeff",
    "tag": "\U000e0041",
}
HIDDEN = re.compile("[" + re.sub("[ -~]", "", "".join(CLASSES.values())) + "]")
OWN_STYLES = re.compile(r"\x1b\[[0-9;]*m")


def planted(data: Any, sign: str) -> Any:
    """Put a sign into every text that a host may have written: in answers, and in what was gathered."""
    if isinstance(data, dict):
        return {key: planted(value, sign) for key, value in data.items()}
    if isinstance(data, list):
        return [planted(value, sign) for value in data]
    return f"{data[:3]}{sign}{data[3:]}{sign}" if isinstance(data, str) else data


def recording_of_liars(path: Path) -> None:
    """Write hosts of three recordings with every class, each in a host of its own, in every text of it."""
    whole: dict[str, Any] = json.loads(REFERENCE.read_text())
    hosts: dict[str, Any] = {}
    sources = [json.loads(file.read_text()) for file in (REFERENCE, TWO_GPUS, ROOT / "sglang" / "recording.json")]
    everything = "".join(CLASSES.values())
    for document in sources:
        for alias in list(document["hosts"])[:2]:
            host = document["hosts"][alias]
            host["capture"]["answers"] = planted(host["capture"]["answers"], everything)
            for part in ("reached_by", "python", "taken_at"):
                host["capture"][part] += everything
            for program in host["gathered"].get("gpu", {}).values():
                program["lines"] = [json.dumps(planted(json.loads(line), everything)) for line in program["lines"]]
            hosts[alias] = host
    hosts["gone"] = {"spec": {}, "capture": dict(hosts["node-a"]["capture"]), "gathered": {}}
    hosts["gone"]["capture"] |= {"answers": {}, "error": ["UnreachableError", f"gone: {everything}", everything]}
    kernel = json.loads(REFERENCE.read_text())["hosts"]["node-a"]
    for number, sign in enumerate(CLASSES.values()):
        one = json.loads(json.dumps(kernel))
        one["capture"]["answers"]["kernel_log"][""]["kmsg"]["t"] += f"3,99999,9999999,-;NVRM: Xid 79 {sign} fell off\n"
        one["capture"]["answers"]["boot"][""]["cmdline"]["t"] = f"quiet x={sign} iommu=pt\n"
        hosts[f"class-{number}"] = one
    path.write_text(json.dumps({**whole, "hosts": hosts, "order": list(hosts), "results": []}))


def raw(file: Path) -> list[str]:
    """Name the hidden signs in a file as it is, and in what JSON or XML in it stands for."""
    text = file.read_text(encoding="utf-8")
    texts = [text]
    if file.suffix == ".json":
        texts = [text, *strings(json.loads(text))] if "result" in file.name or "container" in file.name else [text]
    if file.suffix == ".xml":
        root = ElementTree.fromstring(text)
        texts += [word for part in root.iter() for word in (part.text or "", *part.attrib.values())]
    return sorted({f"{file.name}: {match[0]!r}" for one in texts for match in HIDDEN.finditer(one)})


def strings(data: Any) -> list[str]:
    """Give every text of plain data."""
    if isinstance(data, dict):
        return [*data, *(text for value in data.values() for text in strings(value))]
    if isinstance(data, list):
        return [text for value in data for text in strings(value)]
    return [data] if isinstance(data, str) else []


SUITES = ("test_kernel_log.py", "test_boot.py", "test_driver_binding.py", "test_units.py")


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["one process", "two workers"])
def test_no_hidden_sign_comes_out_as_itself(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """Terminal, JUnit, Allure, recording, pages, comparison and merge, with locals and tracebacks shown."""
    recording_of_liars(tmp_path / "liars.json")
    (tmp_path / "test_own.py").write_text(
        "def test_own(gpu_host, gpu_facts):\n    text = str(gpu_host.capture.answers)[:4000]\n"
        "    import ast\n    words = ast.literal_eval(repr(gpu_host.capture.reached_by))\n    print(words)\n"
        "    assert gpu_host.capture.python == words\n"
    )
    suites = Path(__file__).parents[2] / "suites" / "host"
    ended = run_pytest(
        tmp_path,
        *(
            "--gpu-host=replay:liars.json",
            "--gpu-recording=out/n/recording.json",
            "-vv",
            "-l",
            "-p",
            "no:cacheprovider",
        ),
        *("--junitxml=out/n/junit.xml", "--alluredir=out/n/allure-results", "--color=yes", "-rA", *workers),
        *("--gpu-summary=out/page.html", "--gpu-summary=out/page.md", "test_own.py"),
        *(str(file) for name in SUITES if (file := suites / name).exists()),
    )
    shown = OWN_STYLES.sub("", ended.stdout + ended.stderr)
    assert sorted({repr(match[0]) for match in HIDDEN.finditer(shown)}) == [], shown[-3000:]
    assert "INTERNALERROR" not in shown
    assert r"\u202e" in shown
    out = tmp_path / "out"
    runner = CliRunner()
    runs = tmp_path / "runs"
    shutil.copytree(out / "n", runs / "share-1")
    merged = ["merge", str(runs), "--controller=share-1", f"--junitxml={out}/all.xml", f"--alluredir={out}/all-allure"]
    for argv in (
        [*merged, f"--recording={out}/all.json", "-o", f"{out}/all.html", "-o", f"{out}/all.md"],
        ["compare", str(REFERENCE), str(out / "n" / "recording.json")],
        ["compare", str(REFERENCE), str(out / "n" / "recording.json"), "-o", str(out / "change.html")],
        ["compare", str(REFERENCE), str(out / "n" / "recording.json"), "-o", str(out / "change.md")],
        ["compare", str(REFERENCE), str(out / "n" / "recording.json"), "-o", str(out / "change.json")],
        ["report", str(out / "n" / "recording.json")],
    ):
        ended_here = runner.invoke(main, argv)
        assert ended_here.exit_code in (0, 1, 6), (argv, ended_here.output, ended_here.exception)
        assert HIDDEN.findall(OWN_STYLES.sub("", ended_here.output)) == [], argv
    files = [file for file in out.rglob("*") if file.suffix in (".json", ".xml", ".html", ".md", ".txt", ".properties")]
    assert len(files) > 50
    assert [fault for file in files for fault in raw(file)] == []
