"""What items about a container and its service are about: variables, arguments, device nodes, paths, orderings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pytest_gpuinfra.pci_address import short_address

if TYPE_CHECKING:
    from pytest_gpuinfra.host.host import GpuHost

Labelled: TypeAlias = Sequence[tuple[str, object]]


@dataclass(frozen=True, slots=True)
class ExpectedSetting:
    """
    A variable or argument, and what is expected of it.

    Attributes:
        name: Its name.
        value: Its value; True for an argument with any value or none; False if it must not be there.
    """

    name: str
    value: str | bool

    @property
    def words(self) -> str:
        """What is expected, for messages."""
        return {True: "given", False: "not set"}[self.value] if isinstance(self.value, bool) else self.value


@dataclass(frozen=True, slots=True)
class ExpectedOrder:
    """
    An ordering of the service.

    Attributes:
        key: "After" or "Before".
        unit: The other unit.
    """

    key: str
    unit: str


@dataclass(frozen=True, slots=True)
class ExpectedSpace:
    """
    Space that must be left.

    Attributes:
        path: A path in the container.
        free_gib: GiB, 2^30 bytes.
    """

    path: str
    free_gib: float


def _settings(values: Mapping[str, str | bool]) -> Labelled:
    return [(name.lstrip("-"), ExpectedSetting(name, value)) for name, value in values.items()]


def _order(host: GpuHost) -> Labelled:
    expect = host.expect.service
    rows = [("After", unit) for unit in expect.after] + [("Before", unit) for unit in expect.before]
    return [(f"{key.lower()}-{unit}", ExpectedOrder(key, unit)) for key, unit in rows]


def _systems(host: GpuHost) -> Labelled:
    spec = host.selected.spec
    names = ["host"] * bool(spec.service or spec.container) + ["container"] * bool(spec.container)
    return [(name, name) for name in names]


SERVICE_KINDS: dict[str, tuple[Callable[[GpuHost], Labelled], str]] = {
    "gpu_service_variable": (
        lambda host: _settings(host.expect.service.environment),
        "inventory expects no service.environment of {host}",
    ),
    "gpu_service_argument": (
        lambda host: _settings(host.expect.service.arguments),
        "inventory expects no service.arguments of {host}",
    ),
    "gpu_service_order": (_order, "inventory expects no service.after and no service.before of {host}"),
    "gpu_system": (_systems, "inventory names no container and no service of {host}"),
    "gpu_container_node": (
        lambda host: [(path, path) for path in host.expect.container.nodes],
        "inventory expects no container.devices and no container.device_nodes of {host}",
    ),
    "gpu_container_gpu": (
        lambda host: [(short_address(address), address) for address in host.expect.container.devices],
        "inventory expects no container.devices of {host}",
    ),
    "gpu_container_mount": (
        lambda host: [(path, path) for path in host.expect.container.mounted],
        "inventory expects no container.mounted of {host}",
    ),
    "gpu_container_disk": (
        lambda host: [(p, ExpectedSpace(p, gib)) for p, gib in host.expect.container.disk_free_gib.items()],
        "inventory expects no container.disk_free_gib of {host}",
    ),
}
"""Kinds of target by fixture: what lists them, and what to say where there is none."""
