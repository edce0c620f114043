"""
Made hosts: trees of files as the kernel documents them, read by the real probe.

A tree stands in a directory and is read through the product's own requests with that directory in front of each path;
what a tree cannot hold (commands, the kernel's ring buffer) is given as text. The result is a capture
as a real host gives it. Marked as composed wherever it is kept.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import struct
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pytest_gpuinfra.capture.capture import Capture, Request
from pytest_gpuinfra.host.facts import requests_for
from pytest_gpuinfra.inventory.inventory import Expectation

_ROOT = Path(__file__).resolve().parents[2]


@dataclass
class MadeFunction:
    """
    One PCI function of a made host.

    Attributes:
        address: "0000:01:00.0".
        parents: Addresses of the bridges above it, root port first.
        vendor: Vendor id. device: Device id. class_code: 24 bits.
        driver: Driver's name; None for unbound.
        group: IOMMU group; None for none.
        numa_node: -1 for none.
        link: Width and speed in GT/s, now and at most; None for a function without a link.
        bars: (start, size, flags) by region.
        acs_control: ACS control register; None without the capability.
    """

    address: str
    parents: Sequence[str] = ()
    vendor: int = 0x10DE
    device: int = 0x2BB1
    class_code: int = 0x030000
    driver: str | None = None
    group: int | None = None
    numa_node: int = 0
    link: tuple[int, float, int, float] | None = (16, 32.0, 16, 32.0)
    bars: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    acs_control: int | None = None

    def write(self, root: Path) -> None:
        """Write the function's directory and its links below a root directory."""
        home = root / "sys/devices/pci0000:00" / "/".join([*self.parents, self.address])
        home.mkdir(parents=True, exist_ok=True)
        files = {
            "vendor": f"{self.vendor:#06x}\n",
            "device": f"{self.device:#06x}\n",
            "class": f"{self.class_code:#08x}\n",
            "subsystem_vendor": f"{self.vendor:#06x}\n",
            "subsystem_device": "0x0000\n",
            "numa_node": f"{self.numa_node}\n",
            "driver_override": "vfio-pci\n" if self.driver == "vfio-pci" else "(null)\n",
        }
        if self.link:
            width, speed, max_width, max_speed = self.link
            files |= {
                "current_link_width": f"{width}\n",
                "current_link_speed": f"{speed:.1f} GT/s PCIe\n",
                "max_link_width": f"{max_width}\n",
                "max_link_speed": f"{max_speed:.1f} GT/s PCIe\n",
            }
        rows = [self.bars.get(index, (0, 0, 0)) for index in range(7)]
        files["resource"] = "".join(
            f"{start:#018x} {start + size - 1 if size else 0:#018x} {flags:#018x}\n" for start, size, flags in rows
        )
        for name, text in files.items():
            (home / name).write_text(text)
        (home / "config").write_bytes(self._config())
        self._link(root / "sys/bus/pci/devices" / self.address, home)
        if self.driver:
            (root / "sys/bus/pci/drivers" / self.driver).mkdir(parents=True, exist_ok=True)
            self._link(home / "driver", root / "sys/bus/pci/drivers" / self.driver)
        if self.group is not None:
            group = root / "sys/kernel/iommu_groups" / str(self.group)
            (group / "devices").mkdir(parents=True, exist_ok=True)
            self._link(home / "iommu_group", group)
            self._link(group / "devices" / self.address, home)

    @staticmethod
    def _link(name: Path, target: Path) -> None:
        name.parent.mkdir(parents=True, exist_ok=True)
        name.symlink_to(os.path.relpath(target, name.parent))

    def _config(self) -> bytes:
        """PCI configuration space: header, a PCI Express capability, ACS where there is one (PCIe base spec 7.7.11)."""
        data = bytearray(4096)
        struct.pack_into("<HHHHBBHBBBB", data, 0, self.vendor, self.device, 0x0406, 0x0010, 0xA1, 0, 0, 16, 0, 0, 0)
        data[9:12] = self.class_code.to_bytes(3, "little")
        data[14] = 1 if self.class_code >> 8 == 0x0604 else 0
        data[0x34] = 0x40
        struct.pack_into("<BBH", data, 0x40, 0x10, 0, 0x0042 if data[14] else 0x0002)
        if self.acs_control is not None:
            struct.pack_into("<IHH", data, 0x100, 0x0001000D, 0x005F, self.acs_control)
        return bytes(data)


