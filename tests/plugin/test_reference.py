"""The reference host: right where it was right, wrong where it was wrong, and every check seen failing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinfra.inventory.inventory import read_inventory
from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.plugin.conftest import REFERENCE, Judged, judge_recording
from tests.recorded.made_host import MadeFunction, MadeHost
from tests.recorded.reference.compose import compose, reference_host

FAULTS = ["test_no_iommu_fault_by_the_gpu[01:00.0]", "test_no_iommu_fault_by_the_gpu[11:00.0]"]


def healthy() -> MadeHost:
    """Give the reference host before anybody copied between its GPUs."""
    host = reference_host()
    host.kmsg = [record for record in host.kmsg if "IO_PAGE_FAULT" not in record[2]]
    return host


def test_recording_is_what_the_composer_makes(tmp_path: Path) -> None:
    """The committed recording and its composer agree."""
    write_recording(tmp_path / "again.json", compose())
    assert (tmp_path / "again.json").read_text() == (REFERENCE / "recording.json").read_text()


def test_reference_host_fails_exactly_where_it_was_wrong(judged: Judged) -> None:
    """Two GPUs reached for their peers and were refused; nothing else was wrong, nothing unknown."""
    outcomes = judged.of_host("reference")
    assert outcomes.ended("failed", "error") == FAULTS
    assert len(outcomes.ended("passed")) > 90


def test_message_names_who_tried_to_reach_whom(judged: Judged) -> None:
    """The fault's address is decoded to the peer and its BAR."""
    messages = judged.of_host("reference").messages
    assert "01:00.0 tried to reach BAR1 of 11:00.0" in messages[FAULTS[0]]
    assert "11:00.0 tried to reach BAR1 of 61:00.0" in messages[FAULTS[1]]


def test_healthy_host_has_no_wrong_and_no_unknown(judged: Judged) -> None:
    """The same host without those faults may take traffic."""
    assert judged.of_host("healthy").ended("failed", "error") == []


def _function(address: str, **changes: Any) -> Callable[[MadeHost], None]:
    def change(host: MadeHost) -> None:
        host.functions = [
            dataclasses.replace(function, **changes) if function.address == address else function
            for function in host.functions
        ]

    return change


def _without(*addresses: str) -> Callable[[MadeHost], None]:
    def change(host: MadeHost) -> None:
        host.functions = [function for function in host.functions if function.address not in addresses]

    return change


def _file(path: str, text: str | None) -> Callable[[MadeHost], None]:
    def change(host: MadeHost) -> None:
        files = dict(host.files)
        if text is None:
            del files[path]
        else:
            files[path] = text
        host.files = files

    return change


def _type(group: int, word: str) -> Callable[[MadeHost], None]:
    def change(host: MadeHost) -> None:
        host.group_types = {group: word}

    return change


def _logs(*messages: str) -> Callable[[MadeHost], None]:
    def change(host: MadeHost) -> None:
        host.kmsg = [*host.kmsg, *((3, 5000.0 + number, message) for number, message in enumerate(messages))]

    return change


def _unit(name: str, **values: str) -> Callable[[MadeHost], None]:
    def change(host: MadeHost) -> None:
        commands = {}
        for line, text in host.commands.items():
            shown = dict(row.partition("=")[::2] for row in text.splitlines()) | values
            changed = "".join(f"{key}={value}\n" for key, value in shown.items())
            commands[line] = changed if line.endswith(name) else text
        host.commands = commands

    return change


def _smi(old: str, new: str) -> Callable[[MadeHost], None]:
    """Change what nvidia-smi says of the first GPU."""

    def change(host: MadeHost) -> None:
        text = host.commands["nvidia-smi -q -x"]
        assert old in text
        host.commands = {**host.commands, "nvidia-smi -q -x": text.replace(old, new, 1)}

    return change


