"""Faults in the kernel log: every family, every known wording."""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.subjects.kernel_log import driver_lines
from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.faults import parse_kernel_faults
from pytest_gpuinfra.subjects.kernel_log.iommu_fault import IommuFault
from pytest_gpuinfra.subjects.kernel_log.log import parse_kernel_log
from pytest_gpuinfra.subjects.kernel_log.xid import Xid
from pytest_gpuinfra.subjects.kernel_log.xid_table import read_xid_table

H200 = Path(__file__).parents[1] / "recorded" / "h200"


def faults(text: str) -> tuple[Any, ...]:
    return parse_kernel_faults(parse_kernel_log({"dmesg": Reading("dmesg", text)}))


def one(text: str) -> Any:
    found = faults(text)
    assert len(found) == 1, found
    return found[0]


AMD = [
    (
        "nvidia 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040 flags=0x0020]",
        ("0000:07:00.0", "nvidia", "IO_PAGE_FAULT", 0x80000040, "write", 3),
    ),
    (
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=0a:00.0 domain=0x001d address=0x000000000637c000 flags=0x0000]",
        ("0000:0a:00.0", None, "IO_PAGE_FAULT", 0x637C000, "read", 0x1D),
    ),
    (
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=0001:c1:00.0 domain=0x0010 address=0x24000000000 flags=0x0070]",
        ("0001:c1:00.0", None, "IO_PAGE_FAULT", 0x24000000000, "write", 0x10),
    ),
    (
        "pci 0000:00:00.2: AMD-Vi: Event logged [INVALID_DEVICE_REQUEST device=0000:c1:00.0 pasid=0x00000 "
        "address=0xfffffffdf8000000 flags=0x0a00]",
        ("0000:c1:00.0", None, "INVALID_DEVICE_REQUEST", 0xFFFFFFFDF8000000, None, None),
    ),
    (
        "iommu ivhd0: AMD-Vi: Event logged [ILLEGAL_DEV_TABLE_ENTRY device=01:00.0 pasid=0x00000 address=0x0 "
        "flags=0x0080]",
        ("0000:01:00.0", None, "ILLEGAL_DEV_TABLE_ENTRY", 0, None, None),
    ),
    (
        "nvidia 0000:01:00.0: AMD-Vi: Event logged [RMP_PAGE_FAULT vmg_tag=0x0001, gpa=0x1000, flags_rmp=0x0004, "
        "flags=0x0020]",
        ("0000:01:00.0", "nvidia", "RMP_PAGE_FAULT", 0x1000, "write", None),
    ),
    (
        "(XEN) AMD-Vi: IO_PAGE_FAULT: DEV 0000:0a:00.0 d0 addr 00000000fdf8e000 flags 0x20 RW",
        ("0000:0a:00.0", None, "IO_PAGE_FAULT", 0xFDF8E000, "write", None),
    ),
    (
        "(XEN) AMD-Vi: IO_PAGE_FAULT: domain = 0, device id = 0x0a01, fault address = 0xfdf8e000, flags = 0x000",
        ("0000:0a:00.1", None, "IO_PAGE_FAULT", 0xFDF8E000, "read", None),
    ),
]


@pytest.mark.parametrize(("text", "expected"), AMD)
def test_amd_events_are_read_in_every_form(text: str, expected: tuple[Any, ...]) -> None:
    fault = one(text)

    assert isinstance(fault, IommuFault)
    assert (fault.device, fault.driver, fault.code, fault.address, fault.access, fault.domain) == expected


INTEL = [
    (
        "DMAR: [DMA Write] Request device [00:12.0] fault addr 0 [fault reason 05] PTE Write access is not set",
        ("0000:00:12.0", "write", 0, "05", None, "PTE Write access is not set"),
    ),
    (
        "DMAR: [DMA Write] Request device [00:12.0] PASID ffffffff fault addr fee00000 [fault reason 05] PTE Write",
        ("0000:00:12.0", "write", 0xFEE00000, "05", None, "PTE Write"),
    ),
    (
        "DMAR: [DMA Read NO_PASID] Request device [03:00.0] fault addr 0x100000 [fault reason 0x71] SM: Present",
        ("0000:03:00.0", "read", 0x100000, "0x71", None, "SM: Present"),
    ),
    (
        "DMAR: [DMA Read PASID 0x12] Request device [03:00.0] fault addr 0x100000 [fault reason 0x71] SM: Present",
        ("0000:03:00.0", "read", 0x100000, "0x71", 0x12, "SM: Present"),
    ),
    (
        "DMAR:[DMA Write] Request device [02:00.0] fault addr 1000 \n     DMAR:[fault reason 05] PTE Write",
        ("0000:02:00.0", "write", 0x1000, "05", None, "PTE Write"),
    ),
    (
        "[1.0] dmar: DMAR:[DMA Write] Request device [02:00.0] fault addr 1000\n[1.1] DMAR:[fault reason 05] PTE Write",
        ("0000:02:00.0", "write", 0x1000, "05", None, "PTE Write"),
    ),
    (
        "DMAR: [INTR-REMAP] Request device [f0:1f.7] fault index 0x0 [fault reason 0x25] Blocked a compatibility",
        ("0000:f0:1f.7", "intr-remap", 0, "0x25", None, "Blocked a compatibility"),
    ),
    (
        "(XEN) [VT-D]DMAR:[DMA Read] Request device [0000:00:02.0] fault addr 8e43c000, iommu reg = ffff82c00021d000\n"
        "(XEN) [VT-D]DMAR: reason 06 - PTE Read access is not set",
        ("0000:00:02.0", "read", 0x8E43C000, "06", None, "PTE Read access is not set"),
    ),
]


