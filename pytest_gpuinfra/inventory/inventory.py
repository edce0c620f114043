"""
What is expected of each host: the inventory, read from gpuinfra.toml.

The models below are the file's format; `gpuinfra schema` prints them as JSON Schema.
Everything is optional: what nobody expects is skipped, never judged.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from pytest_gpuinfra.connection.container import Container, parse_container
from pytest_gpuinfra.connection.destination import FORMS, refusal, url_refusal
from pytest_gpuinfra.errors import InventoryError
from pytest_gpuinfra.input_file import parse_toml, read_text
from pytest_gpuinfra.inventory.gpu import GpuExpectation
from pytest_gpuinfra.inventory.groups import CollectiveExpectation
from pytest_gpuinfra.inventory.keys import OF_HOST, expected_keys, models_of, nearest
from pytest_gpuinfra.inventory.model import ModelExpectation
from pytest_gpuinfra.inventory.names.hostlist import expand, is_hostlist
from pytest_gpuinfra.inventory.names.named import ALIAS
from pytest_gpuinfra.inventory.service import (
    ContainerExpectation,
    ContainerName,
    HostUnitName,
    ServiceExpectation,
    UnitName,
)
from pytest_gpuinfra.pci_address import normalise_pci_address, short_address

FILE_NAME = "gpuinfra.toml"
DRIVERS = frozenset(
    {
        *("nvidia", "nouveau", "nova_core", "amdgpu", "radeon", "i915", "xe", "ast", "vfio-pci", "pci-stub", "none"),
        *("snd_hda_intel", "xhci_hcd", "ucsi_ccg"),
    }
)
"""Drivers that a GPU or another function of its card is bound to; others are legal, and unusual."""
UNIT_TYPES = frozenset(
    {"service", "socket", "target", "device", "mount", "automount", "swap", "timer", "path", "slice", "scope"}
)
"""Suffixes of systemd's units. Source: systemd.unit(5)."""
GroupType = Literal["identity", "DMA", "DMA-FQ", "blocked", "unmanaged"]
PciAddress = Annotated[
    str,
    AfterValidator(normalise_pci_address),
    Field(description='PCI address, "01:00.0" or with its domain "0000:01:00.0"'),
]
Scalar = Annotated[str, BeforeValidator(lambda v: str(v) if isinstance(v, int) and not isinstance(v, bool) else v)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CommandLineExpectation(_Model):
    """The kernel's command line, by the kernel's own rules (the last alias wins, nothing after `--`)."""

    has: tuple[str, ...] = Field(
        (), description='parameters that must be in effect, "amd_iommu=on" or a bare "nokaslr"'
    )
    lacks: tuple[str, ...] = Field((), description='parameters that must not be in effect, "iommu=pt"')

    @model_validator(mode="after")
    def _no_contradiction(self) -> CommandLineExpectation:
        both = sorted(set(self.has) & set(self.lacks))
        if both:
            raise ValueError(f"`has` and `lacks` both name {both[0]!r}")
        return self


class DeviceExpectation(_Model):
    """One kind of GPU in the host: which addresses, and what holds for each of them."""

    pci: tuple[PciAddress, ...] = Field(min_length=1, description="PCI addresses, in the order of the driver's indices")
    driver: str | None = Field(
        None, description='driver that each is bound to ("nvidia", "vfio-pci", "none" for unbound)'
    )
    companion_driver: str | None = Field(
        None,
        description="driver of the same card's other functions, such as its audio function (01:00.1). "
        'By default those of a card on vfio-pci must be on vfio-pci, pci-stub, or "none"',
    )
    group_type: GroupType | None = Field(None, description="type of each one's IOMMU group, the kernel's word")
    group_mates: tuple[PciAddress, ...] | None = Field(
        None, description="all other functions in the same IOMMU group, bridges left out; [] for none"
    )
    numa_node: int | None = Field(None, ge=0, description="NUMA node that each is attached to")
    link_width: Literal[1, 2, 4, 8, 16, 32] | None = Field(None, description="PCIe lanes in use")
    link_speed_gt_s: float | None = Field(
        None, gt=0, description="PCIe speed in GT/s a lane; idle links may train down"
    )


class KernelLogExpectation(_Model):
    """What the kernel's log of this boot may hold."""

    xid_class: dict[str, Literal["ignore", "fail"]] = Field(
        default_factory=dict, description='own judgement of a Xid, by code: {"31" = "ignore"}'
    )
    allow: tuple[str, ...] = Field(
        (), description="regular expressions of messages that are no fault here, known or unknown"
    )

    @model_validator(mode="after")
    def _readable(self) -> KernelLogExpectation:
        for code in self.xid_class:
            if not code.isdecimal():
                raise ValueError(f"`xid_class` takes Xid codes, not {code!r}")
        for pattern in self.allow:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"`allow`: {pattern!r} is no regular expression: {error}") from None
        return self


