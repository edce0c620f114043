"""Reboots for real: what comes back, what does not, what is waited for, and hosts that refuse or stay away."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.conftest import Judged, run_pytest

from .judge import SUITES, judge, write_inventory
from .nspawn import NspawnHost
from .service_lab import ServiceLab, inventory
from .sshd import SshdHost

pytestmark = pytest.mark.lab
REBOOT = ("--gpu-level=disruptive", "--gpu-reboot")
GPU = "/run/lab/sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0"
SLOW = (
    "printf '[Service]\\nType=oneshot\\nRemainAfterExit=yes\\nExecStart=sleep 4\\n"
    "[Install]\\nWantedBy=multi-user.target\\n' >/etc/systemd/system/slow.service; systemctl daemon-reload"
)
SLOW_IS_EXPECTED = 'units = { "slow.service" = "active" }'


@pytest.fixture
def host(lab_host: NspawnHost) -> Iterator[NspawnHost]:
    """Give a host that may be rebooted by others than the lab itself."""
    yield lab_host
    lab_host._bound.clear()  # gone with the boot that they were made in


def test_healthy_host_comes_back_as_it_was(host: NspawnHost, tmp_path: Path) -> None:
    """It is compared with itself before the reboot, area by area; nothing is wrong, nothing unknown."""
    before = host.boot_id
    seen = judge(host, "nspawn", tmp_path, arguments=REBOOT)

    assert (seen.exit_status, seen.ended("failed", "error")) == (0, []), seen.output
    assert host.boot_id != before
    assert seen.outcomes["test_host_has_rebooted[]"] == "passed"
    kept = json.loads((tmp_path / "recording-before.json").read_text())
    assert kept["hosts"]["lab-a"]["capture"]["answers"]["boot"][""]["boot_id"]["t"].strip() == before
    areas = [name for name in seen.ended("passed") if name.startswith("test_nothing_changed_beside")]
    assert {"iommu", "pci", "command-line", "unit"} <= {name.partition("[")[2][:-1] for name in areas}


def test_recording_before_is_the_baseline_and_a_worker_knows_it(host: NspawnHost, tmp_path: Path) -> None:
    """A unit that was stopped by hand before the baseline is back: told as a change; so in a worker of xdist."""
    host.shell("systemctl stop gpu-persistence")
    judge(host, "nspawn", tmp_path, plugins=True)
    (tmp_path / "recording.json").rename(tmp_path / "before.json")
    seen = judge(
        host, "nspawn", tmp_path, arguments=(*REBOOT, f"--gpu-baseline={tmp_path}/before.json", "-n1"), plugins=True
    )

    assert seen.ended("failed", "error") == ["test_nothing_changed_beside_what_was_meant[unit]"], seen.output
    message = seen.messages["test_nothing_changed_beside_what_was_meant[unit]"]
    assert "unit/gpu-persistence.service/active_state: inactive -> active" in message
    assert seen.outcomes["test_host_has_rebooted[]"] == "passed"


def reboot_by_pytest(lab: ServiceLab, folder: Path, more: Mapping[str, Any]) -> Judged:
    """Take a baseline, reboot by the plugin, and judge host, container and service."""
    found = inventory("lab", lab.host.destination, lab.unit_text)
    found["hosts"]["lab"]["expect"] |= more
    (folder / "inventory.json").write_text(json.dumps(found))
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(
        "import json, pathlib\ndef pytest_gpuinfra_inventory(config):\n"
        "    return json.loads(pathlib.Path(__file__).with_name('inventory.json').read_text())\n"
    )
    files = ("host/test_baseline.py", "host/test_driver_binding.py", "host/test_units.py", "serving")
    common = ("--gpu-host=lab", f"--gpu-ssh-config={lab.host.ssh_config}", "-q", "-p", "no:cacheprovider", "-k")
    chosen = "baseline or driver_binding or units or container_state or service_unit"
    suites = [str(SUITES / file) for file in files]
    run_pytest(folder, "--gpu-recording=before.json", *common, chosen, ".", *suites)
    ended = run_pytest(
        folder,
        *(*REBOOT, "--gpu-baseline=before.json", "--gpu-wait=60", "--gpu-recording=after.json"),
        *(*common, chosen, ".", *suites),
    )
    document = json.loads((folder / "after.json").read_text())
    return Judged(document, ended.returncode, ended.stdout + ended.stderr)


@pytest.fixture
def service_lab(host: NspawnHost, tmp_path: Path) -> ServiceLab:
    """Give the host with container and service in the state in which nothing is wrong."""
    lab = ServiceLab(host, tmp_path)
    lab.prepare()
    return lab


def test_what_does_not_come_back_is_found_and_named(service_lab: ServiceLab, tmp_path: Path) -> None:
    """A binding made by hand, units that are not enabled, a device node that nobody makes at boot."""
    service_lab.host.shell(f"ln -sfn ../../../../bus/pci/drivers/vfio-pci {GPU}/driver")
    service_lab.host.shell("systemctl disable -q gpu-persistence")
    service_lab.inside("systemctl disable -q infer")
    judged = reboot_by_pytest(
        service_lab,
        tmp_path,
        {"units": {"gpu-persistence.service": "active"}, "devices": [{"pci": ["01:00.0"], "driver": "vfio-pci"}]},
    )
    seen = judged.of_host("lab")

    assert judged.exit_status == 1, judged.output
    assert seen.outcomes["test_host_has_rebooted[]"] == "passed"
    named = {
        "test_device_is_bound_to_the_expected_driver[01:00.0]": ("nvidia", "vfio-pci", "lost at a reboot"),
        "test_unit_is_in_the_expected_state[gpu-persistence.service]": ("inactive (dead)", "gpu-persistence.service"),
        "test_container_has_the_device_node[/dev/nvidia-uvm]": ("/dev/nvidia-uvm",),
        "test_service_is_active[]": ("infer.service", "inactive"),
        "test_service_starts_at_boot[]": ("disabled",),
        "test_nothing_changed_beside_what_was_meant[pci]": ("pci/01:00.0/bound to: vfio-pci -> nvidia",),
        "test_nothing_changed_beside_what_was_meant[unit]": (
            "gpu-persistence.service/active_state: active -> inactive",
        ),
        "test_nothing_changed_beside_what_was_meant[service]": ("service/state: active (running) -> inactive (dead)",),
    }
    for item, words in named.items():
        assert seen.outcomes[item] == "failed", (item, judged.output)
        assert [word for word in words if word not in seen.messages[item]] == [], seen.messages[item]


def test_container_without_autostart_is_found_and_waited_for_shortly(service_lab: ServiceLab, tmp_path: Path) -> None:
    """Its host is back and has nothing more to do: after a while it is judged as it is."""
    service_lab.host.shell("pct set 101 --onboot 0")
    judged = reboot_by_pytest(service_lab, tmp_path, {})
    seen = judged.of_host("lab")

    assert seen.outcomes["test_host_has_rebooted[]"] == "passed"
    assert seen.outcomes["test_container_runs[]"] == "failed", judged.output
    assert "stopped" in seen.messages["test_container_runs[]"]
    assert seen.outcomes["test_container_starts_at_boot[]"] == "failed"
    assert seen.outcomes["test_nothing_changed_beside_what_was_meant[container]"] == "failed"
    assert (
        "container/state: running -> stopped" in seen.messages["test_nothing_changed_beside_what_was_meant[container]"]
    )
    assert seen.outcomes["test_service_is_active[]"] == "error"


def test_host_that_stays_away_is_error_and_the_other_is_judged(host: NspawnHost, tmp_path: Path) -> None:
    """One host's sshd does not start any more: ERROR, with what was last seen; the other one is all right."""
    host.shell("systemctl disable -q ssh")
    with NspawnHost("lab-b") as other:
        text = write_inventory(host, "nspawn", tmp_path / "gpuinfra.toml").read_text()
        text += f'\n[hosts.lab-b]\naddress = "{other.destination}"\ngroup = "lab"\n'
        (tmp_path / "gpuinfra.toml").write_text(text)
        config = tmp_path / "both"
        config.write_text(_of_address(host) + _of_address(other))
        ended = run_pytest(
            tmp_path,
            *(*REBOOT, "--gpu-host=lab-a", "--gpu-host=lab-b", "--gpu-wait=30", f"--gpu-ssh-config={config}"),
            *("--gpu-inventory=gpuinfra.toml", "--gpu-recording=out.json", "-q", "-p", "no:cacheprovider"),
            str(SUITES / "host"),
        )
    judged = Judged(json.loads((tmp_path / "out.json").read_text()), ended.returncode, ended.stdout)
    away, back = judged.of_host("lab-a"), judged.of_host("lab-b")

    assert judged.exit_status == 6, judged.output
    assert away.ended("passed", "failed") == []
    message = away.messages["test_host_has_rebooted[]"]
    assert "rebooted, and not back within" in message
    assert "last seen: nothing listens on its ssh port" in message
    assert (back.ended("failed", "error"), back.outcomes["test_host_has_rebooted[]"]) == ([], "passed")


