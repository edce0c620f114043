"""What the driver reports of each GPU: presence, health, settings."""

from collections.abc import Callable
from fnmatch import fnmatchcase

import pytest

from pytest_gpuinfra import Expectation, FactUnavailable, GpuDevice, GpuHost, GpuInfraError, explain
from pytest_gpuinfra.subjects.gpu.health import judge_gpu_state, judge_idle
from pytest_gpuinfra.subjects.gpu.table import GpuRow, GpuTable
from pytest_gpuinfra.subjects.gpu.topology import Topology, judge_topology
from pytest_gpuinfra.subjects.verdict import Verdict

Judge = Callable[[Callable[[], Verdict]], Verdict]


@pytest.fixture
def shown(gpu_nvidia_device: GpuDevice, gpu_table: GpuTable) -> tuple[str, ...]:
    """Give the addresses that the driver shows."""
    return tuple(row.pci_address or "unknown" for row in gpu_table)


@pytest.fixture
def surplus(gpu_host: GpuHost, gpu_table: GpuTable) -> str:
    """Give the GPUs that the driver shows and the inventory does not put on nvidia."""
    return ", ".join(row.pci_address or "?" for row in gpu_table if row.pci_address not in gpu_host.computing_gpus)


@pytest.fixture
def slot_width(gpu_host: GpuHost, gpu_device: GpuDevice) -> int | None:
    """Give the lanes that the port above the GPU is capable of; None where nobody can tell."""
    try:
        functions = gpu_host.facts.pci_functions
        above = functions[gpu_device.pci_address].upstream[-1:]
        return functions[above[0]].max_link_width if above else None
    except GpuInfraError:
        return None


@pytest.fixture
def health(
    gpu_device: GpuDevice, gpu_row: GpuRow, gpu_table: GpuTable, slot_width: int | None, gpu_judge: Judge
) -> Verdict:
    """Judge errors, repairs, fabric, clocks, power and link, the action that is asked for, and what cannot be read."""
    wanted = gpu_device.expect.link_width
    return gpu_judge(
        lambda: judge_gpu_state(
            f"{gpu_device}: state by the driver", gpu_row, gpu_table, link_width=wanted, slot_width=slot_width
        )
    )


@pytest.fixture
def idle(gpu_device: GpuDevice, gpu_row: GpuRow, gpu_judge: Judge) -> Verdict:
    """Judge whether anything is on the GPU."""
    return gpu_judge(lambda: judge_idle(f"{gpu_device}: activity", gpu_row))


@pytest.fixture
def grants(gpu_host: GpuHost, gpu_expect: Expectation, gpu_topology: tuple[Topology, ...], gpu_judge: Judge) -> Verdict:
    """Judge which peer access the driver grants."""
    required = gpu_expect.peer_access == "correct"
    return gpu_judge(lambda: judge_topology(gpu_topology, len(gpu_host.computing_gpus), required=required))


def read(row: GpuRow, field: str) -> float:
    """Give a number that the driver reports; raise where the board reports none."""
    value = row.number(field)
    if value is None:
        raise FactUnavailable(row.source, f"this board reports no {field}")
    return value


@pytest.fixture
def memory_free_mib(gpu_row: GpuRow) -> float:
    """Give the free memory, MiB."""
    return read(gpu_row, "memory.free")


@pytest.fixture
def temperature_c(gpu_row: GpuRow) -> float:
    """Give the temperature, degrees Celsius."""
    return read(gpu_row, "temperature.gpu")


@pytest.fixture
def power_limit_w(gpu_row: GpuRow) -> float:
    """Give the power limit, W."""
    return read(gpu_row, "power.limit")


def switch(row: GpuRow, field: str) -> bool:
    """Give whether a switch is on; raise where the board has none."""
    text = row.text(field)
    if text not in ("Enabled", "Disabled"):
        raise FactUnavailable(row.source, f"this board reports {text or 'no value'} for {field}")
    return text == "Enabled"


@pytest.fixture
def persistence(gpu_row: GpuRow) -> bool:
    """Give whether persistence mode is on."""
    return switch(gpu_row, "persistence_mode")


@pytest.fixture
def mig(gpu_row: GpuRow) -> bool:
    """Give whether MIG is on; a board that cannot do it has it off."""
    return gpu_row.text("mig.mode.current") == "Enabled"


@pytest.fixture
def ecc(gpu_row: GpuRow) -> bool:
    """Give whether ECC is on."""
    return switch(gpu_row, "ecc.mode.current")


@pytest.fixture
def model(gpu_row: GpuRow) -> str:
    """Give the GPU's model."""
    name = gpu_row.text("name")
    if name is None:
        raise FactUnavailable(gpu_row.source, "this board reports no name")
    return name


def test_driver_shows_the_gpu(gpu_device: GpuDevice, shown: tuple[str, ...]) -> None:
    """
    The driver shows the GPU.

    A card can be on the bus and bound, and still have failed to initialise.
    """
    assert gpu_device.pci_address in shown, explain(
        f"{gpu_device}: presence in nvidia-smi",
        observed=f"the driver shows {', '.join(shown)}",
        expected="shown",
        why="CUDA cannot use it, and a service over all GPUs does not start",
        action="see the kernel log for RmInitAdapter and Xid; a reboot, then a power cycle",
    )


@pytest.mark.gpu_expects("devices")
def test_driver_shows_no_other_gpu(gpu_host: GpuHost, surplus: str) -> None:
    """
    The driver shows no GPU that is to be elsewhere.

    A GPU that a VM should have is used by the host instead, and indices shift.
    """
    assert surplus == "", explain(
        f"{gpu_host.alias}: GPUs that nvidia shows beyond those expected",
        observed=surplus,
        expected="none",
        why="CUDA's indices shift, and the VM that should have it does not start",
        action="see its driver binding and driver_override, and reboot",
    )