@pytest.mark.parametrize(("text", "expected"), INTEL)
def test_dmar_faults_are_read_in_one_line_and_in_two(text: str, expected: tuple[Any, ...]) -> None:
    fault = one(text)

    assert (fault.device, fault.access, fault.address, fault.reason, fault.pasid, fault.text) == expected


def test_a_reason_is_not_taken_from_the_next_fault() -> None:
    first, second = faults(
        "[1.0] DMAR:[DMA Write] Request device [02:00.0] fault addr 1000\n"
        "[1.1] DMAR:[DMA Write] Request device [03:00.0] fault addr 2000\n"
        "[1.2] DMAR:[fault reason 05] PTE Write\n"
    )

    assert (first.reason, second.reason) == (None, "05")


SMMU = [
    (
        "arm-smmu-v3 arm-smmu-v3.0.auto: event: F_TRANSLATION client: 0000:01:00.0 sid: 0x100 ssid: 0x0 iova: 0xff "
        "ipa: 0x0\n"
        'arm-smmu-v3 arm-smmu-v3.0.auto: unpriv data write s1 "Input address caused fault" stag: 0x0',
        ("0000:01:00.0", "F_TRANSLATION", 0xFF, "write"),
    ),
    (
        "[1.0] arm-smmu-v3 arm-smmu-v3.0.auto: event 0x10 received:\n"
        "[1.0] arm-smmu-v3 arm-smmu-v3.0.auto: \t0x0000010000000010\n"
        "[1.0] arm-smmu-v3 arm-smmu-v3.0.auto: \t0x0000020800000000\n"
        "[1.0] arm-smmu-v3 arm-smmu-v3.0.auto: \t0x00000000fffff000\n"
        "[1.0] arm-smmu-v3 arm-smmu-v3.0.auto: \t0x0000000000000000",
        (None, "0x10", 0xFFFFF000, "read"),
    ),
    (
        "arm-smmu 7fb20000.iommu: Unhandled context fault: fsr=0x402, iova=0xfffff000, fsynr=0x11, cbfrsynra=0x1, cb=2",
        (None, "0x402", 0xFFFFF000, "write"),
    ),
]


@pytest.mark.parametrize(("text", "expected"), SMMU)
def test_smmu_faults_are_read(text: str, expected: tuple[Any, ...]) -> None:
    fault = one(text)

    assert (fault.device, fault.code, fault.address, fault.access) == expected
    assert fault.vendor == "arm"


def test_what_the_rate_limit_held_back_is_counted() -> None:
    first, second = faults(
        "[1.0] amd_iommu_report_page_fault: 367957 callbacks suppressed\n"
        + "\n".join(f"[1.1] {AMD[0][0]}" for _ in "ab")
    )

    assert (first.count, first.suppressed, second.count) == (367958, 367957, 1)


def test_a_count_without_any_report_is_a_fault_of_an_unknown_device() -> None:
    fault = one("[1.0] dmar_fault: 2474 callbacks suppressed")

    assert (fault.vendor, fault.device, fault.count) == ("intel", None, 2474)