class Expectation(_Model):
    """What one host must show."""

    kernel_release: str | None = Field(None, description="release of the running kernel, a glob: '6.8.*-pve'")
    kernel_command_line: CommandLineExpectation = CommandLineExpectation()
    kernel_log: KernelLogExpectation = KernelLogExpectation()
    confidential: Literal["sev-snp", "sev-es", "sev", "tdx", "none"] | None = Field(
        None, description="confidential computing that the host must offer to its guests"
    )
    peer_access: Literal["correct", "blocked", "any"] | None = Field(
        None, description="whether GPU-to-GPU copies must be right, must not be relied on, or may be either"
    )
    devices: tuple[DeviceExpectation, ...] = ()
    driver_version: str | None = Field(None, description="version of the loaded NVIDIA kernel driver, a glob")
    driver_parameters: dict[str, Scalar] = Field(
        default_factory=dict, description="parameters in /proc/driver/nvidia/params by name"
    )
    module_parameters: dict[str, Scalar] = Field(
        default_factory=dict,
        description='parameters in /sys/module, by "module.parameter": {"kvm_amd.sev_snp" = "Y"}',
    )
    units: dict[HostUnitName, Literal["active", "inactive", "absent", "without-effect"]] = Field(
        default_factory=dict,
        description="systemd units of the host; without-effect: it may be installed, is not enabled, and did not run",
    )
    files_absent: tuple[str, ...] = Field((), description="files that must not exist on the host")
    gpu: GpuExpectation = GpuExpectation()
    model: ModelExpectation = ModelExpectation()
    container: ContainerExpectation = ContainerExpectation()
    service: ServiceExpectation = ServiceExpectation()

    @model_validator(mode="after")
    def _consistent(self) -> Expectation:
        seen: dict[str, int] = {}
        for row, device in enumerate(self.devices):
            for address in device.pci:
                if address in seen:
                    where = "twice in one row" if seen[address] == row else f"in rows {seen[address]} and {row}"
                    raise ValueError(f"device {address} stands {where} of `devices`")
                seen[address] = row
            if self.confidential == "sev-snp" and device.group_type == "identity":
                raise ValueError(
                    f'`confidential = "sev-snp"` and `devices[{row}].group_type = "identity"` exclude each other: '
                    "with SNP on, the AMD IOMMU driver refuses identity domains for every group"
                )
        if self.confidential == "sev-snp":
            for token in self.kernel_command_line.has:
                if token in ("iommu=pt", "iommu.passthrough=1"):
                    raise ValueError(
                        f'`confidential = "sev-snp"` and `kernel_command_line.has = "{token}"` exclude each other: '
                        "the kernel switches SNP off when pass-through is the default"
                    )
        return self

    @property
    def empty(self) -> bool:
        """Whether nothing at all is expected; what is merely allowed is no expectation."""
        return not any(True for _ in expected_keys(self))

    def warnings(self) -> list[str]:
        """Name what is legal, and will hardly come true."""
        found = []
        translated = [d for d in self.devices if d.driver == "nvidia" and d.group_type in ("DMA", "DMA-FQ")]
        if self.peer_access == "correct" and translated:
            found.append(
                f'`peer_access = "correct"` with `group_type = "{translated[0].group_type}"` '
                f"({', '.join(short_address(a) for a in translated[0].pci)}): "
                "under IOMMU translation peer copies between PCIe GPUs are unsupported on bare metal and may be corrupt"
            )
        for row, device in enumerate(self.devices):
            for key in ("driver", "companion_driver"):
                name = getattr(device, key)
                if name is not None and name not in DRIVERS:
                    hint = nearest(name, DRIVERS).partition("; legal")[0]
                    found.append(f"`devices[{row}].{key} = {name!r}`: no driver of GPUs is known by this name{hint}")
        named = {"units": self.units, "service.after": self.service.after, "service.before": self.service.before}
        for key, units in named.items():
            for unit in units:
                if unit.rpartition(".")[2] not in UNIT_TYPES:
                    found.append(f"`{key}`: {unit!r} has no suffix; systemd's name for a service is '{unit}.service'")
        return found


