"""
What the items of a run are about: hosts, devices, parameters, units.

Each has an id, a word such as "node-a-01:00.0" that `-k` takes.
What is expected decides which targets there are; what was observed only where nothing is expected.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

from pytest_gpuinfra.pci_address import short_address
from pytest_gpuinfra.session.items_service import SERVICE_KINDS
from pytest_gpuinfra.subjects.transfers.pair import DirectedPair

if TYPE_CHECKING:
    from pytest_gpuinfra.host.host import GpuHost
    from pytest_gpuinfra.inventory.inventory import DeviceExpectation


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """
    One GPU of a host, expected or, where no device is expected, observed.

    Attributes:
        host: Alias.
        pci_address: "0000:01:00.0".
        expect: The row of the inventory that names it; one that expects nothing if no row does.
        row: Which row of `expect.devices` that is, from 0; -1 if no row names it.
    """

    host: str
    pci_address: str
    expect: DeviceExpectation
    row: int = -1

    def __str__(self) -> str:
        return f"{self.host}: GPU {short_address(self.pci_address)}"


@dataclass(frozen=True, slots=True)
class ExpectedValue:
    """
    Something with a name, and what is expected of it.

    Attributes:
        name: Name of a parameter or unit.
        value: Expected value or state.
    """

    name: str
    value: str


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Target:
    """
    What one item is about; reports show it as its id.

    Attributes:
        id: The word that stands for it, unique in the run.
        host: Alias of its host.
        kind: Name of the fixture that gives the value; "gpu_host" for the host itself.
        label: What it is, without the host; "" for the host itself.
        value: What that fixture gives; None for the host itself.
        nothing: Why there is no value; "" if there is one.
    """

    id: str
    host: str
    kind: str
    label: str
    value: object
    nothing: str = ""

    def __repr__(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True)
class Kind:
    """
    A kind of target.

    Attributes:
        list: Gives (label, value) of each target of a host.
        nothing: What to say when a host has none.
    """

    list: Callable[[GpuHost], Sequence[tuple[str, object]]]
    nothing: str


def _named(values: Mapping[str, str]) -> list[tuple[str, object]]:
    return [(name, ExpectedValue(name, value)) for name, value in values.items()]


def _devices(host: GpuHost) -> list[tuple[str, object]]:
    from pytest_gpuinfra.inventory.inventory import DeviceExpectation

    found = [
        GpuDevice(host.alias, address, expect, row)
        for row, expect in enumerate(host.expect.devices)
        for address in expect.pci
    ] or [GpuDevice(host.alias, address, DeviceExpectation(pci=(address,))) for address in host.observed_gpus]
    return [(short_address(device.pci_address), device) for device in found]


def _pairs(host: GpuHost) -> list[tuple[str, object]]:
    return [
        (f"{short_address(src)}-to-{short_address(dst)}", DirectedPair(host.alias, src, dst))
        for src, dst in permutations(host.computing_gpus, 2)
    ]


def _chains(host: GpuHost) -> list[tuple[str, object]]:
    return [
        ("-to-".join(short_address(address) for address in (src, via, dst)), DirectedPair(host.alias, src, dst, via))
        for src, via, dst in permutations(host.computing_gpus, 3)
    ]


def _arms(host: GpuHost) -> list[tuple[str, object]]:
    if host.gpu_runs is None or len(host.computing_gpus) < 2:
        return []
    return [(plan.name, plan.name) for plan in host.gpu_runs.settings.arm_plans()]


def _groups(host: GpuHost) -> list[tuple[str, object]]:
    return [(group.name, group) for group in host.collectives]


def _host_pairs(host: GpuHost) -> list[tuple[str, object]]:
    from pytest_gpuinfra.gather.groups import HostPair

    return [
        (f"{group.name}-{one}+{other}", HostPair(group.name, one, other))
        for group in host.collectives
        for pairs in group.rounds
        for one, other in pairs
    ]


def _serving_gpus(host: GpuHost) -> list[tuple[str, object]]:
    if host.participation is None:
        return []
    return [(short_address(address), address) for address in host.participation.gpus]


def _prompts(host: GpuHost) -> list[tuple[str, object]]:
    return [(prompt.name, prompt) for prompt in host.serving.prompts] if host.serving is not None else []


def _baseline_areas(host: GpuHost) -> list[tuple[str, object]]:
    return [(area, area) for area in host.baseline_areas]


KINDS: dict[str, Kind] = {
    "gpu_device": Kind(_devices, "no device is expected of {host}, and no GPU was seen there"),
    "gpu_required_parameter": Kind(
        lambda host: [(token, token) for token in host.expect.kernel_command_line.has],
        "inventory expects no kernel_command_line.has of {host}",
    ),
    "gpu_forbidden_parameter": Kind(
        lambda host: [(token, token) for token in host.expect.kernel_command_line.lacks],
        "inventory expects no kernel_command_line.lacks of {host}",
    ),
    "gpu_driver_parameter": Kind(
        lambda host: _named(host.expect.driver_parameters), "inventory expects no driver_parameters of {host}"
    ),
    "gpu_module_parameter": Kind(
        lambda host: _named(host.expect.module_parameters), "inventory expects no module_parameters of {host}"
    ),
    "gpu_expected_unit": Kind(lambda host: _named(host.expect.units), "inventory expects no units of {host}"),
    "gpu_pair": Kind(_pairs, "{host} has no two GPUs on the nvidia driver, expected or seen"),
    "gpu_chain": Kind(_chains, "{host} has no three GPUs on the nvidia driver, expected or seen"),
    "gpu_arm": Kind(_arms, "{host} has no two GPUs on the nvidia driver, expected or seen"),
    "gpu_collective": Kind(_groups, "inventory expects no collectives of {host} as the first host"),
    "gpu_host_pair": Kind(_host_pairs, "inventory expects no collectives of {host} as the first host"),
    "gpu_prompt": Kind(_prompts, "{host} has no endpoint: name one in the inventory (endpoint) or by --gpu-endpoint"),
    "gpu_serving_gpu": Kind(
        _serving_gpus,
        "{host} has no endpoint of its own, or no GPU on the nvidia driver, expected or seen, "
        "or its recording holds no sampling under load",
    ),
    "gpu_baseline_area": Kind(
        _baseline_areas, "no baseline of {host}: name an earlier recording of it by --gpu-baseline"
    ),
    "gpu_absent_file": Kind(
        lambda host: [(path, path) for path in host.expect.files_absent],
        "inventory expects no files_absent of {host}",
    ),
    **{name: Kind(*row) for name, row in SERVICE_KINDS.items()},
}
"""Kinds of target by the fixture that a test takes for it. A test takes one of them at most."""


def targets_of(host: GpuHost, kind: str, alias_of: Callable[[str], str | None]) -> list[Target]:
    """
    Give the targets of one kind on one host; where there is none, one that says why.

    Args:
        host: The host.
        kind: A name in KINDS, or "gpu_host".
        alias_of: Tells whose an id looks, by the id alone; one that looks another host's is written with a "~".
    """

    def make(label: str, value: object, nothing: str = "") -> Target:
        identity = f"{host.alias}-{label}" if label else host.alias
        if alias_of(identity) != host.alias:  # "node" with unit "a-x" beside a host "node-a"
            identity = f"{host.alias}~{label}"
        return Target(identity, host.alias, kind, label, value, nothing)

    if kind == "gpu_host":
        return [make("", None)]
    found = KINDS[kind].list(host)
    if not found:
        return [make("", None, KINDS[kind].nothing.format(host=host.alias))]
    return [make(label, value) for label, value in found]


def alias_of_id(identity: str, aliases: Container[str]) -> str | None:
    """
    Tell which host an id looks to belong to; of two that fit, the longer alias.

    Args:
        identity: "node-a-01:00.0".
        aliases: Aliases of the run.
    """
    if identity in aliases:
        return identity
    for place in range(len(identity) - 1, 0, -1):
        if identity[place] in "-~" and identity[:place] in aliases:
            return identity[:place]
    return None
