"""The recording's format: its schema, its size, and what older and newer ones meet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pytest_gpuinfra.cli import main
from pytest_gpuinfra.host.facts import HostFacts
from pytest_gpuinfra.record.recording import RecordedHost, Recording, read_recording, write_recording
from pytest_gpuinfra.record.recording_size import bounded
from tests.report.made import REFERENCE, ROOT, TWO_GPUS

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def faults(schema: Mapping[str, Any], data: Any, root: Mapping[str, Any], where: str = "") -> list[str]:
    """Check data against the part of JSON Schema that our schema uses."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if "const" in schema:
        return [] if data == schema["const"] else [f"{where}: {data!r}"]
    if "enum" in schema:
        return [] if data in schema["enum"] else [f"{where}: {data!r}"]
    if "anyOf" in schema:
        tried = [faults(one, data, root, where) for one in schema["anyOf"]]
        return [] if [] in tried else [fault for one in tried for fault in one][:1]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(data, TYPES[kind]) for kind in kinds):
        return [f"{where}: {type(data).__name__} is none of {kinds}"]
    found = []
    if isinstance(data, dict):
        known = schema.get("properties", {})
        found += [f"{where}: no {name}" for name in schema.get("required", ()) if name not in data]
        more = schema.get("additionalProperties", True)
        for name, value in data.items():
            if name in known:
                found += faults(known[name], value, root, f"{where}/{name}")
            elif more is False:
                found.append(f"{where}: unknown {name}")
            elif isinstance(more, dict):
                found += faults(more, value, root, f"{where}/{name}")
    if isinstance(data, list) and "items" in schema:
        for place, value in enumerate(data):
            found += faults(schema["items"], value, root, f"{where}/{place}")
    return found


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """Give the schema as the command prints it."""
    ended = CliRunner().invoke(main, ["schema", "--recording"])
    assert ended.exit_code == 0
    return dict(json.loads(ended.output))


@pytest.mark.parametrize("file", [REFERENCE, TWO_GPUS, *sorted((ROOT / "service").glob("*.json"))])
def test_recordings_follow_the_schema(schema: dict[str, Any], file: Path) -> None:
    """Those that are kept here, whoever wrote them."""
    document = json.loads(file.read_text())
    if document.get("format") != schema["properties"]["format"]["const"]:
        pytest.skip("no recording")
    assert faults(schema, document, schema) == []


def test_schema_refuses_what_is_none(schema: dict[str, Any]) -> None:
    """A result of an unknown outcome, a host without a capture, a key that nobody knows."""
    document = json.loads(REFERENCE.read_text())
    document["results"] = [{"id": "x", "host": "node-a", "outcome": "fine", "message": "", "took_s": 1}]
    document["surplus"] = 1
    del document["hosts"]["node-a"]["capture"]
    assert len(faults(schema, document, schema)) == 3


def test_what_is_written_follows_the_schema_and_is_read_again(schema: dict[str, Any], tmp_path: Path) -> None:
    """Cuts included."""
    host = read_recording(REFERENCE).hosts["node-a"]
    answers = json.loads(json.dumps(host.capture.answers))
    log = answers["kernel_log"][""]["kmsg"]["t"]
    filler = "".join(f"6,{number},{number},-;filler {'x' * 200}\n" for number in range(1000, 25000))
    answers["kernel_log"][""]["kmsg"]["t"] = log + filler
    answers["boot"][""]["cmdline"]["t"] = "a=" + "b" * (5 << 20)
    big = RecordedHost(host.spec, replace(host.capture, answers=answers))
    write_recording(tmp_path / "r.json", Recording({"node-a": big}, (), "2026", "0"))
    document = json.loads((tmp_path / "r.json").read_text())
    assert faults(schema, document, schema) == []
    rows = {row["where"].rpartition("answers/")[2]: row for row in document["trimmed"]}
    assert sorted(rows) == ["boot//cmdline/t", "kernel_log//kmsg/t"]
    again = read_recording(tmp_path / "r.json")
    assert len(again.trimmed) == 2
    assert (
        "characters left out of the recording"
        in document["hosts"]["node-a"]["capture"]["answers"]["boot"][""]["cmdline"]["t"]
    )


def test_trimmed_kernel_log_tells_that_its_beginning_is_missing(tmp_path: Path) -> None:
    """The record numbers show the gap, as after a wrapped ring buffer: such a log is not taken for a clean one."""
    host = read_recording(REFERENCE).hosts["node-a"]
    answers = json.loads(json.dumps(host.capture.answers))
    reading = answers["kernel_log"][""]["kmsg"]
    reading["t"] = "".join(f"6,{number},{number},-;filler {'x' * 200}\n SUBSYSTEM=x\n" for number in range(25000))
    write_recording(
        tmp_path / "r.json", Recording({"node-a": RecordedHost({}, replace(host.capture, answers=answers))}, (), "", "")
    )
    kept = read_recording(tmp_path / "r.json").hosts["node-a"].capture
    first = HostFacts(kept).kernel_log.entries[0]
    assert first.sequence is not None
    assert first.sequence > 0


def test_whole_recording_is_bounded() -> None:
    """Where many texts together are too large, the limit of each falls."""
    document = {"texts": ["x" * (900 << 10) for _ in range(10)]}
    cut, rows = bounded(document, 4 << 20)
    assert len(rows) == 10
    assert len(json.dumps(cut)) < 4 << 20