GPU = "01:00.0"
WRONG: dict[str, tuple[Callable[[MadeHost], None], list[str]]] = {
    "another model": (_smi("RTX PRO 6000", "RTX PRO 5000"), [f"test_gpu_model_is_the_expected_one[{GPU}]"]),
    "memory taken": (_smi("<free>23077 MiB", "<free>812 MiB"), [f"test_gpu_has_the_expected_free_memory[{GPU}]"]),
    "hot while idle": (_smi(">41 C<", ">88 C<"), [f"test_gpu_is_not_too_hot[{GPU}]"]),
    "power limit lost": (_smi("600.00 W", "450.00 W"), [f"test_gpu_has_the_expected_power_limit[{GPU}]"]),
    "persistence off": (
        _smi("<persistence_mode>Enabled", "<persistence_mode>Disabled"),
        [f"test_persistence_mode_is_as_expected[{GPU}]"],
    ),
    "MIG on": (_smi("<current_mig>Disabled", "<current_mig>Enabled"), [f"test_mig_is_as_expected[{GPU}]"]),
    "ECC off": (_smi("<current_ecc>Enabled", "<current_ecc>Disabled"), [f"test_ecc_is_as_expected[{GPU}]"]),
    "uncorrected memory error": (
        _smi("<dram_uncorrectable>0", "<dram_uncorrectable>3"),
        [f"test_gpu_reports_no_fault[{GPU}]"],
    ),
    "row to be remapped": (_smi("_pending>No", "_pending>Yes"), [f"test_gpu_reports_no_fault[{GPU}]"]),
    "driver asks for a reset": (
        _smi("<gpu_recovery_action>None", "<gpu_recovery_action>GPU Reset"),
        [f"test_gpu_reports_no_fault[{GPU}]"],
    ),
    "vfio GPU shown by nvidia": (
        _smi(
            '<gpu id="00000000:01:00.0">',
            '<gpu><pci><pci_bus_id>00000000:81:00.0</pci_bus_id></pci></gpu><gpu id="x">',
        ),
        ["test_driver_shows_no_other_gpu[]"],
    ),
    "another kernel": (
        _file("/proc/sys/kernel/osrelease", "6.8.12-4-pve\n"),
        ["test_kernel_release_is_the_expected_one[]"],
    ),
    "parameter after --": (
        _file("/proc/cmdline", "root=/dev/sda1 -- amd_iommu=on\n"),
        ["test_kernel_command_line_has_the_parameter[amd_iommu=on]"],
    ),
    "passthrough asked for": (
        _file("/proc/cmdline", "root=/dev/sda1 amd_iommu=on iommu=pt\n"),
        [
            "test_kernel_command_line_lacks_the_parameter[iommu.passthrough=1]",
            "test_kernel_command_line_lacks_the_parameter[iommu=pt]",
        ],
    ),
    "one group identity": (_type(40, "identity"), [f"test_iommu_group_type_is_the_expected_one[{GPU}]"]),
    "no IOMMU group": (
        _function("0000:01:00.0", group=None),
        [f"test_iommu_group_type_is_the_expected_one[{GPU}]"],
    ),
    "GPU on the wrong driver": (
        _function("0000:01:00.0", driver="vfio-pci"),
        [f"test_device_is_bound_to_the_expected_driver[{GPU}]"],
    ),
    "GPU unbound": (
        _function("0000:81:00.0", driver=None),
        ["test_device_is_bound_to_the_expected_driver[81:00.0]"],
    ),
    "audio stays with the host": (
        _function("0000:81:00.1", driver="snd_hda_intel"),
        ["test_companion_functions_follow[81:00.0]"],
    ),
    "audio went to vfio": (
        _function("0000:01:00.1", driver="vfio-pci"),
        [f"test_companion_functions_follow[{GPU}]"],
    ),
    "other NUMA node": (
        _function("0000:01:00.0", numa_node=1),
        [f"test_numa_node_is_the_expected_one[{GPU}]"],
    ),
    "no NUMA node": (_function("0000:01:00.0", numa_node=-1), [f"test_numa_node_is_the_expected_one[{GPU}]"]),
    "half the lanes": (
        _function("0000:01:00.0", link=(8, 32.0, 16, 32.0)),
        [f"test_link_width_is_the_expected_one[{GPU}]"],
    ),
    "slow slot": (
        _function("0000:00:01.1", link=(16, 16.0, 16, 16.0)),
        [f"test_link_is_capable_of_the_expected_speed[{GPU}]"],
    ),
    "unexpected GPU": (
        lambda host: setattr(
            host, "functions", [*host.functions, MadeFunction("0000:c1:00.0", driver="nvidia", group=90)]
        ),
        ["test_every_gpu_of_the_host_is_expected[]"],
    ),
    "other driver": (
        _file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release\n",
        ),
        ["test_driver_libraries_fit_the_kernel_module[]", "test_driver_version_is_the_expected_one[]"],
    ),
    "driver parameter": (
        _file("/proc/driver/nvidia/params", "DmaRemapPeerMmio: 0\n"),
        ["test_driver_parameter_has_the_expected_value[DmaRemapPeerMmio]"],
    ),
    "SNP off": (
        _file("/sys/module/kvm_amd/parameters/sev_snp", "N\n"),
        [
            "test_confidential_computing_is_in_the_expected_state[]",
            "test_module_parameter_has_the_expected_value[kvm_amd.sev_snp]",
        ],
    ),
    "SNP off by the kernel's own word": (
        lambda host: setattr(host, "kmsg", [*host.kmsg, (6, 8.42, "kvm_amd: SEV-SNP unusable (ASIDs 1 - 99)")]),
        ["test_confidential_computing_is_in_the_expected_state[]"],
    ),
    "no way to the security processor": (
        _file("/dev/sev", None),
        ["test_confidential_computing_is_in_the_expected_state[]"],
    ),
    "one group strict": (_type(40, "DMA"), [f"test_iommu_group_type_is_the_expected_one[{GPU}]"]),
    "identity unit enabled": (
        _unit("gpu-iommu-identity.service", UnitFileState="enabled"),
        ["test_unit_is_in_the_expected_state[gpu-iommu-identity.service]"],
    ),
    "identity unit ran": (
        _unit("gpu-iommu-identity.service", ExecMainStartTimestampMonotonic="8123456"),
        ["test_unit_is_in_the_expected_state[gpu-iommu-identity.service]"],
    ),
    "persistenced failed": (
        _unit("nvidia-persistenced.service", ActiveState="failed", SubState="failed"),
        ["test_unit_is_in_the_expected_state[nvidia-persistenced.service]"],
    ),
    "modprobe hook is back": (
        _file("/etc/modprobe.d/gpu-iommu-identity.conf", "install nvidia /bin/true\n"),
        ["test_file_is_absent[/etc/modprobe.d/gpu-iommu-identity.conf]"],
    ),
    "Xid 79": (
        _logs("NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        [f"test_no_xid_on_the_gpu[{GPU}]"],
    ),
    "Xid of a GPU that is gone": (
        _logs("NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        ["test_no_gpu_fault_without_a_known_device[]"],
    ),
    "FSP failure": (
        _logs(
            "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x65:2062)",
            "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
        ),
        [f"test_gpu_initialised_without_failure[{GPU}]"],
    ),
    "AER": (
        _logs(
            "nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, "
            "(Requester ID)"
        ),
        [f"test_no_pcie_error_by_the_gpu[{GPU}]"],
    ),
    "out of memory": (
        _logs(
            "Out of memory: Killed process 4242 (sglang::schedul) total-vm:402653184kB, anon-rss:201326592kB, "
            "file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:800000kB oom_score_adj:0"
        ),
        ["test_no_machine_check_and_no_memory_kill[]"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_check_fails_for_its_fault_and_for_no_other(name: str, judged: Judged) -> None:
    """Each check is seen failing on a host that is wrong in just this, and says so alone."""
    outcomes = judged.of_host(alias(name))
    assert outcomes.ended("failed") == sorted(WRONG[name][1])
    assert outcomes.ended("error") == []


def test_missing_gpu_fails_once_and_leaves_the_rest_of_its_checks_unknown(judged: Judged) -> None:
    """A GPU that is gone keeps its items: what depends on it is ERROR, never absent, never pass."""
    outcomes = judged.of_host("missing")
    assert outcomes.ended("failed") == [f"test_device_is_present[{GPU}]"]
    assert outcomes.ended("error") == sorted(
        f"{name}[{GPU}]"
        for name in (
            "test_device_is_bound_to_the_expected_driver",
            "test_iommu_group_type_is_the_expected_one",
            "test_link_is_capable_of_the_expected_speed",
            "test_link_width_is_the_expected_one",
            "test_numa_node_is_the_expected_one",
        )
    )


GPU_STATE = [
    *("test_driver_shows", "test_gpu_reports", "test_gpu_model", "test_gpu_has", "test_gpu_is_not", "test_persistence"),
    *("test_mig", "test_ecc"),
]


def _late_log(host: MadeHost) -> None:
    host.kmsg, host.first_record = list(host.kmsg)[5:], 5


def _odd_numa(function: MadeFunction) -> MadeFunction:
    return dataclasses.replace(function, numa_node="four") if function.address == "0000:01:00.0" else function  # type: ignore[arg-type]


UNREADABLE: dict[str, tuple[Callable[[MadeHost], None], list[str]]] = {
    "nvidia-smi fails": (
        lambda host: setattr(
            host,
            "commands",
            {**host.commands, "nvidia-smi -q -x": "Failed to initialize NVML: Driver/library version mismatch\n"},
        ),
        GPU_STATE,
    ),
    "nvidia-smi is not installed": (
        lambda host: setattr(host, "commands", {k: v for k, v in host.commands.items() if "smi" not in k}),
        GPU_STATE,
    ),
    "nvidia-smi is cut off": (
        lambda host: setattr(
            host, "commands", {line: text[:900] if "smi" in line else text for line, text in host.commands.items()}
        ),
        GPU_STATE,
    ),
    "memory unknown": (
        _smi("<free>23077 MiB</free>", "<free>Unknown Error</free>"),
        ["test_gpu_has_the_expected_free_memory", "test_gpu_reports_no_fault"],
    ),
    "no /proc/cmdline": (_file("/proc/cmdline", None), ["test_kernel_command_line_"]),
    "no kernel release": (_file("/proc/sys/kernel/osrelease", None), ["test_kernel_release_"]),
    "driver not loaded": (
        lambda host: [_file(f"/proc/driver/nvidia/{name}", None)(host) for name in ("params", "version")] and None,
        ["test_driver_version_", "test_driver_parameter_", "test_driver_libraries_"],
    ),
    "driver parameter unknown": (_file("/proc/driver/nvidia/params", "Other: 1\n"), ["test_driver_parameter_"]),
    "module not loaded": (
        _file("/sys/module/kvm_amd/parameters/sev_snp", None),
        ["test_module_parameter_"],
    ),
    "module parameter of another form": (
        _file("/sys/module/kvm_amd/parameters/sev_snp", "maybe\n"),
        ["test_confidential_"],
    ),
    "log begins late": (_late_log, ["test_no_", "test_gpu_initialised_", "test_every_error_"]),
    "log is empty": (
        lambda host: setattr(host, "kmsg", []),
        ["test_no_", "test_gpu_initialised_", "test_every_error_", "test_confidential_"],
    ),
    "group type is empty": (_type(40, ""), ["test_iommu_group_type_"]),
    "group type of no kernel": (_type(40, "DMA_FQ?"), ["test_iommu_group_type_"]),
    "group without a domain": (_type(40, "unknown"), ["test_iommu_group_type_"]),
    "NUMA node is no number": (
        lambda host: setattr(host, "functions", [_odd_numa(f) for f in host.functions]),
        ["test_numa_node_"],
    ),
    "systemctl prints nothing": (
        lambda host: setattr(
            host, "commands", {line: text if "smi" in line else "" for line, text in host.commands.items()}
        ),
        ["test_unit_is_"],
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_source_is_error_and_never_pass(name: str, judged: Judged) -> None:
    """What cannot be read ends in ERROR for the checks that need it, and for no other."""
    outcomes = judged.of_host(alias(name))
    errors = outcomes.ended("error")
    assert errors
    assert all(error.startswith(tuple(UNREADABLE[name][1])) for error in errors)
    assert [failed for failed in outcomes.ended("failed") if failed.startswith(tuple(UNREADABLE[name][1]))] == []


def alias(name: str) -> str:
    """Make a host's alias of a fault's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Judge every made host by the reference inventory and our own suites, in one run."""
    spec = read_inventory(REFERENCE / "gpuinfra.toml").hosts["node-a"]
    hosts = {"reference": reference_host(), "healthy": healthy(), "missing": healthy()}
    _without("0000:01:00.0", "0000:01:00.1")(hosts["missing"])
    for name, (change, _) in {**WRONG, **UNREADABLE}.items():
        hosts[alias(name)] = healthy()
        change(hosts[alias(name)])
    declared = spec.model_dump(mode="json", exclude_defaults=True)
    recorded = {name: RecordedHost(declared, host.capture(name, spec.expect)) for name, host in hosts.items()}
    directory = tmp_path_factory.mktemp("judged")
    write_recording(directory / "made.json", Recording(recorded))
    return judge_recording(directory, "made.json", "-k", "not peer_copies and not all_reduce and not endpoint")


def test_two_types_that_both_translate_are_told_apart_by_what_they_cost(judged: Judged) -> None:
    """DMA in place of DMA-FQ says nothing of whether copies are translated."""
    message = judged.of_host(alias("one group strict")).messages[f"test_iommu_group_type_is_the_expected_one[{GPU}]"]
    assert "both translate" in message
    assert "iommu.strict" in message