@dataclass
class MadeHost:
    """
    A host that nobody has, in the formats that every host has.

    Attributes:
        functions: Its PCI functions.
        group_types: Types of the IOMMU groups; "DMA-FQ" where none is given.
        files: Other files by absolute path; a value of None for an empty file that only must exist.
        kmsg: Records of /dev/kmsg: (priority, seconds since boot, message).
        first_record: Number of the first of them; above 0 where the ring buffer has lost its beginning.
        commands: Output by command line, for requests that run commands.
        asked: More requests, such as those of a container and its service.
        answered: Answers to them by request id, as the probe gives them.
    """

    functions: Sequence[MadeFunction] = ()
    group_types: Mapping[int, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    kmsg: Iterable[tuple[int, float, str]] = ()
    first_record: int = 0
    commands: Mapping[str, str] = field(default_factory=dict)
    asked: Sequence[Request] = ()
    answered: Mapping[str, Any] = field(default_factory=dict)

    def write(self, root: Path) -> None:
        """Write its tree below a directory."""
        (root / "sys/kernel/iommu_groups").mkdir(parents=True, exist_ok=True)
        (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
        for function in self.functions:
            function.write(root)
        for group in (root / "sys/kernel/iommu_groups").iterdir():
            (group / "type").write_text(self.group_types.get(int(group.name), "DMA-FQ") + "\n")
        for path, text in self.files.items():
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            os.utime(file, (0, 0))

    def kmsg_text(self) -> str:
        """Give the ring buffer's records."""
        return "".join(
            f"{priority},{number},{round(seconds * 1e6)},-;{message}\n"
            for number, (priority, seconds, message) in enumerate(self.kmsg, self.first_record)
        )

    def capture(self, alias: str, expect: Expectation, reached_by: str = "composed") -> Capture:
        """Read it through the product's requests and the product's probe."""
        probe = _probe()
        requests = requests_for(expect)
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as directory:
            root = Path(directory)
            self.write(root)
            answers = {
                request["id"]: self._said(request)
                for request in requests
                if request["kind"] != "kernel_log" and _commands(request)
            }
            read = probe.answer_all(
                [_moved(one, root) for one in requests if one["kind"] != "kernel_log" and not _commands(one)], {}
            )
            text = io.StringIO()
            read.write(text)
            answers |= json.loads(text.getvalue())
        answers["kernel_log"] = {"": {"kmsg": {"t": self.kmsg_text()}}}
        return Capture(
            alias,
            reached_by,
            (*requests, *self.asked),
            {**answers, **self.answered},
            taken_at="2026-11-29T12:00:00+00:00",
            took_s=0.4,
            round_trips=1,
            python="3.11.2",
            uid=0,
        )

    def _said(self, request: Request) -> dict[str, dict[str, dict[str, Any]]]:
        """Answer a request that runs commands; a command that is not given is not installed."""
        answers: dict[str, dict[str, Any]] = {}
        for item in request["items"]:
            text = self.commands.get(" ".join(item["argv"]))
            missing = {"e": "ENOENT: No such file or directory"}
            answers[item["name"]] = missing if text is None else {"t": text, "x": 0, "s": ""}
        return {"": answers}


def _commands(request: Request) -> bool:
    return any(item["kind"] == "command" for item in request.get("items", ()))


def _moved(request: Request, root: Path) -> Request:
    """Put a directory in front of a request's absolute paths."""
    moved = dict(request)
    if "root" in moved:
        return {**moved, "root": f"{root}{moved['root']}"}
    return {**moved, "items": [{**item, "path": f"{root}{item['path']}"} for item in moved["items"]]}


def probe_module(name: str) -> Any:
    """Load one of the probe's files as it is on the target."""
    programs = _ROOT / "pytest_gpuinfra/on_target"
    (path,) = programs.rglob(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"gpuinfra_{name}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    neighbours = sorted({str(file.parent) for file in programs.rglob("*.py")})
    sys.path[:0] = neighbours
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.path[: len(neighbours)]
    return module


@cache
def _probe() -> Any:
    return probe_module("probe")
