"""Verdicts on the kernel log, DMA, access control, links, GPU state, collectives, units, containers."""

from __future__ import annotations

import pytest

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.subjects.kernel_log.faults import parse_kernel_faults
from pytest_gpuinfra.subjects.kernel_log.log import KernelLog, parse_kernel_log
from pytest_gpuinfra.subjects.kernel_log.severity import root_xid, weigh
from pytest_gpuinfra.subjects.pci.acs import bridges_above, judge_acs
from pytest_gpuinfra.subjects.pci.functions import PciFunction, parse_pci_functions
from pytest_gpuinfra.subjects.transfers.collective_log import judge_nccl_log
from pytest_gpuinfra.subjects.transfers.nccl_log import parse_nccl_log
from pytest_gpuinfra.subjects.verdict import Verdict

BEGIN = "[    0.000000] Linux version 6.8\n"
GPU = "0000:01:00.0"


def log(text: str) -> KernelLog:
    return parse_kernel_log({"dmesg": Reading("dmesg", text)})


def test_the_cause_is_not_the_last_line() -> None:
    faults = parse_kernel_faults(
        log(
            "[1.0] NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (Reset)\n"
            "[1.1] NVRM: Xid (PCI:0000:01:00): 62, x\n[1.2] NVRM: Xid (PCI:0000:01:00): 45, pid=1, name=a, y\n"
        )
    )
    root = root_xid(faults)

    assert root is not None
    assert root.number == 62
    assert root_xid([]) is None


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)", False),
        ("nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Physical Layer, (x)", True),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00", True),
        ("[Hardware Error]: Corrected error, no action required.", False),
        ("amdgpu 0000:0b:00.0: amdgpu: 1 correctable hardware errors detected in gfx block", False),
        ("amdgpu 0000:0b:00.0: amdgpu: 1 uncorrectable hardware errors detected in gfx block", True),
        ("NVRM: Xid (PCI:0000:01:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x4)", False),
        ("NVRM: Xid (PCI:0000:01:00): 145, RLW_REMAP Fatal XC0 i0 Link 00 (0x4)", True),
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)", False),
    ],
)
def test_faults_weigh_by_their_severity(line: str, counts: bool) -> None:
    (fault,) = parse_kernel_faults(log(f"[1.0] {line}\n"))

    assert weigh(fault, {}).counts is counts


def bridge(control: int | None, address: str = "0000:00:01.0") -> PciFunction:
    content = bytearray(4096 if control is not None else 64)
    if control is not None:
        content[0x100:0x108] = (0x0001000D | 0x5F << 32 | control << 48).to_bytes(8, "little")
    node = {"config": Reading("config", bytes(content).hex()), "class": Reading("class", "0x060400")}
    return parse_pci_functions({address: node}).functions[0]


@pytest.mark.parametrize(
    ("bridges", "ending", "warned"),
    [
        ([bridge(0x1D)], "wrong", False),
        ([bridge(0x00), bridge(0x08)], "wrong", False),
        ([bridge(0x01)], "ok", True),
        ([bridge(0x00)], "ok", False),
        ([bridge(None)], "error", False),
        ([], "skip", False),
    ],
)
def test_only_redirects_in_the_control_register_count(bridges: list[PciFunction], ending: str, warned: bool) -> None:
    verdict = judge_acs(bridges)

    assert (verdict.ending, bool(verdict.warnings)) == (ending, warned), verdict


def test_the_bridges_above_are_those_of_the_path() -> None:
    path = "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    functions = parse_pci_functions({"0000:00:01.0": {}, "0000:00:02.0": {}, GPU: {".": Reading(".", path)}})

    assert [found.address for found in bridges_above(functions[GPU], functions)] == ["0000:00:01.0"]


def nccl(text: str, **asked: bool) -> Verdict:
    return judge_nccl_log(parse_nccl_log(Reading("nccl", text)), **asked)


EDGE = "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via "


@pytest.mark.parametrize(
    ("verdict", "ending"),
    [
        (nccl(EDGE + "SHM/direct/direct"), "ok"),
        (nccl(EDGE + "SHM/direct/direct", direct=True), "wrong"),
        (nccl(EDGE + "P2P/CUMEM", direct=True), "ok"),
        (nccl(EDGE + "P2P/CUMEM", timed_out=True), "wrong"),
        (nccl("h:1:2 [0] NCCL INFO Channel 00/02 : 0 1"), "error"),
        (nccl(EDGE + "P2P/IPC\nh:1:2 [0] x.cc:1 NCCL WARN trouble"), "wrong"),
        (nccl(EDGE + "P2P/IPC\nh:1:2 [0] x.cc:1 NCCL WARN NUMA auto balancing enabled"), "ok"),
    ],
)
def test_a_collective_is_judged_by_what_was_asked_for(verdict: Verdict, ending: str) -> None:
    assert verdict.ending == ending, verdict
