"""
Nothing that a target may print gives a traceback, and garbage never gives a pass.

Short by default; GPUINFRA_FUZZ_EXAMPLES=20000 makes it long.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.subjects.boot.boot import parse_boot_id, parse_kernel_release, parse_uptime_s
from pytest_gpuinfra.subjects.boot.command_line import parse_kernel_command_line
from pytest_gpuinfra.subjects.boot.confidential import parse_confidential
from pytest_gpuinfra.subjects.container.config import parse_container_config
from pytest_gpuinfra.subjects.container.device_node import parse_device_tree
from pytest_gpuinfra.subjects.gpu.driver import (
    parse_driver_parameters,
    parse_driver_version,
    parse_module_parameter,
    parse_module_version,
    same_parameter_value,
)
from pytest_gpuinfra.subjects.gpu.driver_library import parse_library_versions
from pytest_gpuinfra.subjects.gpu.smi_query import parse_gpu_query
from pytest_gpuinfra.subjects.gpu.smi_xml import parse_gpu_xml
from pytest_gpuinfra.subjects.gpu.topology import parse_topology
from pytest_gpuinfra.subjects.kernel_log.faults import parse_kernel_faults
from pytest_gpuinfra.subjects.kernel_log.iommu_boot import parse_iommu_boot
from pytest_gpuinfra.subjects.kernel_log.log import parse_kernel_log
from pytest_gpuinfra.subjects.pci.config_space import parse_config_space
from pytest_gpuinfra.subjects.pci.functions import PciFunction, parse_pci_functions
from pytest_gpuinfra.subjects.pci.iommu import parse_group_type, parse_iommu_groups
from pytest_gpuinfra.subjects.pci.pci_bar import parse_bars
from pytest_gpuinfra.subjects.pci.pci_link import parse_link_speed_gt_s, parse_link_width
from pytest_gpuinfra.subjects.service.engine_allreduce import parse_engine_allreduce
from pytest_gpuinfra.subjects.service.journal import parse_unit_journal
from pytest_gpuinfra.subjects.service.unit import parse_unit_properties
from pytest_gpuinfra.subjects.service.unit_file import parse_unit_file
from pytest_gpuinfra.subjects.transfers.nccl_log import parse_nccl_log
from pytest_gpuinfra.subjects.transfers.peer_access import parse_peer_access
from tests.cases.case import OWN, read_cases

EXAMPLES = int(os.environ.get("GPUINFRA_FUZZ_EXAMPLES", "15"))
H200 = Path(__file__).parents[1] / "recorded" / "h200"
QUICK = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


def _log(reading: Reading) -> None:
    log = parse_kernel_log({"dmesg": reading})
    parse_kernel_faults(log)
    parse_iommu_boot(log)


def _journal(reading: Reading) -> None:
    log = parse_kernel_log({"kmsg": reading, "journal": reading, "dmesg": reading})
    parse_kernel_faults(log)


def _command_line(reading: Reading) -> None:
    line = parse_kernel_command_line(reading)
    for parameter in line.parameters[:20]:
        line.has(str(parameter))
    _ = (line.ignored, line.passthrough_requested, line.iommu_switched_off)


def _config(reading: Reading) -> None:
    space = parse_config_space(reading)
    _ = (space.acs, space.has_resizable_bar)


def _functions(reading: Reading) -> None:
    names = (".", "vendor", "device", "class", "driver", "driver_override", "iommu_group", "numa_node", "resource")
    links = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "config")
    node = dict.fromkeys((*names, *links, "subsystem_vendor", "subsystem_device"), reading)
    function = parse_pci_functions({"0000:01:00.0": node}).functions[0]
    for name in dir(PciFunction):
        if isinstance(getattr(PciFunction, name), property):
            try:
                getattr(function, name)
            except GpuInfraError:
                continue


def _groups(reading: Reading) -> None:
    group = parse_iommu_groups({"1": {"type": reading, "devices/": reading}}).groups[0]
    _ = (group.type, group.strict, group.type_known, group.translated)


def _confidential(reading: Reading) -> None:
    names = ("sev", "sev_es", "sev_snp", "tdx", "dev_sev")
    _ = parse_confidential(dict.fromkeys(names, reading)).level


def _parameters(reading: Reading) -> None:
    parameters = parse_driver_parameters(reading)
    for name in parameters:
        same_parameter_value(str(parameters[name]), "1")
        parameters.registry(name)


def _unit_file(reading: Reading) -> None:
    unit = parse_unit_file(reading)
    _ = (unit.commands, unit.environment, unit.dropped)


def _query(reading: Reading) -> None:
    for row in parse_gpu_query(reading):
        for name in row.values:
            row.number(name)


PARSERS: dict[str, Callable[[Reading], object]] = {
    "boot id": parse_boot_id,
    "uptime": parse_uptime_s,
    "kernel release": parse_kernel_release,
    "command line": _command_line,
    "group type": parse_group_type,
    "groups": _groups,
    "kernel log": _log,
    "kernel log sources": _journal,
    "config space": _config,
    "bars": parse_bars,
    "link speed": parse_link_speed_gt_s,
    "link width": parse_link_width,
    "functions": _functions,
    "confidential": _confidential,
    "driver parameters": _parameters,
    "driver version": parse_driver_version,
    "module version": parse_module_version,
    "module parameter": parse_module_parameter,
    "libraries": parse_library_versions,
    "gpu query": _query,
    "gpu query without header": lambda reading: parse_gpu_query(reading, ["index", "name", "memory.used"]),
    "gpu xml": parse_gpu_xml,
    "topology": parse_topology,
    "peer access": parse_peer_access,
    "nccl log": parse_nccl_log,
    "engine": parse_engine_allreduce,
    "unit properties": parse_unit_properties,
    "unit file": _unit_file,
    "container": parse_container_config,
}

RECORDED = [text for case in read_cases(OWN) for text in case.texts()] + [
    path.read_text(encoding="utf-8") for path in sorted(H200.iterdir()) if path.name != "README.md"
]
FORMATS = {
    "dmesg-gpu-lines.txt": "kernel log",
    "nccl-p2p.log": "nccl log",
    "nccl-shm.log": "nccl log",
    "nvidia-smi-query.csv": "gpu query",
    "nvidia-smi-topo-m.txt": "topology",
    "nvidia-smi-topo-p2p-p.txt": "topology",
    "nvidia-smi-topo-p2p-r.txt": "topology",
    "proc-driver-nvidia-params.txt": "driver parameters",
}
OWN_WORDS = re.compile(r"nvidia|NVRM|iommu|amdgpu|Xid|DMAR|AMD-Vi|Linux|memory|=|GPU", re.IGNORECASE)
"""Words of the formats themselves: a text that holds one is not garbage, however short it is."""

# Documents of which a beginning must not pass for the whole.
WHOLE = {"nvidia-smi-q.xml": "gpu xml"}


def only_our_errors(parse: Callable[[Reading], object], text: str) -> None:
    with contextlib.suppress(GpuInfraError):
        parse(Reading("fuzz", text, exit_status=0))


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A recorded input with lines dropped, doubled, cut, joined, or with letters changed."""
    lines = draw(st.sampled_from(RECORDED)).splitlines()
    for _ in range(draw(st.integers(1, 4))):
        if not lines:
            break
        place = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["drop", "double", "cut", "join", "letter", "swap"]))
        line = lines[place]
        cut = draw(st.integers(0, len(line)))
        if how == "drop":
            del lines[place]
        elif how == "double":
            lines.insert(place, line)
        elif how == "cut":
            lines[place] = line[:cut]
        elif how == "join" and place + 1 < len(lines):
            lines[place : place + 2] = [line + lines[place + 1]]
        elif how == "letter":
            lines[place] = line[:cut] + draw(st.text(max_size=3)) + line[cut + 1 :]
        elif how == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[place], lines[other] = lines[other], lines[place]
    return "\n".join(lines)