@pytest.mark.parametrize(
    "text",
    [
        "DMAR: DRHD: handling fault status reg 2",
        "DMAR: Dump dmar0 table entries for IOVA 0x100000",
        "AMD-Vi: Interrupt remapping enabled",
        "AMD-Vi: Unknown option - 'on'",
        "DMAR: IOMMU enabled",
        "NVRM: GPU at PCI:0000:64:00: GPU-00000000-0000-0000-0000-000000000000",
        "nvidia-nvswitch0: using MSI",
        "amdgpu 0000:c3:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:c3:00.0: amdgpu: 0 correctable hardware errors detected in total in umc block",
        "ath10k_pci 0000:01:00.0: firmware crashed! (guid n/a)",
        "[1.0] Killed process accounting is on",
    ],
)
def test_what_is_no_fault_is_none(text: str) -> None:
    assert faults(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "AMD-Vi: Event logged [BRAND_NEW_EVENT what=ever]",
        "DMAR: [Teleport] Request device [03:00.0] fault addr 0x0",
        "NVRM: Xid error: xyz, invalid data",
        "NVRM: Xid (invalid): some error",
        "NVRM: Xid : 32, pid=2280636",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal",
    ],
)
def test_a_fault_in_an_unknown_form_is_kept(text: str) -> None:
    assert one(text).kind == "unreadable"


XIDS = [
    ("NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", (79, None, None)),
    ("NVRM: Xid (0000:05:00): 14, Channel 00000001", (14, None, None)),
    ("NVRM: Xid (PCI:0000:05:00.0): 13, pid=12, name=a b, c, Graphics Exception", (13, 12, "a b")),
    ("NVRM Xid (PCI:0000:05:00): 45, pid=12542, name=VLLM::Worker, channel 0x00000002", (45, 12542, "VLLM::Worker")),
    ("NVRM: Xid (PCI:0000:05:00 GPU-I:05): 45, pid=7, name=python, Ch 00000008", (45, 7, "python")),
    ("NVRM: GPU0 Xid (PCI:0000:05:00): 109, pid=1, name=x, CTX SWITCH TIMEOUT", (109, 1, "x")),
    ("NVRM: Xid (PCI:0000:05:00): 119", (119, None, None)),
]


@pytest.mark.parametrize(("text", "expected"), XIDS)
def test_xids_are_read_in_every_form(text: str, expected: tuple[Any, ...]) -> None:
    fault = one(text)

    assert isinstance(fault, Xid)
    assert fault.device == "0000:05:00.0"
    assert (fault.code, fault.pid, fault.process) == expected


def test_an_xid_that_was_broken_into_lines_is_one() -> None:
    fault = one(
        "[1.0] NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x0 (None)\n       to 0x2 (OS Reboot)"
    )

    assert (fault.recovery_from, fault.recovery_to) == ("None", "OS Reboot")


def test_fatal_and_nonfatal_nvlink_events_are_told_apart() -> None:
    fatal = one("NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x0)")
    mild = one("NVRM: Xid (PCI:0009:01:00): 145, RLW_REMAP Nonfatal XC0 i0 Link -1 (0x00000004 0x00000001)")
    degraded = one("NVRM: Xid (PCI:0009:01:00): 150, MSE Degraded Fatal XC0 i0 Link -1 (0x00000000)")

    assert (fatal.unit, fatal.severity, fatal.link, fatal.registers) == (
        "NETIR_LINK_EVT",
        "Fatal",
        1,
        ("0x021425c6", "0x0"),
    )
    assert (mild.unit, mild.severity, mild.link) == ("RLW_REMAP", "Nonfatal", -1)
    assert (degraded.unit, degraded.severity) == ("MSE Degraded", "Fatal")


def test_the_security_processor_shows_its_status_and_registers() -> None:
    fault = one(
        "NVRM: Xid (PCI:0000:02:00): 143, Error status 0x65 while polling for FSP boot complete, 0x177, 0x0, 0x0"
    )

    assert (fault.status, fault.registers) == ("0x65", ("0x177", "0x0", "0x0"))


def test_printed_one_of_thirty_is_a_lower_bound() -> None:
    found = faults(
        "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=a, Timeout\n"
        "NVRM: Xid (PCI:0000:9c:00): 119, pid=1, name=a, Timeout\n"
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).\n"
    )

    assert [fault.rate_limited for fault in found if isinstance(fault, Xid)] == [True, False]


