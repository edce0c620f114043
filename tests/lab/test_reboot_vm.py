"""The change that this project comes from, on a real kernel: out of pass-through, and a reboot that loses things."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pytest_gpuinfra.cli import main

from .faults import bind, restarted
from .judge import judge
from .vm import NORMAL, LabVm

pytestmark = pytest.mark.lab_vm
PASS_THROUGH = f"{NORMAL} iommu=pt"
EITHER_MODE = """\
kernel_command_line = { has = ["intel_iommu=on"], lacks = [] }
devices = [
  { pci = ["41:00.0", "42:00.0"], driver = "virtio-pci", numa_node = 0 },
  { pci = ["81:00.0"], driver = "vfio-pci", group_mates = ["81:00.1"] },
  { pci = ["82:00.0"], driver = "none" },
]"""
"""What holds of the machine before and after: an inventory that leaves the mode to the change."""

ALLOWED = ("command line/iommu=absent", "iommu/*/group type=DMA-FQ")
BY_HAND = 'devices = [{ pci = ["41:00.0"], driver = "vfio-pci" }, { pci = ["42:00.0", "81:00.0", "82:00.0"] }]'


def kept(folder: Path, name: str) -> Path:
    """Keep the recording of the last run under a name."""
    return (folder / "recording.json").rename(folder / name)


def test_change_of_the_mode_is_told_and_nothing_else(lab_vm: LabVm, tmp_path: Path) -> None:
    """A second start with another command line: command line, group types and boot id differ; allowed, all is green."""
    restarted(PASS_THROUGH)(lab_vm)
    assert judge(lab_vm, "vm", tmp_path, expect=EITHER_MODE).exit_status == 0
    before = kept(tmp_path, "before.json")
    lab_vm.restart(NORMAL)
    since = (f"--gpu-baseline={before}", "--gpu-after-reboot", "--gpu-wait=120")
    unexpected = judge(lab_vm, "vm", tmp_path, expect=EITHER_MODE, arguments=since)
    after = kept(tmp_path, "after.json")

    assert unexpected.ended("failed", "error") == [
        f"test_nothing_changed_beside_what_was_meant[{area}]" for area in ("command-line", "iommu")
    ]
    assert "command line/iommu: pt -> absent" in unexpected.output
    assert unexpected.outcomes["test_host_has_rebooted[]"] == "passed"

    compared = CliRunner().invoke(main, ["compare", str(before), str(after), "--format=json"])
    (host,) = json.loads(compared.output)["hosts"]
    facts = {
        change["name"]: (change["before"], change["after"]) for change in host["changes"] if change["kind"] == "fact"
    }
    boot = facts.pop("boot/boot id")
    assert boot[0] != boot[1] == lab_vm.boot_id
    assert facts.pop("command line/iommu") == ("pt", None)
    groups = {f"iommu/{gpu}/group type": ("identity", "DMA-FQ") for gpu in ("41:00.0", "42:00.0", "81:00.0", "82:00.0")}
    assert groups.items() <= facts.items()
    assert set(facts.values()) == {("identity", "DMA-FQ")}
    assert {name.rpartition("/")[2] for name in facts} == {"group type"}
    assert compared.exit_code == 1

    allowed = [f"--gpu-allow-change={pattern}" for pattern in ALLOWED]
    meant = judge(lab_vm, "vm", tmp_path, expect=EITHER_MODE, arguments=(*since, *allowed))
    assert (meant.exit_status, meant.ended("failed", "error")) == (0, []), meant.output
    again = [f"--allow={pattern}" for pattern in (*ALLOWED, "host/test_baseline.py::*")]
    assert CliRunner().invoke(main, ["compare", str(before), str(after), *again]).exit_code == 0


def test_reboot_by_the_plugin_finds_what_did_not_come_back(lab_vm: LabVm, tmp_path: Path) -> None:
    """A driver_override that nobody wrote down, and a unit that is not enabled: back to what the machine boots with."""
    lab_vm.shell(f"{bind('0000:41:00.0', 'vfio-pci')}; systemctl disable -q gpu-persistence")
    old = lab_vm.boot_id
    assert judge(lab_vm, "vm", tmp_path, expect=BY_HAND).exit_status == 0
    before = kept(tmp_path, "before.json")
    seen = judge(
        lab_vm, "vm", tmp_path,
        expect=BY_HAND,
        arguments=("--gpu-level=disruptive", "--gpu-reboot", f"--gpu-baseline={before}", "--gpu-wait=250"),
    )  # fmt: skip

    assert lab_vm.boot_id != old
    named = {
        "test_device_is_bound_to_the_expected_driver[41:00.0]": ("virtio-pci", "vfio-pci", "lost at a reboot"),
        "test_unit_is_in_the_expected_state[gpu-persistence.service]": ("inactive (dead)",),
        "test_nothing_changed_beside_what_was_meant[pci]": ("pci/41:00.0/bound to: vfio-pci -> virtio-pci",),
        "test_nothing_changed_beside_what_was_meant[unit]": ("gpu-persistence.service",),
    }
    assert seen.ended("failed", "error") == sorted(named), seen.output
    for item, words in named.items():
        assert [word for word in words if word not in seen.messages[item]] == []
    assert seen.outcomes["test_host_has_rebooted[]"] == "passed"