LONG = [
    "a" * 100_000,
    "a.b-" * 25_000,
    "0:" * 50_000,
    " " * 100_000,
    "[1.0] NVRM: AMD-Vi: iommu smmu dmar AER amdgpu nvswitch SXid " + "x" * 99_000,
]


@pytest.mark.parametrize("name", PARSERS)
@QUICK
@given(text=st.one_of(st.text(), damaged()))
def test_no_text_gives_a_traceback(name: str, text: str) -> None:
    only_our_errors(PARSERS[name], text)


@pytest.mark.parametrize("name", PARSERS)
def test_no_recording_of_another_format_gives_a_traceback(name: str) -> None:
    for text in RECORDED:
        only_our_errors(PARSERS[name], text)


@pytest.mark.parametrize(("file", "name"), FORMATS.items())
def test_no_truncation_gives_a_traceback(file: str, name: str) -> None:
    for text in cuts((H200 / file).read_text(encoding="utf-8")):
        only_our_errors(PARSERS[name], text)


def cuts(text: str) -> Iterable[str]:
    """Give a text cut off after every line."""
    lines = text.splitlines(keepends=True)
    return ("".join(lines[:place]) for place in range(len(lines) + 1))


@pytest.mark.parametrize(("file", "name"), WHOLE.items())
def test_a_document_cut_off_is_never_whole(file: str, name: str) -> None:
    lines = (H200 / file).read_text(encoding="utf-8").splitlines(keepends=True)
    for place in range(len(lines) - 1):
        with pytest.raises(GpuInfraError):
            PARSERS[name](Reading(file, "".join(lines[:place]), exit_status=0))


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("text", LONG, ids=["letters", "names", "colons", "blanks", "words"])
def test_no_long_line_takes_long(name: str, text: str) -> None:
    started = time.monotonic()

    only_our_errors(PARSERS[name], text)

    assert time.monotonic() - started < 5.0