INIT = [
    (
        "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x1a:1792)",
        ("init", "rm-init", "0000:01:00.0", "0x62:0x1a:1792"),
    ),
    ("NVRM: RmInitAdapter failed! (0x26:0xffff:1290)", ("init", "rm-init", None, "0x26:0xffff:1290")),
    (
        "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
        ("init", "rm-init", "0000:01:00.0", None),
    ),
    ("NVRM: kfspPollForResponse_IMPL: FSP command timed out", ("init", "fsp", None, None)),
    ("NVRM: GPU0 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed", ("init", "wpr2", None, None)),
    ("NVRM: x_TU102: failed to wait for GFW boot complete: 0x55 VBIOS version 95.04", ("init", "gfw", None, "0x55")),
    ("NVRM: y_TU102: failed to wait for GFW_BOOT: (progress 0x3)", ("init", "gfw", None, "(progress 0x3)")),
    ("NVRM kgspInitRm_IMPL: cannot bootstrap riscv/gsp: 0x65", ("init", "gsp", None, "0x65")),
    ("NVRM: RmInitAdapter: Cannot initialize GSP firmware RM", ("init", "gsp", None, None)),
    ("NVRM: The NVIDIA probe routine failed for 2 device(s).", ("init", "probe", None, None)),
    ("NVRM: The NVIDIA probe routine was not called for 4 device(s).", ("notice", "not-probed", None, None)),
    ("nvidia 0000:01:00.0: probe with driver nvidia failed with error -1", ("init", "probe", "0000:01:00.0", "-1")),
    ("nvidia: probe of 0000:01:00.0 failed with error -1", ("init", "probe", "0000:01:00.0", "-1")),
    ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", ("off-bus", "off-bus", "0000:01:00.0", None)),
    (
        "[1.0] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.",
        ("off-bus", "off-bus", "0000:b3:00.0", None),
    ),
    (
        "[1.0] NVRM: The NVIDIA GPU 0000:b3:00.0\n[1.0] NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "[1.0] NVRM: fallen off the bus and is not responding to commands.",
        ("off-bus", "off-bus", "0000:b3:00.0", None),
    ),
    (
        "nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible",
        ("off-bus", "inaccessible", "0000:01:00.0", None),
    ),
    (
        "NVRM: API mismatch: the client has the version 470.57.02, but\n"
        "   NVRM: this kernel module has the version 470.63.01.",
        ("mismatch", "api", None, None),
    ),
]


@pytest.mark.parametrize(("text", "expected"), INIT)
def test_gpus_that_did_not_start_are_found_without_any_xid(text: str, expected: tuple[Any, ...]) -> None:
    fault = one(text)

    assert (fault.kind, fault.code, fault.device, fault.status) == expected


AER = [
    (
        "pcieport 0000:00:01.1: AER: Corrected error received: 0000:01:00.0\n"
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)\n"
        "nvidia 0000:01:00.0:   device [10de:2bb1] error status/mask=00000001/00002000\n"
        "nvidia 0000:01:00.0:    [ 0] RxErr                  (First)",
        ("0000:01:00.0", "corrected", "Physical Layer", ("RxErr",)),
    ),
    (
        "pcieport 0000:30:03.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Data Link Layer, (Receiver ID)",
        ("0000:30:03.0", "fatal", "Data Link Layer", ()),
    ),
    (
        "pcieport 0000:00:1b.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, "
        "id=0008(x)",
        ("0000:00:1b.0", "non-fatal", "Transaction Layer", ()),
    ),
    (
        "pcieport 0000:40:01.0: AER: Multiple Uncorrectable (Non-Fatal) error message received from 0000:41:00.0",
        ("0000:41:00.0", "non-fatal", "", ()),
    ),
    ("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: id=0008", ("0000:00:01.0", "fatal", "", ())),
    ("nvidia 0000:41:00.0: aer_cor_status: 0x00001000, aer_cor_mask: 0x0", ("0000:41:00.0", "corrected", "", ())),
    (
        "pcieport 0000:40:01.1: DPC: containment event, status:0x1f01 source:0x0000",
        ("0000:40:01.1", "fatal", "", ("DPC containment",)),
    ),
]


@pytest.mark.parametrize(("text", "expected"), AER)
def test_pci_express_errors_keep_their_severity(text: str, expected: tuple[Any, ...]) -> None:
    fault = one(text)

    assert (fault.device, fault.severity, fault.layer, fault.names) == expected


OTHERS = [
    ("Out of memory: Killed process 1234 (python3) total-vm:1kB, anon-rss:1kB", ("oom", None, 1)),
    ("Memory cgroup out of memory: Killed process 12 (sglang::schedul) total-vm:1kB", ("oom", None, 1)),
    ("Out of memory: Kill process 1234 (python3) score 5 or sacrifice child", ("oom", None, 1)),
    ("{1}[Hardware Error]: event severity: recoverable", ("mce", "recoverable", 1)),
    ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400", ("mce", "uncorrected", 1)),
    ("[Hardware Error]: Corrected error, no action required.", ("mce", "corrected", 1)),
    ("EDAC MC0: 3 CE on DIMM_A1 (channel:0 slot:0 page:0x1)", ("mce", "corrected", 3)),
    (
        "amdgpu 0000:0b:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
        ("ras", "uncorrectable umc", 2),
    ),
    (
        "amdgpu 0000:0b:00.0: amdgpu: socket: 0 1 correctable hardware errors detected in gfx block",
        ("ras", "correctable gfx", 1),
    ),
    ("amdgpu 0000:0b:00.0: amdgpu: GPU reset begin!", ("ras", "reset", 1)),
    ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1", ("ras", "ring timeout", 1)),
    ("nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 sourcetrack timeout error", ("sxid", 24007, 1)),
    ("nvidia-nvswitch1 SXid (PCI:0000:06:00.0): 20009, Non-fatal, Link 04", ("sxid", 20009, 1)),
]


