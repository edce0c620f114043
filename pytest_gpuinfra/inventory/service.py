"""What the inventory declares of a host's container and of the systemd service in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from pytest_gpuinfra.connection.container import FORMS, parse_container
from pytest_gpuinfra.errors import InventoryError
from pytest_gpuinfra.input_file import read_text
from pytest_gpuinfra.on_target.probe.probe_mask import mask_text
from pytest_gpuinfra.pci_address import normalise_pci_address

PciAddress = Annotated[str, AfterValidator(normalise_pci_address)]
Word = Annotated[
    str, BeforeValidator(lambda v: str(v) if isinstance(v, (int, float)) and not isinstance(v, bool) else v)
]
Engine = Literal["SGLang", "vLLM", "TGI", "llama.cpp", "TensorRT-LLM"]

ENVIRONMENT_NAMES = (
    "NCCL_*",
    "CUDA_*",
    "NVIDIA_*",
    "SGLANG_*",
    "SGL_*",
    "VLLM_*",
    "HF_HUB_*",
    "OMP_*",
    "TORCH_*",
    "PYTORCH_*",
    "LD_*",
    "PYTHON*",
)
"""Variables that are read on the target; every other one stays there."""


def _container(text: str) -> str:
    return str(parse_container(text))


def _unit(text: str) -> str:
    name = text if "." in text else f"{text}.service"
    if not _UNIT.fullmatch(name):
        raise ValueError("takes the name of a systemd unit: letters, digits and ':-_.\\\\@', no dash at its beginning")
    return name


_UNIT = re.compile(r"(?!-)[A-Za-z0-9:_.\\@-]{1,255}")
"""Source: systemd.unit(5), "Unit name"; a pattern (*) would stand for several, a dash for an option."""


ContainerName = Annotated[
    str, AfterValidator(_container), Field(description=f'container that serves, "pct:129"; {FORMS}')
]
UnitName = Annotated[
    str,
    AfterValidator(_unit),
    Field(description='systemd unit that serves, "sglang-qwen"; in the container if there is one'),
]


HostUnitName = Annotated[str, AfterValidator(lambda name: name if _UNIT.fullmatch(name) else _unit(f"{name}.x"))]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ContainerExpectation(_Model):
    """The container that the host's `container` names."""

    autostart: bool | None = Field(None, description="whether it starts at boot")
    starts_within_s: float | None = Field(
        None, gt=0, description="seconds after the host's boot by which it was started; later means a restart"
    )
    devices: tuple[PciAddress, ...] = Field(
        (), description="GPUs that it is given, by PCI address, in the order in which it sees them"
    )
    device_nodes: tuple[str, ...] = Field(
        (),
        description="device nodes that it needs; with `devices`, nvidiactl, nvidia-uvm and nvidia-uvm-tools by default",
    )
    shm_min_gib: float | None = Field(None, gt=0, description="size of /dev/shm in GiB; NCCL's SHM needs it")
    memlock: Literal["unlimited"] | int | None = Field(None, description="limit of locked memory, in bytes, at least")
    open_files: int | None = Field(None, gt=0, description="limit of open files, at least")
    mounted: tuple[str, ...] = Field((), description="paths that lie on a mount of their own and are readable")
    disk_free_gib: dict[str, float] = Field(default_factory=dict, description="space left in GiB, by path")
    failed_units: tuple[str, ...] = Field((), description="units of the container that may be failed")

    @property
    def nodes(self) -> tuple[str, ...]:
        """Device nodes that are expected by path."""
        if self.device_nodes or not self.devices:
            return self.device_nodes
        return ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


class ServiceExpectation(_Model):
    """The unit that the host's `service` names."""

    enabled: bool | None = Field(None, description="whether it starts at boot")
    restarts_max: int = Field(0, ge=0, description="restarts by systemd itself since it was last started by hand")
    after: tuple[str, ...] = Field((), description="units that it is ordered after")
    before: tuple[str, ...] = Field((), description="units that it is ordered before")
    unit_file: str | None = Field(None, description="your copy of the unit file, beside the inventory")
    unit_file_text: str | None = Field(None, description="its text; read from `unit_file` where left out")
    drop_ins: dict[str, str] = Field(
        default_factory=dict, description="your copies of drop-ins, by file name; beside `unit_file` no other may exist"
    )
    drop_in_texts: dict[str, str] = Field(default_factory=dict, description="their texts; read where left out")
    environment: dict[str, Word | Literal[False]] = Field(
        default_factory=dict, description="variables in effect in every process; false for one that must not be set"
    )
    arguments: dict[str, Word | bool] = Field(
        default_factory=dict, description="arguments in effect; true for one without a value, false for none"
    )
    read_environment: tuple[str, ...] = Field(
        (), description='more variables to read, "MY_NAME" or "MY_*"; values that look like secrets are masked'
    )
    engine: Engine | None = Field(None, description="engine that serves")
    python: str | None = Field(None, description="Python of its processes, a glob of the interpreter's path")
    ranks: int | None = Field(None, ge=1, description="processes that hold a GPU each")
    transport: Literal["SHM", "not SHM"] | None = Field(None, description="what its ranks are seen to use right now")
    allow_log: tuple[str, ...] = Field(
        (), description="regular expressions of lines in its log that are no error and no fallback"
    )

    @model_validator(mode="after")
    def _consistent(self) -> ServiceExpectation:
        if self.ranks == 1 and self.transport is not None:
            raise ValueError("`transport` needs two ranks or more, and `ranks` says 1")
        if self.transport == "SHM" and self.environment.get("NCCL_SHM_DISABLE") == "1":
            raise ValueError('`transport = "SHM"` and `environment.NCCL_SHM_DISABLE = "1"` exclude each other')
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Variables to read on the target."""
        return (*ENVIRONMENT_NAMES, *self.read_environment, *self.environment)

    def with_texts(self, base: Path) -> ServiceExpectation:
        """
        Read the user's copies, so that they travel with the expectation.

        Raises:
            InventoryError: One cannot be read.
        """
        texts = {name: _read(base, path) for name, path in self.drop_ins.items() if name not in self.drop_in_texts}
        unit = self.unit_file_text
        if unit is None and self.unit_file is not None:
            unit = _read(base, self.unit_file)
        return self.model_copy(update={"unit_file_text": unit, "drop_in_texts": {**self.drop_in_texts, **texts}})


def _read(base: Path, name: str) -> str:
    text = read_text(base / name, InventoryError, remedy="expect.service takes paths relative to the inventory file")
    return str(mask_text(text))  # type: ignore[no-untyped-call]