def _of_address(host: NspawnHost) -> str:
    """Give the part of a host's ssh configuration that is its own."""
    folder = host.folder
    return (
        f"Host {host.address}\n  User root\n  IdentityFile {folder}/client_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n\n"
    )


def test_host_that_refuses_is_error_and_goes_on(host: NspawnHost, tmp_path: Path) -> None:
    """A user who may not reboot it."""
    before = host.boot_id
    seen = judge(host, "nspawn", tmp_path, user="op", arguments=REBOOT)

    assert (seen.exit_status, seen.ended("passed", "failed")) == (6, []), seen.output
    assert "not rebooted: `systemctl reboot` ended with status" in seen.messages["test_host_has_rebooted[]"]
    assert host.boot_id == before


def test_machine_that_pytest_runs_on_is_never_rebooted(sshd_host: Callable[..., SshdHost], tmp_path: Path) -> None:
    """An ssh destination that shows this machine's own boot id is this machine."""
    here = sshd_host()
    ended = run_pytest(
        tmp_path,
        *(*REBOOT, f"--gpu-host={here.destination}", f"--gpu-ssh-config={here.ssh_config}", "--gpu-recording=none"),
        *("-q", "-p", "no:cacheprovider", str(SUITES / "host" / "test_baseline.py")),
    )

    assert ended.returncode == 6
    assert "not rebooted: it shows the boot id of the machine that pytest runs on" in ended.stdout


def test_units_that_still_start_are_waited_for(host: NspawnHost, tmp_path: Path) -> None:
    """After the reboot, and without one; where nobody waits, the unit is told as it is."""
    host.shell(f"{SLOW}; systemctl enable -q slow; systemctl start slow")
    seen = judge(host, "nspawn", tmp_path, expect=SLOW_IS_EXPECTED, arguments=REBOOT)
    assert seen.ended("failed", "error") == [], seen.output

    host.shell("systemctl stop slow; systemctl start --no-block slow")
    impatient = judge(host, "nspawn", tmp_path, expect=SLOW_IS_EXPECTED)
    assert impatient.ended("failed", "error") == ["test_unit_is_in_the_expected_state[slow.service]"]
    assert "activating" in impatient.messages["test_unit_is_in_the_expected_state[slow.service]"]
    patient = judge(host, "nspawn", tmp_path, expect=SLOW_IS_EXPECTED, arguments=("--gpu-wait=30",))
    assert patient.ended("failed", "error") == [], patient.output