def test_gpu_reports_no_fault(health: Verdict) -> None:
    """
    The driver reports no memory error, no pending repair, no slowdown and no action to take for the GPU.

    Such a GPU works until it does not, and its results may be wrong. What the driver reports of errors, repairs,
    fabric, clocks, power and link and no table of ours knows is an error, not a pass.
    """
    assert health.ok, health.message


@pytest.mark.gpu_expects("gpu.idle")
def test_gpu_is_idle(idle: Verdict) -> None:
    """
    Nothing is on the GPU, where that is declared.

    A process left over from an earlier run holds memory that the service needs.
    """
    assert idle.ok, idle.message


@pytest.mark.gpu_expects("gpu.name")
def test_gpu_model_is_the_expected_one(gpu_device: GpuDevice, gpu_expect: Expectation, model: str) -> None:
    """
    The GPU is of the declared model.

    A replaced card can be another one.
    """
    assert fnmatchcase(model, gpu_expect.gpu.name or ""), explain(
        f"{gpu_device}: model",
        observed=model,
        expected=gpu_expect.gpu.name,
        why="memory, speed and kernels differ",
        action="compare with the order, or correct the inventory",
    )


@pytest.mark.gpu_expects("gpu.memory_free_mib_min")
def test_gpu_has_the_expected_free_memory(
    gpu_device: GpuDevice, gpu_expect: Expectation, memory_free_mib: float
) -> None:
    """
    The GPU has as much free memory as declared.

    Something left over from an earlier run takes the KV cache's room, and the service dies at its start.
    """
    assert memory_free_mib >= (gpu_expect.gpu.memory_free_mib_min or 0), explain(
        f"{gpu_device}: free memory",
        observed=f"{memory_free_mib:g} MiB",
        expected=f"{gpu_expect.gpu.memory_free_mib_min:g} MiB or more",
        why="the service does not start, or is killed under load",
        action="see who uses it: nvidia-smi, also in the containers",
    )


@pytest.mark.gpu_expects("gpu.temperature_max_c")
def test_gpu_is_not_too_hot(gpu_device: GpuDevice, gpu_expect: Expectation, temperature_c: float) -> None:
    """
    The GPU is no hotter than declared.

    A GPU that is hot while idle slows down under load.
    """
    assert temperature_c <= (gpu_expect.gpu.temperature_max_c or 0), explain(
        f"{gpu_device}: temperature",
        observed=f"{temperature_c:g} °C",
        expected=f"{gpu_expect.gpu.temperature_max_c:g} °C at most",
        why="clocks fall, and all ranks wait for the slowest",
        action="see fans, air flow and the neighbours' temperatures",
    )


@pytest.mark.gpu_expects("gpu.power_limit_w")
def test_gpu_has_the_expected_power_limit(gpu_device: GpuDevice, gpu_expect: Expectation, power_limit_w: float) -> None:
    """
    The GPU has the declared power limit.

    A limit set by hand is lost at a reboot.
    """
    assert power_limit_w == gpu_expect.gpu.power_limit_w, explain(
        f"{gpu_device}: power limit",
        observed=f"{power_limit_w:g} W",
        expected=f"{gpu_expect.gpu.power_limit_w:g} W",
        why="speed and the rack's power budget depend on it",
        action="set it at boot (nvidia-smi -pl from a unit)",
    )


@pytest.mark.gpu_expects("gpu.persistence_mode")
def test_persistence_mode_is_as_expected(gpu_device: GpuDevice, gpu_expect: Expectation, persistence: bool) -> None:
    """
    Persistence mode is as declared.

    Without it the driver lets an idle GPU go, and settings with it.
    """
    assert persistence == gpu_expect.gpu.persistence_mode, explain(
        f"{gpu_device}: persistence mode",
        observed="on" if persistence else "off",
        expected="on" if gpu_expect.gpu.persistence_mode else "off",
        why="the first use after a pause takes seconds, and settings are lost",
        action="see nvidia-persistenced.service",
    )


@pytest.mark.gpu_expects("gpu.mig")
def test_mig_is_as_expected(gpu_device: GpuDevice, gpu_expect: Expectation, mig: bool) -> None:
    """
    MIG is on or off as declared.

    It survives a reboot on some boards and not on others.
    """
    assert mig == gpu_expect.gpu.mig, explain(
        f"{gpu_device}: MIG",
        observed="on" if mig else "off",
        expected="on" if gpu_expect.gpu.mig else "off",
        why="the service sees slices, or a whole GPU, where it expects the other",
        action="nvidia-smi -mig, then reset the GPU",
    )


@pytest.mark.gpu_expects("gpu.ecc")
def test_ecc_is_as_expected(gpu_device: GpuDevice, gpu_expect: Expectation, ecc: bool) -> None:
    """
    ECC is on or off as declared.

    Without it, a flipped bit is a wrong answer that nobody sees.
    """
    assert ecc == gpu_expect.gpu.ecc, explain(
        f"{gpu_device}: ECC",
        observed="on" if ecc else "off",
        expected="on" if gpu_expect.gpu.ecc else "off",
        why="memory errors go unnoticed, or memory is smaller than planned",
        action="nvidia-smi -e, then reboot",
    )


def test_driver_grants_peer_access(grants: Verdict) -> None:
    """
    The driver grants peer access between all GPUs, where the inventory needs it.

    Whether a copy arrives is another question, and takes a copy to answer.
    """
    assert grants.ok, grants.message
