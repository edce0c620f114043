"""Recordings whose hosts were changed within: replayed through all items of our own suites, with every report."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.fuzz import Target
from tests.recorded.story import Story, events, sampled

RECORDED = Path(__file__).parents[1] / "recorded"
RAW = re.compile(r"\b(?!Assertion)[A-Z][A-Za-z]*(?:Error|Exception|Interrupt|Warning): |Traceback|INTERNALERROR")
OURS = re.compile(
    r"\b(?:GpuInfra|Unreachable|Authentication|Probe|Endpoint|Inventory|Recording|Participation|Gpu\w*|Parse"
    r"|\w*Unavailable)\w*: "
)
TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            "", " ", "\x00", "\n", "::", "[x]", "a/../b", "-oProxyCommand=x", "\x1b[31m\u202e", "%s%(x)d%", "{0.x}{}",
            "<b>&amp;]]>", "| `x` |", "\ufffe\uffff\x0b", "nan", "-1", "9" * 30, "0000:01:00.0", "x" * 5000, "{}", "[]",
            "9" * 5000, "²",
        ]
    ),
)  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.sampled_from([0, -1, 1e308, 1 << 63]),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def _document(*path: str) -> Any:
    return json.loads(RECORDED.joinpath(*path).read_text(encoding="utf-8"))


@cache
def hosts() -> dict[str, Any]:
    """Give whole hosts, each with other kinds of what is gathered."""
    story = Story(cuda=events(), sampler=sampled()).recorded()
    served = _document("sglang", "recording.json")["hosts"]
    found = {
        "story": {"spec": dict(story.spec), "capture": story.capture.to_json(), "gathered": dict(story.gathered)},
        "h200": _document("h200", "two-gpus.json")["hosts"]["h200"],
        **_document("h200", "hosts-sockets.json")["hosts"],
    }
    for alias in [name for name in served if "endpoint" in served[name]["gathered"]][:4]:
        found[alias] = served[alias]
    whole: dict[str, Any] = json.loads(json.dumps(found))
    return whole


def parsed(text: str) -> tuple[str, Any, str]:
    """Take apart a text that holds a JSON array or object: what is before it, the value, and what is behind."""
    before = "data: " if text.startswith("data: ") else ""
    first, sign, rest = text[len(before) :].partition("\n\n") if before else (text, "", "")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return "", None, ""
    return (before, value, sign + rest) if value and isinstance(value, (dict, list)) else ("", None, "")


@st.composite
def changed(draw: st.DrawFn, value: Any, times: int = 3) -> Any:
    """Give plain data with some places replaced, emptied, removed, renamed, doubled; within texts of JSON, too."""
    root = [copy.deepcopy(value)]
    for _ in range(draw(st.integers(1, times))):
        holder: Any = root
        key: Any = 0
        while isinstance(holder[key], dict | list) and holder[key] and (holder is root or draw(st.integers(0, 11))):
            holder = holder[key]
            key = draw(st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder))))
        old = holder[key]
        if isinstance(old, str) and draw(st.integers(0, 3)):
            before, inner, behind = parsed(old)
            if inner is not None:
                holder[key] = before + json.dumps(draw(changed(inner, 1))) + behind
                continue
        how = draw(st.sampled_from(["value", "text", "text", "remove", "rename", "empty", "double"]))
        if how == "text" and isinstance(old, str):
            place = draw(st.integers(0, len(old)))
            holder[key] = old[:place] + draw(TEXTS) + draw(st.sampled_from(["", old[place:]]))
        elif how == "remove" and holder is not root:
            del holder[key]
        elif how == "rename" and isinstance(holder, dict):
            holder[draw(TEXTS)] = holder.pop(key)
        elif how == "empty":
            holder[key] = type(old)()
        elif how == "double" and isinstance(holder, list) and holder is not root:
            holder.insert(key, copy.deepcopy(old))
        else:
            holder[key] = draw(VALUES)
    return root[0]


@st.composite
def several(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """Give hosts of a recording, all but `good` changed, and how many workers judge them."""
    whole = hosts()
    found = {alias: draw(changed(host)) for alias, host in whole.items() if alias != "gpu-b"}
    found |= {f"{alias}-2": draw(changed(whole[alias])) for alias in ("story", "h200")}
    for host in found.values():  # most of them are to be judged: faults of the declaration are another target's
        if isinstance(host, dict) and draw(st.integers(0, 3)):
            host.setdefault("gathered", {})
    return {"good": whole["h200"], "gpu-b": whole["gpu-b"], **found}, draw(st.sampled_from([0, 0, 2]))


def judge(folder: Path, found: dict[str, Any], workers: int) -> tuple[dict[str, Any], str]:
    """Replay hosts; gives what was written down, and the output."""
    document = {
        "format": "pytest-gpuinfra recording",
        "version": 1,
        "plugin": "0",
        "started_at": "2026-01-01T00:00:00Z",
        "hosts": found,
        "order": list(found),
        "results": [],
    }
    (folder / "r.json").write_text(json.dumps(document), encoding="utf-8")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--gpu-host=replay:r.json", "-p", "no:cacheprovider", f"-n{workers}"),
            *("--gpu-recording=out.json", "--junitxml=junit.xml", "--alluredir=allure", "--gpu-summary=page.html"),
            *("--gpu-summary=page.md", "-q", "-W", "error::pytest.PytestUnhandledThreadExceptionWarning"),
        ],
        cwd=folder,
        capture_output=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    shown = (ended.stdout + ended.stderr).decode()
    assert "INTERNALERROR" not in shown, shown[-4000:]
    assert ended.returncode in (0, 1, 6), shown[-4000:]
    for name in ("page.html", "page.md"):
        (folder / name).read_text(encoding="utf-8")
    ET.fromstring((folder / "junit.xml").read_bytes())
    for file in (folder / "allure").glob("*.json"):
        json.loads(file.read_text(encoding="utf-8"))
    written: dict[str, Any] = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    return written, shown


def outcomes_of(written: dict[str, Any], alias: str) -> list[tuple[str, str]]:
    """Give the endings of a host, sorted by item, its own name left out."""
    rows = [row for row in written["results"] if row["host"] == alias]
    return sorted((row["id"].replace(f"[{alias}", "["), row["outcome"]) for row in rows)


@cache
def healthy() -> list[tuple[str, str]]:
    """Give how the good host ends beside nobody."""
    with tempfile.TemporaryDirectory() as name:
        return outcomes_of(judge(Path(name), {"good": hosts()["h200"]}, 0)[0], "good")


def check(made: tuple[dict[str, Any], int]) -> None:
    """Every host has endings in our own words, the good one its own, and what was written can be judged again."""
    found, workers = made
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written, shown = judge(folder, found, workers)
        assert outcomes_of(written, "good") == healthy()
        for row in written["results"]:
            raw = RAW.search(OURS.sub("", row["message"]))
            assert raw is None, (row["id"], row["message"][:1500])
        raw = RAW.search(OURS.sub("", shown))
        assert raw is None, shown[max(0, raw.start() - 1500) :][:3000]
        assert {row["host"] for row in written["results"]} == set(found), shown[-3000:]


def targets() -> list[Target]:
    """Give the targets."""
    return [Target("replayed items", several(), check, 3)]