def _destination(text: str) -> str:
    reason = refusal(text.replace("{alias}", "alias"))
    if reason:
        raise ValueError(f"{reason}; it takes {FORMS}")
    return text


def endpoint_url(text: str) -> str:
    """Give an endpoint's address as it is; ValueError for one that nobody could ask."""
    reason = url_refusal(text)
    if reason:
        raise ValueError(reason)
    return text


class HostSpec(_Model):
    """One host: how to reach it, and what is expected of it."""

    address: Annotated[str, AfterValidator(_destination)] | None = Field(
        None,
        description='what ssh(1) takes, "root@192.0.2.10", or "local" for this machine; the alias if left out. '
        '"{alias}" in it stands for the alias: "root@{alias}.mgmt.example.org"',
    )
    group: str | None = Field(None, description="a name under [groups] whose keys apply where the host has none")
    sudo: bool | Literal["read"] = Field(
        False,
        description='true: be root through `sudo -n`; "read": only read what root reads, by the sudoers file that '
        "`gpuinfra sudoers` prints (docs/security.md)",
    )
    endpoint: Annotated[str, AfterValidator(endpoint_url)] | None = Field(
        None,
        pattern="^https?://",
        description='inference endpoint as seen from where the service runs, "http://localhost:30000"; '
        "it is asked, and its name resolved, there, through a tunnel over the same connection",
    )
    api_key_env: str | None = Field(
        None,
        pattern="^[A-Za-z_][A-Za-z0-9_]*$",
        description="variable of pytest's environment that holds the endpoint's key",
    )
    prompts: tuple[str, ...] = Field((), description="files of more questions with known answers, beside the inventory")
    container: ContainerName | None = None
    service: UnitName | None = None
    expect: Expectation = Expectation()

    @model_validator(mode="after")
    def _named(self) -> HostSpec:
        for key, empty in (("container", ContainerExpectation()), ("service", ServiceExpectation())):
            if getattr(self.expect, key) != empty and getattr(self, key) is None:
                raise ValueError(f"`expect.{key}` needs `{key}`, the name of what it speaks of")
        return self

    def unjudgeable(self) -> list[str]:
        """Name the keys that no check can judge as the inventory stands; options of a run may change that."""
        model = [key for key in expected_keys(self.expect) if key.startswith("model.")]
        if self.endpoint is not None or not model:
            return []
        return [f"`expect.{model[0]}` needs `endpoint`: nobody could ask for the model (or name one by --gpu-endpoint)"]

    @property
    def declared(self) -> tuple[str, ...]:
        """Keys by which something is expected of the host, those under `expect` without that word. Shape (n,)."""
        found = [*(name for name in OF_HOST if getattr(self, name)), *expected_keys(self.expect)]
        computing = [address for row in self.expect.devices if row.driver in (None, "nvidia") for address in row.pci]
        if self.expect.devices and len(computing) < 2 and "peer_access" in found:
            found.remove("peer_access")  # one GPU has no peer
        return tuple(found)

    def with_texts(self, base: Path) -> HostSpec:
        """
        Read the user's copies of files, so that they travel with the expectation.

        Raises:
            InventoryError: One cannot be read.
        """
        service = self.expect.service.with_texts(base)
        if service == self.expect.service:
            return self
        return self.model_copy(update={"expect": self.expect.model_copy(update={"service": service})})

    def plain(self) -> dict[str, Any]:
        """Give it in the inventory's form, as recordings hold it; what a group gave it stands in it."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude={"group"})


class Inventory(_Model):
    """The file."""

    defaults: dict[str, Any] = Field(default_factory=dict, description="keys of a host, for all hosts")
    groups: dict[str, dict[str, Any]] = Field(default_factory=dict, description="keys of a host, by group")
    hosts: dict[str, HostSpec] = Field(
        default_factory=dict,
        description='the hosts, by alias, or by a hostlist of aliases: [hosts."node[01-64]"]; '
        "keys under a host's own alias come before those of a hostlist that holds it",
    )
    collectives: dict[str, CollectiveExpectation] = Field(
        default_factory=dict, description="groups of hosts that compute together, by a name of your own"
    )


def read_inventory(path: Path) -> Inventory:
    """
    Read and check an inventory file.

    Raises:
        InventoryError: With file, key, reason, and what is legal, one line for each fault found.
    """
    text = read_text(path, InventoryError, remedy="name a file with --gpu-inventory")
    inventory = parse_inventory(parse_toml(text, str(path), InventoryError), str(path))
    read: dict[int, HostSpec] = {}
    for host in inventory.hosts.values():
        if id(host) not in read:  # those of one hostlist share it
            read[id(host)] = host.with_texts(path.parent)
    return inventory.model_copy(update={"hosts": {alias: read[id(host)] for alias, host in inventory.hosts.items()}})


def parse_inventory(raw: Mapping[str, Any], source: str) -> Inventory:
    """
    Check an inventory's content, with defaults and groups applied to each host.

    Raises:
        InventoryError: As `read_inventory`.
    """
    faults: list[str] = []
    hosts = raw.get("hosts", {})
    aliases: dict[str, str] = {}
    if isinstance(hosts, dict):
        lists, faults = _lists(hosts)
        aliases = _aliases(hosts, lists, faults)
        raw = {**raw, "hosts": _layered(raw, hosts, lists, faults)}
    try:
        inventory = Inventory.model_validate(raw)
    except ValidationError as error:
        faults += [_fault(item) for item in error.errors()]
    if faults:
        lines = "\n  ".join(dict.fromkeys(faults))
        raise InventoryError(f"{source}:\n  {lines}", remedy="`gpuinfra schema` prints all keys and legal values")
    return inventory.model_copy(update={"hosts": {alias: inventory.hosts[key] for alias, key in aliases.items()}})


def _lists(hosts: Mapping[str, Any]) -> tuple[dict[str, dict[str, None]], list[str]]:
    """Give the aliases of each key of [hosts] that is a hostlist, in order; and what is wrong with such keys."""
    lists: dict[str, dict[str, None]] = {}
    faults: list[str] = []
    for key in filter(is_hostlist, hosts):
        try:
            lists[key] = dict.fromkeys(expand(key, f"hosts.{key}"))
        except InventoryError as error:
            faults.append(error.reason)
    return lists, faults


def _aliases(hosts: Mapping[str, Any], lists: Mapping[str, Mapping[str, None]], faults: list[str]) -> dict[str, str]:
    """Tell under which key of [hosts] each alias stands; a name of its own comes before a hostlist that holds it."""
    found: dict[str, str] = {}
    for key in hosts:
        for alias in lists.get(key, () if is_hostlist(key) else (key,)):
            other = found.get(alias)
            if other is not None and alias not in hosts:
                faults.append(f"hosts.{key}: {alias!r} is in hosts.{other} as well; leave it out of one of them")
            if not ALIAS.fullmatch(alias):
                faults.append(
                    f"hosts.{alias[:250]}: an alias is letters, digits, '.', '_' and '-', begins with none of '.-', "
                    "and has 200 characters at most"
                )
            if alias == "all":
                faults.append(f"hosts.{alias}: {alias!r} has a meaning of its own for --gpu-host; take another alias")
            found[alias] = alias if alias in hosts else key
    return found


def _layered(
    raw: Mapping[str, Any], hosts: Mapping[str, Any], lists: Mapping[str, Mapping[str, None]], faults: list[str]
) -> dict[str, Any]:
    """Put [defaults], the group, the hostlist that holds it, and a host's own keys together, by key of [hosts]."""
    groups = raw.get("groups", {})
    merged: dict[str, Any] = {}
    for key, host in hosts.items():
        if not isinstance(host, dict):
            merged[key] = host
            continue
        above = [hosts[name] for name, members in lists.items() if key in members and isinstance(hosts[name], dict)]
        own = _merge([*above, host])
        group = own.get("group", raw.get("defaults", {}).get("group"))
        if group is not None and group not in groups:
            faults.append(f"hosts.{key}.group: no [groups.{group}]" + nearest(str(group), groups))
        layers = [raw.get("defaults", {}), groups.get(group, {}), own]
        merged[key] = _merge([layer for layer in layers if isinstance(layer, dict)])
    return merged


