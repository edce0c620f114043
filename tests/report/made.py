"""Recordings for the tests of reports: two GPUs that are right, two with a corrupt pair, sixteen with faults."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.inventory.inventory import Expectation
from pytest_gpuinfra.record.recording import RecordedHost, Recording, read_recording, write_recording
from tests.recorded.made_host import MadeFunction, MadeHost

ROOT = Path(__file__).parents[1] / "recorded"
BOOT = "00000000-0000-4000-8000-000000000001"
REFERENCE = ROOT / "reference" / "recording.json"
TWO_GPUS = ROOT / "h200" / "two-gpus.json"


def lines(name: str) -> list[str]:
    """Give the events of a recorded run of a GPU program."""
    return (ROOT / "gpu-programs" / f"h200-{name}.jsonl").read_text().splitlines()


def machine(addresses: list[str], boot_id: str = BOOT, command_line: str = "quiet") -> MadeHost:
    """Give a machine with GPUs at some addresses."""
    gpus = [
        MadeFunction(f"0000:{address}", (), device=0x2335, class_code=0x030200, driver="nvidia", numa_node=0)
        for address in addresses
    ]
    return MadeHost(
        gpus,
        files={
            "/proc/sys/kernel/random/boot_id": f"{boot_id}\n",
            "/proc/uptime": "1000.0 1000.0\n",
            "/proc/sys/kernel/osrelease": "6.18.44\n",
            "/proc/cmdline": f"{command_line}\n",
        },
        kmsg=[(5, 0.0, "Linux version 6.18.44")],
    )


def gathered(cuda: list[str]) -> dict[str, Any]:
    """Give what a recording holds of the program; these went through the tests' own libraries, and may."""
    return {"gpu": {"cuda": {"lines": cuda, "kmsg": "", "log_reason": "", "stand_in_allowed": True}}}


def sixteen() -> tuple[list[str], list[str]]:
    """Give the addresses of sixteen GPUs, and events: a pair that is corrupt both ways, and one that is unseen."""
    addresses = ["08:00.0", *(f"{bus:02x}:00.0" for bus in range(0x10, 0x100, 0x10))]
    template = [json.loads(line) for line in lines("cuda")]
    pairs = [event for event in template if event["event"] == "pair" and event["src"].endswith("06.0")]
    kept: list[dict[str, Any]] = []
    device = next(event for event in template if event["event"] == "device")
    for event in template:
        if event["event"] == "plan":
            kept.append({**event, "devices": [f"0000:{address}" for address in addresses]})
            kept += [{**device, "pci": f"0000:{address}"} for address in addresses]
    wrong = next(
        event
        for event in map(json.loads, lines("fault-never-written-one-pair"))
        if event["event"] == "pair" and event["outcome"] == "wrong"
    )
    for src_place, src in enumerate(addresses):
        for dst_place, dst in enumerate(addresses):
            for pair in pairs if src != dst else ():
                event = {**pair, "src": f"0000:{src}", "dst": f"0000:{dst}"}
                same = src_place // 8 == dst_place // 8
                if event.get("gb_s") and not same:
                    event["gb_s"] = 51.3
                if (src_place, dst_place) in ((2, 5), (5, 2)):
                    shape = {key: value for key, value in wrong.items() if key not in ("mechanism", "simultaneous")}
                    event = {**event, **shape, "src": f"0000:{src}", "dst": f"0000:{dst}"}
                if (src_place, dst_place) == (9, 14):
                    continue
                kept.append(event)
    kept += [event for event in template if event["event"] == "end"]
    return addresses, [json.dumps(event) for event in kept]


def made_hosts() -> Mapping[str, RecordedHost]:
    """Give the hosts."""
    nothing = Expectation()
    two = ["00:06.0", "00:07.0"]
    capture = machine(two).capture("x", nothing)
    addresses, said = sixteen()
    devices = [{"pci": addresses, "driver": "nvidia"}]
    return {
        "two-right": RecordedHost({}, capture, gathered(lines("cuda"))),
        "two-corrupt": RecordedHost({}, capture, gathered(lines("fault-never-written-one-pair"))),
        "two-hang": RecordedHost({}, capture, gathered(lines("fault-a-copy-that-hangs"))),
        "sixteen": RecordedHost(
            {"expect": {"devices": devices}}, machine(addresses).capture("x", nothing), gathered(said)
        ),
    }


def all_hosts() -> Recording:
    """Give the made hosts beside the reference host, two H200s, and a host that nobody reached."""
    reference, real = read_recording(REFERENCE), read_recording(TWO_GPUS)
    lost = Capture(
        "lost", "ssh root@192.0.2.66", (), {}, ("UnreachableError", "lost: ssh said: no route to host", "ping it")
    )
    return Recording({**reference.hosts, **real.hosts, **made_hosts(), "lost": RecordedHost({}, lost)})


def main(file: str) -> None:
    """Write a few of them, and a served model, for `.ci/render`."""
    hosts = all_hosts().hosts
    served = read_recording(ROOT / "sglang" / "recording.json").hosts["nextn"]
    kept = {alias: hosts[alias] for alias in ("node-a", "h200", "two-corrupt", "lost")}
    write_recording(Path(file), Recording({**kept, "nextn": served}))


if __name__ == "__main__":
    main(sys.argv[1])
