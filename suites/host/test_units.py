"""systemd units and files of the host: what must run, what must be gone, what must have no effect."""

import pytest

from pytest_gpuinfra import ExpectedValue, GpuHost, explain
from pytest_gpuinfra.subjects.service.unit import UnitState
from pytest_gpuinfra.subjects.service.units import unit_is


@pytest.mark.gpu_judges("units")
def test_unit_is_in_the_expected_state(
    gpu_host: GpuHost, gpu_expected_unit: ExpectedValue, gpu_unit_state: UnitState
) -> None:
    """
    A systemd unit of the host is in the declared state.

    A unit that was left in place after an experiment must be seen to have no effect, not believed to have none.
    """
    assert unit_is(gpu_unit_state, gpu_expected_unit.value), explain(
        f"{gpu_host.alias}: unit {gpu_expected_unit.name}",
        observed=gpu_unit_state,
        expected=gpu_expected_unit.value,
        why="it changes the GPUs' set-up at boot, or the GPUs lack what it provides",
        action=f"see `systemctl status {gpu_expected_unit.name}` there; enable, disable or remove it, and reboot",
    )


@pytest.mark.gpu_judges("files_absent")
def test_file_is_absent(gpu_host: GpuHost, gpu_absent_file: str, gpu_absent_file_exists: bool) -> None:
    """
    A file that must be gone is gone.

    A modprobe hook of an experiment takes effect at the next load of the driver, long after it was forgotten.
    """
    assert not gpu_absent_file_exists, explain(
        f"{gpu_host.alias}: file {gpu_absent_file}",
        observed="exists",
        expected="absent",
        why="it takes effect at the next boot or the next load of a module",
        action="remove it there, rebuild the initramfs if it was in it, and see what brought it back",
    )
