"""Fleets for tests of reports: two recorded H200s under many names, each judged as that host was, and odd ones."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.record.recording import RecordedHost, Recording, read_recording
from tests.report.made import TWO_GPUS

BEGAN = "2026-11-29T12:00:00+00:00"


@cache
def judged() -> Recording:
    """Judge the two recorded H200s, once."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "judged.json")
        argv = [*(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"), f"--gpu-host=replay:{TWO_GPUS}"]
        ended = subprocess.run(
            [*argv, f"--gpu-recording={file}"], cwd=folder, capture_output=True, text=True, check=False
        )
        if not file.exists():
            raise RuntimeError(ended.stdout + ended.stderr)
        return read_recording(file)


def node(
    alias: str,
    *,
    boot_id: str = "",
    gb_s: float = 1.0,
    temperature_room: int | None = None,
    driver: str = "",
    wrong: Mapping[str, str] | None = None,
    unknown: Mapping[str, str] | None = None,
    began: str = BEGAN,
) -> Recording:
    """
    Give the recording of one node's own run.

    Args:
        alias: Its name.
        boot_id: Of its boot; one of its own by default.
        gb_s: Factor on the bandwidth of every copy from its first GPU.
        temperature_room: Degrees left until its first GPU slows down; as recorded if None.
        driver: Version of its driver; as recorded if "".
        wrong: Messages of items that failed, by a part of their name.
        unknown: Messages of items that ended in ERROR, by a part of their name.
        began: When the run began.
    """
    base = judged()
    host = base.hosts["h200"]
    capture = host.capture.to_json()
    if driver or temperature_room is not None:
        text = json.dumps(capture).replace("580.159.04", driver or "580.159.04")
        if temperature_room is not None:
            text = text.replace(_room(text), f"<gpu_temp_tlimit>{temperature_room} C</gpu_temp_tlimit>", 1)
        capture = json.loads(text)
    boot = capture["answers"]["boot"][""]
    old, own = boot["boot_id"]["t"].strip(), boot_id or str(uuid.uuid5(uuid.NAMESPACE_DNS, alias))
    capture["answers"] = {**capture["answers"], "boot": {"": {**boot, "boot_id": {**boot["boot_id"], "t": f"{own}\n"}}}}
    gathered = {
        "gpu": {
            name: {**said, "lines": [_scaled(line.replace(old, own), gb_s) for line in said["lines"]]}
            for name, said in host.gathered["gpu"].items()
        }
    }
    results = [_result(dict(result), alias, wrong or {}, unknown or {}) for result in base.results]
    return Recording(
        {alias: RecordedHost(host.spec, Capture.from_json(alias, capture), gathered)}, results, began, "0.1"
    )


def _scaled(line: str, gb_s: float) -> str:
    """Give an event with the bandwidth of a copy from the first GPU scaled."""
    if gb_s == 1.0 or '"pair"' not in line:
        return line
    event = json.loads(line)
    if event["event"] == "pair" and event["src"].endswith("06.0") and event.get("gb_s"):
        event["gb_s"] *= gb_s
    return json.dumps(event)


def _room(text: str) -> str:
    begin = text.index("<gpu_temp_tlimit>")
    return text[begin : text.index("</gpu_temp_tlimit>") + len("</gpu_temp_tlimit>")]


def _result(result: dict[str, Any], alias: str, wrong: Mapping[str, str], unknown: Mapping[str, str]) -> dict[str, Any]:
    result["host"] = alias
    result["id"] = result["id"].replace("[h200", f"[{alias}")
    result["message"] = result["message"].replace("h200", alias)
    for outcome, told in (("failed", wrong), ("error", unknown)):
        for part, message in told.items():
            if part in result["id"]:
                result |= {"outcome": outcome, "message": message.replace("HOST", alias)}
    return result


LOG = (
    "HOST: kernel log: 1 fault\n    observed: Xid 79 of 00:06.0: GPU has fallen off the bus\n    expected: none\n"
    "    why it matters: the GPU is gone until a reboot\n    what to do: drain the node and reboot it"
)
UNREAD = "HOST: /dev/kmsg: no permission\n  what to do: run as root, or use --gpu-sudo"


@cache
def fleet(size: int) -> Recording:
    """Give a run of so many nodes: node001 ... of which a few are not like the others."""
    width = len(str(size))
    names = [f"node{number:0{width}}" for number in range(1, size + 1)]
    odd: dict[int, Recording] = {
        1: node(names[1], wrong={"test_kernel_log.py": LOG}),
        2: node(names[2], unknown={"test_kernel_log.py": UNREAD}, driver="570.86.15"),
    }
    if size > 10:
        odd |= {
            5: node(names[5], gb_s=0.41),
            6: node(names[6], unknown={"test_kernel_log.py": UNREAD}),
            8: node(names[8], temperature_room=9, gb_s=1.3),
            9: _lost(names[9]),
        }
    found = [odd.get(place) or node(name) for place, name in enumerate(names)]
    return Recording(
        {alias: host for one in found for alias, host in one.hosts.items()},
        [result for one in found for result in one.results],
        BEGAN,
        "0.1",
    )


def _lost(alias: str) -> Recording:
    base = node(alias)
    error = ("UnreachableError", f"{alias}: ssh said: no route to host", "try it by hand")
    results = [
        {**result, "outcome": "error", "message": f"{alias}: ssh said: no route to host"}
        for result in base.results
        if result["outcome"] == "passed"
    ]
    return Recording({alias: RecordedHost({}, Capture(alias, f"ssh {alias}", (), {}, error))}, results, BEGAN, "0.1")
