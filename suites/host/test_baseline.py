"""The host against an earlier recording of it: what came back after the change, and what did not."""

from pytest_gpuinfra import GpuHost, explain
from pytest_gpuinfra.record.compare import Change


def test_host_has_rebooted(gpu_host: GpuHost, gpu_rebooted: bool) -> None:
    """
    The host has booted since the baseline was recorded.

    A change of the kernel's command line or of a driver proves nothing before the boot that it takes effect in.
    """
    assert gpu_rebooted, explain(
        f"{gpu_host.alias}: boot id",
        observed="the same as in the baseline",
        expected="another one",
        why="nothing that takes effect at boot has been tried yet",
        action="reboot the host, or leave --gpu-after-reboot out",
    )


def test_nothing_changed_beside_what_was_meant(gpu_host: GpuHost, gpu_baseline_area: tuple[Change, ...]) -> None:
    """
    Everything of this area is as the baseline has it, save for changes that were allowed.

    What nobody meant to change is what the next incident is made of.
    """
    assert not gpu_baseline_area, explain(
        f"{gpu_host.alias}: changed since the baseline",
        observed="; ".join(change.text for change in gpu_baseline_area[:8]),
        expected="the same, or allowed by --gpu-allow-change",
        why="the host was judged fit with the old value",
        action="undo it, or allow it by its name: --gpu-allow-change='AREA/NAME=VALUE'; then record a new baseline",
    )
