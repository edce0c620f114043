"""The kernel's log, judged as a whole: each fault by one item, unknown errors by one, healthy boots by none."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinfra.inventory.inventory import HostSpec, read_inventory
from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.plugin.conftest import REFERENCE, Judged, judge_recording
from tests.recorded.boots import boots
from tests.recorded.made_host import MadeFunction
from tests.recorded.reference.compose import reference_host

SUITE = "test_no_ or test_gpu_initialised or test_every_error"
GPU = "test_{}[01:00.0]"
VFIO = "test_{}[81:00.0]"
DEVICE, NAMELESS = "test_no_fault_by_another_device[]", "test_no_gpu_fault_without_a_known_device[]"
MEMORY, HOST = "test_no_machine_check_and_no_memory_kill[]", "test_no_fault_that_no_other_check_judges[]"
UNKNOWN = "test_every_error_by_a_driver_is_known[]"
IOMMU, DRIVER, INIT, PCIE = (
    "no_iommu_fault_by_the_gpu",
    "no_xid_on_the_gpu",
    "gpu_initialised_without_failure",
    "no_pcie_error_by_the_gpu",
)
DEVICES = [{"pci": ["0000:01:00.0"], "driver": "nvidia"}, {"pci": ["0000:81:00.0"], "driver": "vfio-pci"}]
SWITCH, NIC, AMD = "0000:c4:00.0", "0000:a1:00.0", "0000:d1:00.0"

KINDS = {
    "xid": ("NVRM: Xid (PCI:{0}): 79, pid=1, name=a, GPU has fallen off the bus.", DRIVER),
    "xid-by-cause": ("NVRM: Xid (PCI:{0}): 45, pid=1, name=a, Ch 00000001 caused by previous Xid 149", DRIVER),
    "sxid": ("nvidia-nvswitch0: SXid (PCI:{0}): 24007, Fatal, Link 30 sourcetrack timeout error", DRIVER),
    "off-the-bus": ("NVRM: GPU {0}: GPU has fallen off the bus.", DRIVER),
    "locked": ("NVRM: GPU at PCI:{0}: RC watchdog: GPU is probably locked!", DRIVER),
    "flr": ("vfio-pci {0}: not ready 65535ms after FLR; giving up", DRIVER),
    "init": ("NVRM: GPU {0}: RmInitAdapter failed! (0x62:0x40:2168)", INIT),
    "probe": ("vfio-pci {0}: probe with driver vfio-pci failed with error -22", INIT),
    "iommu": ("nvidia {0}: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x1 address=0x1 flags=0x20]", IOMMU),
    "dmar": ("DMAR: [DMA Read NO_PASID] Request device [{0}] fault addr 0x1 [fault reason 0x06] PTE Read", IOMMU),
    "aer": ("pcieport {0}: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Data Link Layer, (Receiver ID)", PCIE),
    "dpc": ("pcieport {0}: DPC: containment event, status:0x1f01 source:0x0000", PCIE),
    "slot": ("pcieport {0}: pciehp: Slot(34): Link Down", PCIE),
    "retrain": ("pcieport {0}: retraining failed", PCIE),
    "ras": ("amdgpu {0}: amdgpu: 2 uncorrectable hardware errors detected in umc block", DRIVER),
    "ras-poison": ("amdgpu {0}: amdgpu: poison is consumed by client 12", DRIVER),
    "ras-ring": ("amdgpu {0}: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1", DRIVER),
    "athub": ("amdgpu {0}: {{1}}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!", DRIVER),
    "mes": ("amdgpu {0}: amdgpu: MES failed to respond to msg=REMOVE_QUEUE", DRIVER),
}
PLACES = {
    "gpu": ("0000:01:00.0", GPU),
    "audio": ("0000:01:00.1", GPU),
    "port": ("0000:00:01.1", GPU),
    "vfio": ("0000:81:00.0", VFIO),
    "vfio-audio": ("0000:81:00.1", VFIO),
    "vfio-port": ("0000:80:01.1", VFIO),
    "switch": (SWITCH, DEVICE),
    "nic": (NIC, DEVICE),
    "unlisted-gpu": (AMD, DEVICE),
    "absent": ("0000:b7:00.0", NAMELESS),
}
HOST_WIDE = {
    "mismatch": ("NVRM: API mismatch: the client has the version 570.1, but this kernel module has 580.2.", NAMELESS),
    "reset-required": (
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned "
        "from status @ kernel_channel.c:2874",
        NAMELESS,
    ),
    "halted": ("NVRM: GPU0 _kgspRpcGspEventPmuHalted: Received signal from GSP that PMU has halted.", NAMELESS),
    "nameless-init": ("NVRM: RmInitAdapter failed! (0x26:0xffff:1290)", NAMELESS),
    "command-error": ("AMD-Vi: Event logged [COMMAND_HARDWARE_ERROR address=0x1 flags=0x0]", HOST),
    "completion-wait": ("AMD-Vi: Completion-Wait loop timed out", HOST),
    "snp": ("ccp 0000:44:00.5: SEV-SNP: failed to INIT error 0x3, rc -5", NAMELESS),
    "snp-nameless": ("SEV-SNP: failed to INIT error 0x3, rc -5", HOST),
    "machine-check": ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400", MEMORY),
    "out-of-memory": ("Out of memory: Killed process 1234 (python3) total-vm:1kB, anon-rss:1kB", MEMORY),
    "bar": ("pci 0000:01:00.0: BAR 1 [mem size 0x2000000000 64bit pref]: failed to assign", GPU.format(INIT)),
    "old-bar": ("pci 0000:01:00.0: BAR 1: failed to assign [mem size 0x2000000000 64bit pref]", GPU.format(INIT)),
    "soft-lockup": ("watchdog: BUG: soft lockup - CPU#5 stuck for 22s! [nvidia-smi:1234]", NAMELESS),
}
STACKS = {
    "hung-task": ("INFO: task python3:509579 blocked for more than 120 seconds.", "  os_acquire+0x35/0x50 [nvidia]"),
    "hung-uvm": ("INFO: task python3:5 blocked for more than 120 seconds.", "  uvm_va+0x35/0x50 [nvidia_uvm]"),
    "hard-lockup": ("watchdog: Watchdog detected hard LOCKUP on cpu 3", "RIP: 0010:_nv01rm+0x5/0x50 [nvidia]"),
    "rcu": ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", " ? amdgpu_x+0x35/0x50 [amdgpu]"),
    "oops": ("BUG: unable to handle page fault for address: ffff8", "RIP: 0010:_nv01rm+0x5/0x50 [nvidia]"),
}
"""A report and a line of the stack below it; each is a fault of the driver that the stack is in."""
UNKNOWNS = {
    "nvrm": (4, "NVRM: GPU0 frobnicate_GB202: the frobnicator failed to gyre, status=0x0000abcd"),
    "nvrm-error": (3, "NVRM: GPU0 frobnicate_GB202: gyring and gimbling"),
    "nvidia": (3, "nvidia 0000:01:00.0: the mome raths outgrabe"),
    "switch": (3, "nvidia-nvswitch1: the mome raths outgrabe"),
    "uvm": (3, "nvidia-uvm: uvm_x.c:1 x[pid:1] the mome raths outgrabe"),
    "amdgpu": (3, "amdgpu 0000:01:00.0: amdgpu: the mome raths outgrabe"),
    "drm": (3, "[drm:amdgpu_x [amdgpu]] *ERROR* the mome raths outgrabe"),
    "kfd": (3, "kfd kfd: amdgpu: the mome raths outgrabe"),
    "vfio": (2, "vfio-pci 0000:81:00.0: the mome raths outgrabe"),
    "dmar": (3, "DMAR: the mome raths outgrabe"),
    "amd-vi": (0, "pci 0000:00:00.2: AMD-Vi: the mome raths outgrabe"),
    "smmu": (3, "arm-smmu-v3 arm-smmu-v3.0.auto: the mome raths outgrabe"),
    "port": (3, "pcieport 0000:00:01.1: the mome raths outgrabe"),
    "hotplug": (3, "pcieport 0000:00:01.1: pciehp: Slot(1): the mome raths outgrabe"),
    "edac": (3, "EDAC skx MC0: the mome raths outgrabe"),
    "mce": (1, "mce: the mome raths outgrabe"),
    "ccp": (3, "ccp 0000:44:00.5: the mome raths outgrabe"),
    "bus": (3, "pci 0000:01:00.0: the mome raths outgrabe"),
}
GARBLED = {
    "xid": ("NVRM: Xid (PCI:0000:01:00): abc, pid=2280636", [GPU.format(DRIVER)]),
    "sxid": (f"nvidia-nvswitch3: SXid (PCI:{SWITCH}): garbled, Fatal", [DEVICE]),
    "dmar": ("DMAR: [Teleport] Request device [0000:b7:00.0] fault addr 0x0", [NAMELESS]),
    "nobody": ("NVRM: Xid : 32, pid=2280636", [NAMELESS, GPU.format(DRIVER), VFIO.format(DRIVER)]),
}
"""Lines that speak of a fault in a form that is not known, and the items that cannot tell whether it is theirs."""
QUIET = {
    "information": (6, "amdgpu 0000:01:00.0: amdgpu: the mome raths failed to outgrabe"),
    "warning": (4, "pcieport 0000:00:01.1: the mome raths failed to outgrabe"),
    "somebody-else": (3, "usb 1-2: device descriptor read/64, error -71"),
    "bus-elsewhere": (3, "pci 0000:03:00.0: the mome raths outgrabe"),
    "corrected": (4, "pcieport 0000:00:01.1: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)"),
}
KILL = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg={0},"
    "task_memcg={0},task=python3,pid=8123,uid=0"
)
KILLED = "Memory cgroup out of memory: Killed process 8123 (python3) total-vm:1302448kB, anon-rss:1048000kB"
KILLS = {
    "another-unit": ("/system.slice/backup.service", "passed"),
    "another-container": ("/lxc/130/ns/user.slice", "passed"),
    "the-service": ("/system.slice/sglang-qwen.service", "failed"),
    "the-container": ("/lxc/129/ns/system.slice/sglang-qwen.service", "failed"),
    "the-container-itself": ("/lxc/129", "failed"),
    "nobody-knows": ("", "error"),
}
TABLE = tomllib.loads(
    (Path(__file__).parents[2] / "pytest_gpuinfra/subjects/kernel_log/known_lines.toml").read_text(encoding="utf-8")
)
EXAMPLES = {
    f"{row['code']}-{number}-{n}": example
    for number, row in enumerate(TABLE["distress"])
    for n, example in enumerate(row["examples"])
}


@cache
def spec() -> HostSpec:
    return read_inventory(REFERENCE / "gpuinfra.toml").hosts["node-a"]


@cache
def base() -> Any:
    """Read the reference host before anybody copied between its GPUs, with a switch, a NIC and an unlisted GPU."""
    host = reference_host()
    host.kmsg = [record for record in host.kmsg if "IO_PAGE_FAULT" not in record[2]]
    host.functions = [
        *host.functions,
        MadeFunction(SWITCH, (), 0x10DE, 0x22A3, 0x068000, "nvidia-nvswitch"),
        MadeFunction(NIC, (), 0x15B3, 0x1021, 0x020000, "mlx5_core"),
        MadeFunction(AMD, (), 0x1002, 0x74A1, 0x120000, "amdgpu"),
    ]
    return host, host.capture("base", spec().expect)


def logging(*records: tuple[int, str], levels: bool = True, **changes: Any) -> RecordedHost:
    """Give the host with more records in its log, in text without levels if wanted; its inventory may differ."""
    host, _ = base()
    lines = [*host.kmsg, *((level, 5000.0 + n, text) for n, (level, text) in enumerate(records))]
    made = dataclasses.replace(host, kmsg=lines)
    log: dict[str, Any] = {"kmsg": {"t": made.kmsg_text()}}
    if not levels:
        text = "".join(f"[{at:12.6f}] {message}\n" for _, at, message in lines)
        log = {"kmsg": {"e": "EPERM: Operation not permitted"}, "dmesg": {"t": text, "x": 0, "s": ""}}
    return recorded({"": log}, **changes)


def recorded(log: Mapping[str, Any], **changes: Any) -> RecordedHost:
    capture = base()[1]
    declared = spec().model_dump(mode="json", exclude_defaults=True)
    declared["expect"] |= {"devices": DEVICES} | changes
    return RecordedHost(declared, dataclasses.replace(capture, answers={**capture.answers, "kernel_log": log}))


def name(*words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower())


def places() -> dict[str, RecordedHost]:
    return {
        name("at", kind, place): logging((3, text.format(address)))
        for kind, (text, _) in KINDS.items()
        for place, (address, _) in PLACES.items()
    }


def others() -> dict[str, RecordedHost]:
    hosts = {name("wide", key): logging((3, text)) for key, (text, _) in HOST_WIDE.items()}
    hosts |= {
        name("stack", key): logging((3, head), (6, "Call Trace:"), (6, line)) for key, (head, line) in STACKS.items()
    }
    hosts |= {name("unknown", key): logging(*[row] * 3) for key, row in UNKNOWNS.items()}
    hosts |= {name("worded", key): logging((6, f"{t}: unexpected"), levels=False) for key, (_, t) in UNKNOWNS.items()}
    allow = {"kernel_log": {"allow": ["mome raths", "frobnicat"]}}
    hosts |= {name("allowed", key): logging(row, **allow) for key, row in UNKNOWNS.items()}
    hosts |= {name("garbled", key): logging((3, text)) for key, (text, _) in GARBLED.items()}
    hosts |= {name("quiet", key): logging(row) for key, row in QUIET.items()}
    for key, (group, _) in KILLS.items():
        hosts[name("kill", key)] = logging(*([(6, KILL.format(group))] if group else []), (3, KILLED))
    for key, example in EXAMPLES.items():
        hosts[name("levels", key)] = logging((3, example))
        hosts[name("words", key)] = logging((6, example), levels=False)
    hosts["gone"] = logging((3, "dmar_fault: 12 callbacks suppressed"))
    hosts["beside"] = logging((3, KINDS["iommu"][0].format("0000:01:00.0")), UNKNOWNS["nvrm"])
    hosts["told-twice"] = logging(
        (3, "NVRM: Xid (PCI:0000:01:00): 62, 00002740"), (4, "NVRM: GPU0 frobnicate: the frobnicator failed to gyre")
    )
    return hosts | {name("boot", key): recorded(log) for key, log in boots().items()}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Judge all hosts by the suites' own items, in one run."""
    directory = tmp_path_factory.mktemp("judged")
    write_recording(directory / "made.json", Recording({**places(), **others()}))
    return judge_recording(directory, "made.json", "-k", SUITE)


