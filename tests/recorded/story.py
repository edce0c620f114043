"""
The story that this project comes from, as one host: composed, no such recording exists.

The reference host serves a model from a container on four of its GPUs, under full translation; what the GPU programs
say is made of events that real GPUs gave (gpu-programs/), with the reference host's addresses. Every part can be
told otherwise, so that each diagnosis is seen on an input of its own.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.capture.selected import SelectedHost
from pytest_gpuinfra.host.host import GpuHost
from pytest_gpuinfra.host.requests import requests_on_host
from pytest_gpuinfra.inventory.inventory import HostSpec, parse_inventory, read_inventory
from pytest_gpuinfra.record.recording import RecordedHost
from pytest_gpuinfra.subjects.gpu.driver_library import LIBRARIES
from tests.recorded.made_host import MadeHost
from tests.recorded.reference.compose import HERE, reference_host

PROGRAMS = Path(__file__).parent / "gpu-programs"
BOOT_ID = "5b0f0b7e-8a3e-4a2b-9c56-3f1f6f0d7a11"
SERVING = tuple(f"0000:{bus}:00.0" for bus in ("01", "11", "61", "71"))
UP_S, NOW = 11423.0, 1_790_000_000.0
UNIT = "/etc/systemd/system/sglang-qwen.service"
SITE = "/usr/lib/python3.12/sitecustomize.py"
OFF = {"NCCL_P2P_DISABLE": "1"}
ARGUMENTS = (
    "/usr/bin/python3 -m sglang.launch_server --model-path /shared/qwen --tp 4 --port 30000 "
    "--mem-fraction-static 0.75 --speculative-algorithm NEXTN"
)
UP = "The server is fired up and ready to roll!"


@dataclass
class Story:
    """
    The host, part by part.

    Attributes:
        made: Its devices, groups, log.
        expect: Changes of what the reference inventory expects, keys of `expect`.
        serves: Whether the inventory names container and service.
        environment: Variables in the block of the service's main process.
        rank_environment: The same of each rank where it differs from the main's.
        unit_environment: Variables that the unit file sets.
        site_environment: Variables that sitecustomize sets; {} for none.
        arguments: Command line.
        shared: Whether the ranks share NCCL's files in /dev/shm.
        ranks: How many ranks it has.
        started_s: When the service was started, seconds since boot.
        edited_s: When its unit file was last changed, seconds since boot.
        state: Properties of the unit that differ from a healthy one's.
        journal: Its log.
        nodes: NVIDIA's device nodes in the container, (major, minor) by name.
        shm_mib: Size of /dev/shm in the container.
        shm_left_mib: What is left of it; None for all but 1 MiB.
        libraries: Version of the driver's libraries in the container.
        cuda: Events of cuda_program; () if it did not run.
        kmsg: What the kernel logged while it ran.
        endpoint: What was gathered of the endpoint; None for nothing.
        sampler: What the sampler said under load; () if it did not run.
    """

    made: MadeHost = field(default_factory=reference_host)
    expect: dict[str, Any] = field(default_factory=dict)
    serves: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    rank_environment: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    unit_environment: Mapping[str, str] = field(default_factory=dict)
    site_environment: Mapping[str, str] = field(default_factory=dict)
    arguments: str = ARGUMENTS
    shared: bool = False
    ranks: int = 4
    started_s: float = 300.0
    edited_s: float = -86400.0
    state: Mapping[str, str] = field(default_factory=dict)
    journal: Sequence[str] = (UP,)
    nodes: Mapping[str, tuple[int, int]] = field(
        default_factory=lambda: {
            **{f"nvidia{number}": (195, number) for number in range(4)},
            "nvidiactl": (195, 255),
            "nvidia-uvm": (508, 0),
            "nvidia-uvm-tools": (508, 1),
        }
    )
    shm_mib: int = 131072
    shm_left_mib: int | None = None
    libraries: str = "580.95.05"
    cuda: Sequence[str] = ()
    kmsg: str = ""
    endpoint: Mapping[str, Any] | None = None
    sampler: Sequence[str] = ()

    def spec(self) -> HostSpec:
        """Give what the inventory says."""
        spec = read_inventory(HERE / "gpuinfra.toml").hosts["node-a"].model_dump(mode="json", exclude_defaults=True)
        for key in ("container", "service"):  # the story has its own
            spec.pop(key, None)
            spec["expect"].pop(key, None)
        for key in ("container", "service", "endpoint", "prompts"):
            spec.pop(key, None)
        for key in ("container", "service", "model"):
            spec["expect"].pop(key, None)
        spec["expect"] |= self.expect
        spec["expect"] = {key: value for key, value in spec["expect"].items() if value is not None}
        if self.serves:
            spec |= {"container": "pct:129", "service": "sglang-qwen"}
            spec["expect"].setdefault("container", {"devices": [address[5:] for address in SERVING], "shm_min_gib": 16})
        return parse_inventory({"hosts": {"node-a": spec}}, "composed").hosts["node-a"]

    def recorded(self) -> RecordedHost:
        """Give it as a recording holds it."""
        spec = self.spec()
        return RecordedHost(spec.model_dump(mode="json", exclude_defaults=True), self.capture(spec), self.gathered())

    def host(self, alias: str = "node-a") -> GpuHost:
        """Give it as a replay sees it."""
        spec = self.spec()
        capture = self.capture(spec)
        selected = SelectedHost(alias, "replay", "", spec, "composed", capture, self.gathered())
        return GpuHost(selected, capture, _nobody)

    def gathered(self) -> dict[str, Any]:
        """Give what was gathered after the capture."""
        found: dict[str, Any] = {}
        if self.cuda:
            said = {"lines": list(self.cuda), "kmsg": self.kmsg, "log_reason": "", "stand_in_allowed": True}
            found["gpu"] = {"cuda": said}
        if self.endpoint is not None:
            found["endpoint"] = self.endpoint
        if self.sampler:
            load = {"streams": 4, "answered": 9, "failures": []}
            found["participation"] = {"lines": list(self.sampler), "load": load}
        return found

    def capture(self, spec: HostSpec) -> Capture:
        """Give what the host answered."""
        made = dataclasses.replace(self.made, asked=(), answered={})
        capture = made.capture("node-a", spec.expect, reached_by="composed, not recorded")
        if not self.serves:
            return capture
        asked = requests_on_host(spec)
        return dataclasses.replace(
            capture,
            requests=(*capture.requests, *asked),
            answers={**capture.answers, **self._container(), "service": self._service()},
        )

    def _container(self) -> dict[str, Any]:
        mib = self.shm_mib << 20
        left = (self.shm_mib - 1 if self.shm_left_mib is None else self.shm_left_mib) << 20
        smi = "".join(
            f"{number}, 0000{address.upper()}, GPU-00000000-0000-4000-8000-0000000000{address[5:7]}, "
            f"NVIDIA RTX PRO 6000 Blackwell Workstation Edition, {self.libraries}\n"
            for number, address in enumerate(SERVING)
        )
        listing = f"libcuda.so.1\nlibcuda.so.{self.libraries}\nlibnvidia-ml.so.{self.libraries}\n"
        gone = {"e": "ENOENT: No such file or directory"}
        return {
            "host_failed_units": {"": {"list": _said("")}},
            "container": {"": {"state": _said("status: running\n"), "config": _said("hostname: serve\nonboot: 1\n")}},
            "host_majors": {
                "": {"devices": {"t": "Character devices:\n195 nvidia\n508 nvidia-uvm\n\nBlock devices:\n  8 sd\n"}}
            },
            "host_gpus": {
                address: {"information": {"t": f"Model: NVIDIA RTX PRO 6000 Blackwell\nDevice Minor: \t {number}\n"}}
                for number, address in enumerate(SERVING)
            },
            "host_smi": {"": {"smi": _said(smi)}},
            "inside": {"": {"session": {"t": "python 3.12.3"}}},
            "inside_boot": {
                "": {
                    "boot_id": {"t": f"{BOOT_ID}\n"},
                    "init": {"t": f"1 (systemd) S 0 1 1 0 -1 4194560 0 0 0 0 1 1 0 0 20 0 1 0 {9000} 1 1\n"},
                    "mounts": {"t": "tmpfs /dev/shm tmpfs rw 0 0\n"},
                    "limits": {"t": "Limit Soft\nMax locked memory         unlimited            unlimited  bytes\n"},
                    "clock": _clock(),
                }
            },
            "inside_failed_units": {"": {"list": _said("")}},
            "inside_space": {"": {"/dev/shm": {"t": json.dumps({"size": mib, "available": left})}}},
            "inside_dev": {
                name: {".": {"t": json.dumps({"mode": 0o020666, "major": major, "minor": minor, "uid": 0, "gid": 0})}}
                for name, (major, minor) in self.nodes.items()
            },
            "inside_driver": {"": {"smi": _said(smi), **dict.fromkeys(LIBRARIES, gone), LIBRARIES[0]: {"t": listing}}},
        }

    def _service(self) -> dict[str, Any]:
        lines = "".join(f"Environment={name}={value}\n" for name, value in self.unit_environment.items())
        text = f"[Unit]\nAfter=network.target\n\n[Service]\n{lines}ExecStart={self.arguments}\nRestart=on-failure\n"
        started = str(round(self.started_s * 1e6))
        shown = {
            "Id": "sglang-qwen.service",
            "LoadState": "loaded",
            "ActiveState": "active",
            "SubState": "running",
            "Result": "success",
            "UnitFileState": "enabled",
            "NRestarts": "0",
            "MainPID": "100",
            "FragmentPath": UNIT,
            "DropInPaths": "",
            "NeedDaemonReload": "no",
            "ExecStart": f"{{ path=/usr/bin/python3 ; argv[]={self.arguments} ; ignore_errors=no ; }}",
            "Environment": " ".join(f"{name}={value}" for name, value in self.unit_environment.items()),
            "ActiveEnterTimestampMonotonic": started,
            "ExecMainStartTimestampMonotonic": started,
            "InactiveEnterTimestampMonotonic": "0",
            "ConditionResult": "yes",
            **self.state,
        }
        journal = "\n".join(json.dumps({"message": line, "priority": "6", "pid": "100"}) for line in self.journal)
        start = {
            "pid": 100,
            "version": "3.12.3",
            "executable": "/usr/bin/python3",
            "prefix": "/usr",
            "files": {"sitecustomize": SITE} if self.site_environment else {},
            "times": {"sitecustomize": NOW - UP_S - 86400} if self.site_environment else {},
            "environ": {**self.environment, **self.site_environment},
        }
        answers = {
            "": {
                "show": _said("".join(f"{key}={value}\n" for key, value in shown.items())),
                "clock": _clock(),
                "verify": _said(""),
                "journal": _said(journal),
                "manager": _said(""),
                "paths": _said("UnitPath=/etc/systemd/system\n"),
            },
            f"file {UNIT}": {"text": {"t": text}, "stat": {"t": json.dumps({"mtime": NOW - UP_S + self.edited_s})}},
            "environment /etc/environment": {
                "text": {"e": "ENOENT: No such file or directory"},
                "stat": {"e": "ENOENT: No such file or directory"},
            },
            "python": {"startup": {"t": json.dumps(start)}},
        }
        if shown["ActiveState"] in ("inactive", "failed"):
            answers["python"] = {"startup": {"e": "ENOENT: none of the unit's 0 processes is a Python"}}
            return answers
        answers["process 100"] = self._process(100, 1, self.arguments.split(), self.environment, whole=True, files=())
        common = [f"/dev/shm/nccl-shared{number}" for number in range(28)]
        for rank in range(self.ranks):
            files = common if self.shared else [f"/dev/shm/nccl-own{rank}{number}" for number in range(2)]
            answers[f"process {101 + rank}"] = self._process(
                101 + rank,
                100,
                [f"sglang::scheduler_TP{rank}"],
                self.rank_environment.get(rank, {}),
                whole=rank in self.rank_environment,
                files=files,
            )
        return answers

    def _process(
        self,
        pid: int,
        parent: int,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        whole: bool,
        files: Sequence[str],
    ) -> dict[str, Any]:
        odd = 0 if whole else 1
        environ = {"values": dict(environment), "size": 4096, "leading_nul": 0, "odd": odd, "empty": 0}
        ticks = round(self.started_s * 100)
        return {
            "comm": {"t": "python3\n"},
            "argv": {"t": json.dumps({"argv": list(argv), "trailing_nul": 1 if pid == 100 else 9})},
            "environ": {"t": json.dumps(environ)},
            "stat": {"t": f"{pid} (python3) S {parent} 1 1 0 -1 4194560 0 0 0 0 1 1 0 0 20 0 1 0 {ticks} 1 1\n"},
            "status": {"t": "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n"},
            "exe": {"t": "/usr/bin/python3"},
            "cwd": {"t": "/"},
            "limits": {"t": "Limit Soft\nMax locked memory         unlimited            unlimited  bytes\n"},
            "opened": {"t": json.dumps(list(files))},
        }


def events(
    devices: Sequence[str] = SERVING,
    *,
    wrong: Sequence[tuple[str, str]] = (),
    absent: bool = False,
    shm: str | None = "right",
    p2p: str | None = None,
    boot_id: str = BOOT_ID,
) -> list[str]:
    """
    Give cuda_program's events on some devices, made of those that it gave on two H200s.

    Args:
        devices: PCI addresses.
        wrong: Directed pairs whose bytes were never written, by every mechanism.
        absent: Whether the driver offers no peer access at all.
        shm: Ending of the arm over shared memory; None for no such arm. "p2p" for one that NCCL took peer to peer.
        p2p: The same of the arm over peers; "shm" for one that fell back.
        boot_id: Boot that they belong to.
    """
    clean = [json.loads(line) for line in _lines("cuda")]
    bad = [json.loads(line) for line in _lines("fault-never-written-one-pair")]
    pattern = {event["mechanism"]: event for event in clean if event["event"] == "pair" and not event["simultaneous"]}
    corrupt = {event["mechanism"]: event for event in bad if event.get("class") == "never_written"}
    plan = next(event for event in clean if event["event"] == "plan")
    arms = [name for name, ending in (("shm", shm), ("p2p", p2p)) if ending]
    found = [{**plan, "boot_id": boot_id, "devices": list(devices), "arms": arms}]
    for place, address in enumerate(devices):
        device = next(event for event in clean if event["event"] == "device")
        found.append({**device, "pci": address, "index": place})
    for src, dst in permutations(devices, 2):
        for mechanism, right in pattern.items():
            event = copy.deepcopy(corrupt[mechanism] if (src, dst) in wrong else right)
            event |= {"src": src, "dst": dst, "simultaneous": False}
            if absent:
                event |= {"outcome": "not_tested", "can_access": False, "reason": "no peer access", "gb_s": None}
            found.append(event)
    found += [_arm(name, str({"shm": shm, "p2p": p2p}[name]), devices) for name in arms]
    return [json.dumps(event) for event in (*found, next(event for event in clean if event["event"] == "end"))]


def sampled(*, idle: Sequence[str] = (), untold: Sequence[str] = ()) -> list[str]:
    """
    Give what the sampler says of the service under load (target/sampler.py): a rank on each of its GPUs, all at work.

    Args:
        idle: GPUs on which the rank does nothing.
        untold: GPUs of which the driver tells no activity.
    """
    gpus = [{"pci": address, "uuid": "", "name": "", "memory_total_mib": 97887.0} for address in SERVING]
    found: list[dict[str, Any]] = [
        {"event": "start", "source": "NVML", "boot_id": BOOT_ID, "interval_s": 0.25, "gpus": gpus}
    ]
    for rank in range(len(SERVING)):
        title = f"sglang::scheduler_TP{rank}"
        process = {"pid": 4101 + rank, "name": "python3", "title": title, "parents": [4100], "serves": True}
        found.append({"event": "process", **process, "cgroup": "/lxc/129/ns/system.slice/sglang-qwen.service"})
    for number in range(8):
        rows = [
            {
                "pci": address,
                "activity_percent": None if address in untold else 0.0 if address in idle else 93.0,
                "memory_used_mib": 74210.0,
                "power_w": 80.0 if address in idle else 410.0,
                "processes": [{"pid": 4101 + rank, "memory_mib": 73600.0}],
            }
            for rank, address in enumerate(SERVING)
        ]
        found.append({"event": "sample", "at_s": number * 0.25, "gpus": rows})
    found.append({"event": "end", "samples": 8, "reason": "duration"})
    return [json.dumps(event) for event in found]


def _arm(name: str, ending: str, devices: Sequence[str]) -> dict[str, Any]:
    """Give one all-reduce arm's event: a right one from the clean run, a hanging one from the planted hang."""
    clean = {event["arm"]: event for line in _lines("cuda") if (event := json.loads(line))["event"] == "allreduce"}
    hang = next(
        event for line in _lines("fault-a-rank-that-hangs") if (event := json.loads(line))["event"] == "allreduce"
    )
    event = copy.deepcopy(hang if ending == "hang" else clean[name])
    if ending == "hang":
        event |= {"arm": name, "environment": clean[name]["environment"], "unset": clean[name]["unset"]}
        event["channels"] = clean[name]["channels"]
    if ending in ("shm", "p2p"):
        event["channels"] = clean[ending]["channels"]
    text = json.dumps(event)
    for old, new in (("0000:00:06.0", devices[0]), ("0000:00:07.0", devices[1])):
        text = text.replace(old, new)
    found: dict[str, Any] = json.loads(text)
    found["devices"] = list(devices)
    found["world_size"] = len(devices)
    for one in found["runs"]:
        one["ranks_reported"] = len(devices)
    found["ranks"] += [
        {**found["ranks"][0], "rank": number, "pci": devices[number]} for number in range(2, len(devices))
    ]
    return found


def _lines(name: str) -> list[str]:
    return (PROGRAMS / f"h200-{name}.jsonl").read_text().splitlines()


def _said(text: str) -> dict[str, Any]:
    return {"t": text, "x": 0, "s": ""}


def _clock() -> dict[str, Any]:
    return {
        "t": json.dumps({"realtime": NOW, "monotonic": UP_S, "boottime": UP_S, "ticks_a_second": 100}, sort_keys=True)
    }


def _nobody(_: SelectedHost) -> Any:
    raise AssertionError("a composed host is never connected to")


def without_faults() -> MadeHost:
    """Give the reference host before anybody copied between its GPUs."""
    host = reference_host()
    host.kmsg = [record for record in host.kmsg if "IO_PAGE_FAULT" not in record[2]]
    return host