@pytest.mark.parametrize("digits", ["9" * 5000, "²", "٣", "-1"])
@pytest.mark.parametrize("name", sorted(PARSERS))
def test_numbers_that_are_none_are_refused_in_our_own_words(name: str, digits: str) -> None:
    """Every number of a recorded text by itself: one that int() takes no more, one that is a digit and no number."""
    lines = {re.sub(r"\d+", "#", line): line for text in RECORDED for line in text.splitlines() if len(line) < 400}
    for line in lines.values():
        for match in list(re.finditer(r"\d+", line))[:6]:
            only_our_errors(PARSERS[name], line[: match.start()] + digits + line[match.end() :])


def test_no_number_is_read_without_a_bound() -> None:
    """int() raises for thousands of digits, and isdigit() is true of ², which int() does not take."""
    subjects = Path(parse_kernel_log.__code__.co_filename).parents[1]
    found = [
        f"{file.name}: {match[0]}"
        for file in sorted(subjects.rglob("*.py"))
        for match in re.finditer(r"\(\?P<\w+>-?\\d[+*][)|]|int\([^()]*\) if \w+\.is", file.read_text(encoding="utf-8"))
    ]
    assert found == []


SEPARATORS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
"""Signs at which str.splitlines() ends a line, and neither kernel nor systemd does."""


def test_no_line_is_forged_behind_a_sign_that_ends_none() -> None:
    """A name that others chose may hold such a sign: what is behind it is part of the same line."""
    for sign in SEPARATORS:
        forged = Reading("show", f"Id=a.service\nActiveState=failed{sign}ActiveState=active\n", exit_status=0)
        assert parse_unit_properties(forged).values["ActiveState"].startswith("failed")
        if sign >= "\x20":  # the others stand in JSON as escapes
            entry = {"MESSAGE": f"a{sign}b", "_BOOT_ID": "b", "PRIORITY": "3"}
            journal = Reading("journal", json.dumps(entry, ensure_ascii=False), exit_status=0)
            (found,) = parse_kernel_log({"journal": journal}).entries
            assert found.message == f"a{sign}b"
        (first,) = parse_kernel_log(
            {"dmesg": Reading("dmesg", f"[ 1.000000] a{sign}[ 2.000000] b", exit_status=0)}
        ).entries
        assert first.time_s == 1.0


def test_texts_of_others_are_not_cut_by_splitlines() -> None:
    """wire.text_lines is there, and on the target split at the line feed: str.splitlines() knows more ends."""
    package = Path(parse_kernel_log.__code__.co_filename).parents[2]
    rooms = [package / "subjects", package / "gather", package / "inventory", package / "endpoint", package / "capture"]
    found = [file.name for room in rooms for file in room.rglob("*.py") if ".splitlines()" in file.read_text("utf-8")]
    assert found == []


@pytest.mark.parametrize("value", ["²", "9" * 5000, -1, 1 << 63, (1 << 64) - 1, 0.5, None, True, [], {}])
def test_json_of_a_host_with_a_number_that_is_none(value: object) -> None:
    """Priorities of a unit's journal, and numbers of a device node, whatever JSON can hold in their place."""
    only_our_errors(parse_unit_journal, json.dumps({"message": "m", "priority": value}))
    for key in ("mode", "major", "minor"):
        status = {"mode": 0o020666, "major": 195, "minor": 0, "uid": 0, "gid": 0, key: value}
        with contextlib.suppress(GpuInfraError):
            parse_device_tree({"nvidia0": {".": Reading("stat", json.dumps(status))}}, "/dev")