def failed(judged: Judged, host: str) -> tuple[Sequence[str], Sequence[str]]:
    outcomes = judged.of_host(host)
    return outcomes.ended("failed"), outcomes.ended("error")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_is_judged_by_one_item_wherever_it_is(judged: Judged, kind: str, place: str) -> None:
    """No kind and no device falls through, and none is judged twice."""
    owner = PLACES[place][1].format(KINDS[kind][1])
    assert failed(judged, name("at", kind, place)) == ([owner], [])


@pytest.mark.parametrize("kind", HOST_WIDE)
def test_a_fault_of_the_host_is_judged_by_one_item(judged: Judged, kind: str) -> None:
    assert failed(judged, name("wide", kind)) == ([HOST_WIDE[kind][1]], [])


@pytest.mark.parametrize("kind", STACKS)
def test_what_hangs_in_a_driver_is_a_fault(judged: Judged, kind: str) -> None:
    assert failed(judged, name("stack", kind)) == ([NAMELESS], [])


@pytest.mark.parametrize("form", ["levels", "words"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_of_distress_fails_one_item(judged: Judged, example: str, form: str) -> None:
    """With its level, and in text that shows none."""
    wrong, unknown = failed(judged, name(form, example))
    assert (len(wrong), unknown) == (1, [])


@pytest.mark.parametrize("form", ["unknown", "worded"])
@pytest.mark.parametrize("speaker", UNKNOWNS)
def test_an_error_that_nothing_recognises_is_unknown(judged: Judged, speaker: str, form: str) -> None:
    """One item ends in ERROR; it names the line, how often it came, and the key that allows it."""
    host = name(form, speaker)
    assert failed(judged, host) == ([], [UNKNOWN])
    message = judged.of_host(host).messages[UNKNOWN]
    assert UNKNOWNS[speaker][1][-20:] in message
    allow = re.search(r"allow = \['(.*?)'\]", " ".join(message.split()))
    assert allow
    assert re.search(allow[1], f"{UNKNOWNS[speaker][1]}: unexpected")
    assert "kernel_log.allow" in message
    assert form == "worded" or "(3 times)" in message


@pytest.mark.parametrize("speaker", UNKNOWNS)
def test_an_error_that_the_inventory_allows_is_known(judged: Judged, speaker: str) -> None:
    assert failed(judged, name("allowed", speaker)) == ([], [])


@pytest.mark.parametrize("kind", QUIET)
def test_what_is_no_error_of_a_driver_is_passed_over(judged: Judged, kind: str) -> None:
    assert failed(judged, name("quiet", kind)) == ([], [])


@pytest.mark.parametrize("kind", GARBLED)
def test_a_fault_in_an_unknown_form_is_unknown_to_those_whose_it_may_be(judged: Judged, kind: str) -> None:
    assert failed(judged, name("garbled", kind)) == ([], sorted(GARBLED[kind][1]))


@pytest.mark.parametrize("kill", KILLS)
def test_a_kill_counts_if_it_can_be_the_services(judged: Judged, kill: str) -> None:
    """A control group that reached its own limit is that group's affair."""
    assert judged.of_host(name("kill", kill)).outcomes[MEMORY] == KILLS[kill][1]


def test_a_refused_access_of_nobody_knows_whom_is_unknown(judged: Judged) -> None:
    assert failed(judged, "gone") == ([], [NAMELESS])


def test_words_beside_a_fault_are_words_on_that_fault(judged: Judged) -> None:
    assert failed(judged, "told-twice") == ([GPU.format(DRIVER)], [])


def test_words_beside_another_drivers_fault_are_unknown(judged: Judged) -> None:
    assert failed(judged, "beside") == ([GPU.format(IOMMU)], [UNKNOWN])


@pytest.mark.parametrize("boot", boots())
def test_a_healthy_machine_has_no_fault_and_no_unknown_error(judged: Judged, boot: str) -> None:
    assert failed(judged, name("boot", boot)) == ([], [])


def test_recordings_of_real_machines_have_no_unknown_error(tmp_path: Path) -> None:
    """The whole logs that our own recordings hold."""
    found = {}
    for file in sorted(REFERENCE.parent.rglob("*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        for alias, host in document.get("hosts", {}).items() if isinstance(document, dict) else ():
            log = host.get("capture", {}).get("answers", {}).get("kernel_log")
            if log:
                found[name(file.stem, alias)] = recorded(log)
    write_recording(tmp_path / "made.json", Recording(found))
    judged = judge_recording(tmp_path, "made.json", "-k", SUITE)
    assert len(found) >= 3
    assert {host for host in found if UNKNOWN in judged.of_host(host).ended("failed", "error")} == set()
