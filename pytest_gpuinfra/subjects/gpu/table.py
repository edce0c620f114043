"""
GPUs as NVML reports them: one row of named values for each.

Source: nvidia-smi --help-query-gpu (580) for the names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.gpu.gpu_value import GpuValue

_ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "gpu_serial": "serial",
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
    "utilization.gpu_": "utilization.gpu",
}


def canonical_name(name: str) -> str:
    """Give a field its newest name, without the unit in brackets behind it."""
    bare = name.partition("[")[0].strip()
    return _ALIASES.get(bare, bare)


@dataclass(frozen=True, slots=True)
class MigDevice:
    """
    One MIG device of a GPU.

    Attributes:
        index: Index among the GPU's MIG devices.
        gpu_instance_id: Its GPU instance; the kernel log names it ("GPU-I:01").
        memory_total_mib: Memory in MiB; None if it is not reported.
    """

    index: int
    gpu_instance_id: int
    memory_total_mib: float | None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """
    One process on a GPU.

    Attributes:
        pid: Process id in the PID namespace of the reader.
        name: Program.
        kind: "C" for compute, "G" for graphics, "M+C" for MPS.
        used_mib: Memory in MiB; None if it is not reported.
    """

    pid: int
    name: str
    kind: str
    used_mib: float | None


@dataclass(frozen=True, slots=True)
class GpuRow:
    """
    One GPU's values by field name.

    Attributes:
        values: As printed, by nvidia-smi's newest field name ("memory.total", "pcie.link.width.current").
        source: Command that they come from.
        mig_devices: Shape (n,); None where the source does not tell.
        processes: Shape (n,); None where the source does not tell.
        leaves: Every value of the XML by its path below <gpu>, the n-th of one name as "name[n]"; {} from a query.
    """

    values: Mapping[str, GpuValue]
    source: str
    mig_devices: tuple[MigDevice, ...] | None = None
    processes: tuple[GpuProcess, ...] | None = None
    leaves: Mapping[str, GpuValue] = field(default_factory=dict)

    def __getitem__(self, name: str) -> GpuValue:
        """
        Give a value.

        Raises:
            FactUnavailable: The source does not hold that field.
        """
        try:
            return self.values[canonical_name(name)]
        except KeyError:
            raise FactUnavailable(self.source, f"no field {name}", remedy="this driver may not report it") from None

    def __contains__(self, name: object) -> bool:
        return canonical_name(str(name)) in self.values

    def text(self, name: str) -> str | None:
        """
        Give a value's text; None if the board reports none.

        Raises:
            FactUnavailable: No such field, or the driver could not read it.
        """
        value = self._read(name)
        return None if value.absent else value.text

    def number(self, name: str) -> float | None:
        """
        Give a value's number; None if the board reports none.

        Raises:
            FactUnavailable: No such field, or the driver could not read it.
        """
        return self._read(name).number

    @property
    def pci_address(self) -> str | None:
        """PCI address in its one spelling; None if the source does not tell."""
        value = self.values.get("pci.bus_id")
        if value is None or not value.known:
            return None
        try:
            return normalise_pci_address(value.text)
        except ValueError:
            return None

    @property
    def errors(self) -> tuple[str, ...]:
        """Fields that the driver could not read, with its words ("fan.speed: Unknown Error"). Shape (n,)."""
        return tuple(f"{name}: {value.error}" for name, value in self.values.items() if value.error)

    @property
    def mig_enabled(self) -> bool | None:
        """Whether MIG is on; None if the source does not tell."""
        value = self.values.get("mig.mode.current")
        return None if value is None else value.text == "Enabled"

    def _read(self, name: str) -> GpuValue:
        value = self[name]
        if value.error:
            raise FactUnavailable(self.source, f"{name}: {value.error}", remedy="read the kernel log for NVRM")
        return value


@dataclass(frozen=True, slots=True)
class GpuTable:
    """
    All GPUs that one call reported.

    Attributes:
        rows: In the order of the output, which is PCI order. Shape (n >= 1,).
        driver_version: Version of the driver; None if the source does not tell.
        cuda_version: CUDA version that the driver can do; None if it does not tell (before 410).
        failure: A failure that nvidia-smi told beside its document, and that no GPU of it explains; "" for none.
    """

    rows: tuple[GpuRow, ...]
    driver_version: str | None = field(default=None)
    cuda_version: str | None = field(default=None)
    failure: str = ""

    def __iter__(self) -> Iterator[GpuRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)