def _merge(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            old = result.get(key)
            result[key] = _merge([old, value]) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _fault(item: Mapping[str, Any]) -> str:
    """Put one of pydantic's errors into words: key, reason, what is legal."""
    location = item["loc"]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    if item["type"] == "extra_forbidden":
        return f"{key}: unknown key" + nearest(str(location[-1]), _legal_keys(location))
    reason = str(item["msg"]).removeprefix("Value error, ")
    given = item.get("input")
    shown = f", not {given!r}" if isinstance(given, (str, int, float, bool)) else ""
    return f"{key}: {reason[:1].lower() + reason[1:]}{shown}"


def _legal_keys(location: Sequence[str | int]) -> list[str]:
    model: type[BaseModel] | None = Inventory
    for part in location[:-1]:
        if isinstance(part, int) or model is None:
            continue
        if part == "hosts":
            model = HostSpec
            continue
        field = model.model_fields.get(str(part))
        if field is not None:
            model = next((m for m in models_of(field.annotation)), None)
    return list(model.model_fields) if model else []


def json_schema() -> dict[str, Any]:
    """Give the JSON Schema of an inventory file; [defaults] and [groups.NAME] hold the keys of a host."""
    schema = Inventory.model_json_schema()
    host = {"$ref": "#/$defs/HostSpec"}
    properties = schema["properties"]
    properties["defaults"] = {**host, "description": properties["defaults"]["description"]}
    properties["groups"]["additionalProperties"] = host
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "gpuinfra.toml", **schema}


def match_aliases(pattern: str, inventory: Inventory) -> list[str]:
    """Give the aliases that "all", an alias, a glob of aliases, or "@" and a group stands for; [] if none."""
    if pattern == "all":
        return list(inventory.hosts)
    if pattern.startswith("@"):
        return [
            alias
            for alias, host in inventory.hosts.items()
            if host.group is not None and fnmatch.fnmatchcase(host.group, pattern[1:])
        ]
    if pattern in inventory.hosts:
        return [pattern]
    if any(sign in pattern for sign in "*?["):
        return [alias for alias in inventory.hosts if fnmatch.fnmatchcase(alias, pattern)]
    return []


def container_of(spec: HostSpec) -> Container | None:
    """Give the container that the inventory names; None if it names none."""
    return parse_container(spec.container) if spec.container else None
