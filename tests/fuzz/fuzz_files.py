"""What files hold: recordings, nodes' folders that are merged, inventories; through the commands that read them."""

from __future__ import annotations

import copy
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from hypothesis import strategies as st

from pytest_gpuinfra.cli import main
from tests.fuzz import Target

RECORDED = Path(__file__).parents[1] / "recorded"
SOURCES = tuple(
    RECORDED / name for name in ("h200/two-gpus.json", "h200/hosts-sockets.json", "reference/recording.json")
)
TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["", "../../x", "-oProxyCommand=x", "\x1b[31m\u202e\ud800", "9" * 30, "a" * 300, "all", "local"]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from([10**30, 1 << 64]), TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
JUNIT = (
    '<testsuites><testsuite name="pytest" tests="1"><testcase classname="a" name="t[n1]"><properties>'
    '<property name="gpu_host" value="n1"/></properties><failure message="m">text</failure></testcase>'
    "</testsuite></testsuites>"
)
ALLURE = {
    "uuid": "u",
    "historyId": "h",
    "status": "failed",
    "labels": [{"name": "target", "value": "n1"}, {"name": "parentSuite", "value": "n1"}],
    "parameters": [{"name": "host", "value": "n1"}],
    "titlePath": ["n1"],
    "attachments": [{"name": "a", "source": "../../x-attachment.txt", "type": "text/plain"}],
    "statusDetails": {"message": "n1: x", "trace": ""},
}
INVENTORY = """
[defaults]
sudo = true
[groups.rack]
service = "x"
[hosts."node[1-3]"]
address = "root@{alias}.example.org"
container = "pct:129"
endpoint = "http://localhost:30000"
group = "rack"
[hosts.node1.expect]
peer_access = "correct"
devices = [{ pci = ["01:00.0"], driver = "nvidia", group_type = "DMA-FQ" }]
units = { "a.service" = "active" }
[collectives.two]
hosts = ["node[1-2]"]
addresses = { node1 = "192.0.2.1" }
"""


@cache
def _document(source: Path) -> Any:
    return json.loads(source.read_text())


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """Give plain data with one to three places replaced, removed, or renamed; most of them near its top."""
    root = [copy.deepcopy(value)]
    for _ in range(draw(st.integers(1, 3))):
        holder: Any = root
        key: Any = 0
        for _ in range(draw(st.integers(1, 9))):
            inner = holder[key]
            if not isinstance(inner, (dict, list)) or not inner:
                break
            holder, key = inner, draw(st.sampled_from(list(inner) if isinstance(inner, dict) else range(len(inner))))
        what = draw(st.sampled_from(["replace", "remove", "rename"]))
        if what == "replace" or holder is root:
            holder[key] = draw(VALUES)
        elif what == "remove":
            del holder[key]
        elif isinstance(holder, dict):
            holder[draw(TEXTS)] = holder.pop(key)
    return root[0]


@st.composite
def torn(draw: st.DrawFn, text: str) -> bytes:
    """Give a text with a piece cut out or put in."""
    data = text.encode("utf-8", "surrogatepass")
    at = draw(st.integers(0, len(data)))
    put = draw(
        st.one_of(st.binary(max_size=6), st.sampled_from([b"[" * 5000, b"{" * 70, b"\xef\xbb\xbf", b"a." * 500]))
    )
    return data[:at] + put + data[at + draw(st.integers(0, 40)) :]


@st.composite
def recordings(draw: st.DrawFn) -> bytes:
    """Give the text of a recording that was changed as data, as text, or both."""
    text = json.dumps(draw(changed(_document(draw(st.sampled_from(SOURCES))))))
    return draw(torn(text)) if draw(st.booleans()) else text.encode()


def run(*argv: str, folder: Path, legal: tuple[int, ...] = (0, 1, 2, 6)) -> None:
    """Run a command; anything but an ending of its own is found."""
    ended = CliRunner().invoke(main, list(argv))
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise AssertionError(f"{argv}: {ended.exception!r}") from ended.exception
    assert ended.exit_code in legal, (argv, ended.output)
    assert not any("\x80" <= sign <= "\x9f" or sign in "\x1b\u202e" for sign in ended.output), argv
    assert {path.name for path in folder.iterdir()} <= {"r.json", "runs", "out", "gpuinfra.toml"}


def check_recording(data: bytes) -> None:
    """Read a recording by all commands that take one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "r.json"
        file.write_bytes(data)
        run("report", str(file), folder=folder)
        run("compare", str(SOURCES[0]), str(file), folder=folder)
        run("compare", str(file), str(SOURCES[2]), folder=folder)
        run("init", f"--gpu-host=replay:{file}", folder=folder)


def check_folder(data: tuple[bytes, bytes, bytes]) -> None:
    """Merge a folder of two nodes, one of which wrote what it liked."""
    recording = data[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for node, texts in (("n1", (b"", JUNIT.encode(), json.dumps(ALLURE).encode())), ("n2", data)):
            own = folder / "runs" / node
            (own / "allure-results").mkdir(parents=True)
            for path, text in zip(("recording.json", "junit.xml", "allure-results/u-result.json"), texts, strict=True):
                (own / path).write_bytes(text or recording)
        out = folder / "out"
        arguments = (
            f"--recording={out}/r.json",
            f"--junitxml={out}/j.xml",
            f"--alluredir={out}/a",
            "-o",
            f"{out}/p.html",
        )
        run("merge", str(folder / "runs"), "--expect-hosts=n[1-3]", *arguments, folder=folder, legal=(1, 6))


def check_inventory(data: bytes) -> None:
    """Check an inventory."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "gpuinfra.toml"
        file.write_bytes(data)
        run("check", str(file), folder=Path(name), legal=(0, 2))


def targets() -> list[Target]:
    """Give the targets."""
    allure = changed(ALLURE).map(lambda data: json.dumps(data).encode())
    junit = st.one_of(torn(JUNIT), st.just(JUNIT.encode()))
    return [
        Target("files: recordings", recordings(), check_recording, 12),
        Target("files: merged folders", st.tuples(recordings(), junit, allure), check_folder, 8),
        Target("files: inventories", torn(INVENTORY), check_inventory, 60),
    ]
