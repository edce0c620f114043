"""Verdicts on the kernel log, DMA, access control, links, GPU state, collectives, units, containers."""

from __future__ import annotations

import pytest

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.subjects.gpu.driver import parse_driver_parameters
from pytest_gpuinfra.subjects.gpu.driver_parameters import judge_driver_parameters
from pytest_gpuinfra.subjects.gpu.health import judge_gpu_rows
from pytest_gpuinfra.subjects.gpu.smi_query import parse_gpu_query
from pytest_gpuinfra.subjects.kernel_log.faults import parse_kernel_faults
from pytest_gpuinfra.subjects.kernel_log.log import KernelLog, parse_kernel_log
from pytest_gpuinfra.subjects.kernel_log.severity import root_xid, weigh
from pytest_gpuinfra.subjects.pci.acs import bridges_above, judge_acs
from pytest_gpuinfra.subjects.pci.functions import PciFunction, parse_pci_functions
from pytest_gpuinfra.subjects.pci.link_judge import judge_link
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


def test_without_a_need_for_peers_a_redirect_is_told() -> None:
    verdict = judge_acs([bridge(0x1D)], peer_access=False)

    assert (verdict.ending, len(verdict.warnings)) == ("ok", 1)


def test_the_bridges_above_are_those_of_the_path() -> None:
    path = "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    functions = parse_pci_functions({"0000:00:01.0": {}, "0000:00:02.0": {}, GPU: {".": Reading(".", path)}})

    assert [found.address for found in bridges_above(functions[GPU], functions)] == ["0000:00:01.0"]


def gpu(speed: str, width: str) -> PciFunction:
    texts = {
        "current_link_speed": speed,
        "current_link_width": width,
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16",
    }
    return parse_pci_functions({GPU: {name: Reading(name, text) for name, text in texts.items()}}).functions[0]


@pytest.mark.parametrize(
    ("function", "asked", "ending", "warned"),
    [
        (gpu("32.0 GT/s PCIe", "16"), {}, "ok", False),
        (gpu("2.5 GT/s PCIe", "16"), {}, "ok", True),
        (gpu("2.5 GT/s PCIe", "16"), {"under_load": True}, "wrong", False),
        (gpu("32.0 GT/s PCIe", "8"), {}, "wrong", False),
        (gpu("32.0 GT/s PCIe", "8"), {"width": 8}, "ok", False),
        (gpu("Unknown", "0"), {}, "error", False),
        (gpu("fast", "16"), {}, "error", False),
    ],
)
def test_a_width_is_judged_always_and_a_speed_under_load(
    function: PciFunction, asked: dict[str, object], ending: str, warned: bool
) -> None:
    verdict = judge_link(function, **asked)  # type: ignore[arg-type]

    assert (verdict.ending, bool(verdict.warnings)) == (ending, warned), verdict


def rows(header: str, *lines: str) -> Verdict:
    return judge_gpu_rows(parse_gpu_query(Reading("q", "\n".join([header, *lines]))))


@pytest.mark.parametrize(
    ("verdict", "ending"),
    [
        (rows("index, utilization.gpu [%]", "0, 0 %"), "ok"),
        (rows("index, utilization.gpu [%]", "0, [N/A]"), "skip"),
        (rows("index, utilization.gpu [%]", "0, 0 %", "1, [Unknown Error]"), "error"),
        (rows("index, utilization.gpu [%]", "0, [Unknown Error]", "1, [GPU is lost]"), "wrong"),
        (rows("index, ecc.errors.uncorrected.volatile.total", "0, 2"), "wrong"),
        (rows("index, remapped_rows.failure", "0, Yes"), "wrong"),
        (rows("index, gpu_recovery_action", "0, None"), "ok"),
        (rows("index, gpu_recovery_action", "0, Drain and Reset"), "wrong"),
        (rows("index, fabric.state", "0, In Progress"), "wrong"),
        (rows("index, compute_mode", "0, Prohibited"), "wrong"),
        (judge_gpu_rows([]), "error"),
    ],
)
def test_the_worst_gpu_decides(verdict: Verdict, ending: str) -> None:
    assert verdict.ending == ending, verdict


def nccl(text: str, **asked: bool) -> Verdict:
    return judge_nccl_log(parse_nccl_log(Reading("nccl", text)), **asked)


EDGE = "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via "


@pytest.mark.parametrize(
    ("verdict", "ending"),
    [
        (nccl(EDGE + "SHM/direct/direct"), "ok"),
        (nccl(EDGE + "SHM/direct/direct", peer_access=True), "wrong"),
        (nccl(EDGE + "P2P/CUMEM", peer_access=True), "ok"),
        (nccl(EDGE + "P2P/CUMEM", timed_out=True), "wrong"),
        (nccl("h:1:2 [0] NCCL INFO Channel 00/02 : 0 1"), "error"),
        (nccl(EDGE + "P2P/IPC\nh:1:2 [0] x.cc:1 NCCL WARN trouble"), "wrong"),
        (nccl(EDGE + "P2P/IPC\nh:1:2 [0] x.cc:1 NCCL WARN NUMA auto balancing enabled"), "ok"),
    ],
)
def test_a_collective_is_judged_by_what_was_asked_for(verdict: Verdict, ending: str) -> None:
    assert verdict.ending == ending, verdict


def test_driver_parameters_against_what_is_expected() -> None:
    parameters = parse_driver_parameters(Reading("p", "DmaRemapPeerMmio: 1\n"))

    assert judge_driver_parameters(parameters, {"DmaRemapPeerMmio": 1}).ending == "ok"
    assert judge_driver_parameters(parameters, {"DmaRemapPeerMmio": 0}).ending == "wrong"
    assert judge_driver_parameters(parameters, {"NoSuch": 0}).ending == "error"