@pytest.mark.parametrize(("text", "expected"), OTHERS)
def test_other_families_are_found(text: str, expected: tuple[Any, ...]) -> None:
    fault: KernelFault = one(text)

    assert (fault.kind, fault.code, fault.count) == expected


def test_more_lines_of_a_switch_report_are_no_reports() -> None:
    found = faults(
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 sourcetrack timeout error\n"
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Severity 1 Engine instance 30 Sub-engine instance 00\n"
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Data {0x00050009, 0x00050009}\n"
    )

    assert [(fault.severity, fault.link) for fault in found] == [("Fatal", 30)]


def test_faults_stand_in_log_order() -> None:
    found = faults(f"[1.0] Out of memory: Killed process 1 (a)\n[2.0] {AMD[0][0]}\n[3.0] {XIDS[0][0]}\n")

    assert [fault.kind for fault in found] == ["oom", "iommu", "xid"]


def test_a_healthy_machine_has_no_fault() -> None:
    text = (H200 / "dmesg-gpu-lines.txt").read_text(encoding="utf-8")

    assert faults(text) == ()


def test_the_table_knows_its_date_and_classifies() -> None:
    table = read_xid_table()

    assert table.date
    assert [table.meaning(code).xid_class for code in (13, 31, 43, 45)] == ["application"] * 4
    assert (table.meaning(79).xid_class, table.meaning(79).verdict) == ("hardware", "fail")
    assert (table.meaning(14).xid_class, table.meaning(14).verdict) == ("unclassified", "fail")


def test_the_user_overrides_the_table() -> None:
    meaning = read_xid_table().meaning(92, {92: "fail"})

    assert (meaning.verdict, meaning.overridden, meaning.name) == ("fail", True, "EXCESSIVE_SBE_INTERRUPTS")


TABLE = tomllib.loads(Path(driver_lines.__file__).with_name("known_lines.toml").read_text(encoding="utf-8"))


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, int], None]]:
    """Take one row out of the table of known lines."""
    caches = (driver_lines._distress, driver_lines._harmless)

    def take(part: str, number: int) -> None:
        rows = [row for at, row in enumerate(TABLE[part]) if at != number]
        monkeypatch.setattr(driver_lines, "_table", lambda: {**TABLE, part: rows})
        for cache in caches:
            cache.cache_clear()

    yield take
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("number", range(len(TABLE["distress"])))
def test_distress_that_is_taken_out_of_the_table_is_unknown(number: int, without: Callable[[str, int], None]) -> None:
    """It may be recognised by another row; it is never passed over, with a level or without."""
    without("distress", number)
    for example in TABLE["distress"][number]["examples"]:
        speaks = driver_lines.speaker_of(example) != ""
        for form in (f"[1.0] {example}", f"<3>[1.0] {example}"):
            assert bool(faults(form)) is speaks, form


@pytest.mark.parametrize("number", range(len(TABLE["harmless"])))
def test_a_harmless_line_that_is_taken_out_of_the_table_is_unknown(
    number: int, without: Callable[[str, int], None]
) -> None:
    lines = [re.sub(r"(?<!\\)\*", "x", line).replace("\\*", "*") for line in TABLE["harmless"][number]["lines"]]
    spoken = [line for line in lines if driver_lines.speaker_of(line) and not line.startswith(("x", "DMAR:x"))]
    known = [line for line in spoken if not faults(f"<3>[1.0] {line}")]
    without("harmless", number)

    assert [line for line in known if not faults(f"<3>[1.0] {line}")] == []


def test_a_driver_that_writes_without_end_costs_little() -> None:
    """Lines of the worst kinds: each word that begins a pattern, over and over."""
    words = "NVRM: GSP GPU NVLink link 1 poison reset PMU status=0x AER: DPC: [ [ SEV failed error "
    lines = "".join(f"<3>[{n}.0] {words * 40}\n<3>[{n}.5] DMAR: {words * 40}\n" for n in range(500))
    began = time.process_time()
    faults(lines)

    assert time.process_time() - began < 10
