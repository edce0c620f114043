"""Who takes part in an all-reduce over hosts: made of captured hosts, and handed to xdist's workers as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pytest_gpuinfra.capture.selected import SelectedHost
from pytest_gpuinfra.connection.protocol import Connection
from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.gather.groups import HostCollective, Member
from pytest_gpuinfra.inventory.groups import CollectiveExpectation
from pytest_gpuinfra.inventory.inventory import parse_inventory
from pytest_gpuinfra.subjects.service.as_it_runs import framework_of_service

if TYPE_CHECKING:
    from pytest_gpuinfra.host.host import GpuHost


def member_of(host: GpuHost, expect: CollectiveExpectation, python: str | None) -> Member:
    """Give what a group needs to know of a captured host."""
    trouble = host.capture.error[1] if host.capture.error else ""
    if expect.backend == "gloo":
        devices = tuple(f"CPU {number}" for number in range(expect.ranks or 1))
    else:
        devices = host.computing_gpus[: expect.ranks]
        if len(devices) < (expect.ranks or 1):
            found = f"{len(devices)} GPUs on the nvidia driver are" if devices else "no GPU on the nvidia driver is"
            wanted = f", and {expect.ranks} ranks are expected of each host" if expect.ranks else ""
            trouble = trouble or f"{found} expected or seen there{wanted}"
    process = None
    if python is None and host.selected.spec.service is not None and host.selected.way != "replay":
        try:
            process = framework_of_service(host.facts.service)
        except GpuInfraError as error:
            trouble = trouble or error.reason
    try:
        boot_id = host.facts.boot_id
    except GpuInfraError:
        boot_id = ""
    return Member(host.selected, devices, python, boot_id, trouble, process)


def form_collectives(
    hosts: Mapping[str, GpuHost],
    expected: Mapping[str, CollectiveExpectation],
    *,
    python: str | None,
    connect: Callable[[SelectedHost], Connection],
    on_progress: Callable[[str], None],
) -> None:
    """
    Give each group to the first of its hosts that this run is about, whose items speak of it.

    Args:
        hosts: All hosts of the run, captured.
        expected: Groups of the inventory, by name; those of a recording join them.
        python: The Python that has torch, in place of each host's own.
        connect: Makes a host's connection.
        on_progress: For HostCollective.
    """
    groups = dict(expected)
    recorded: dict[str, Mapping[str, Any]] = {}
    for host in hosts.values():
        for name, data in host.selected.gathered.get("collectives", {}).items():
            recorded[name] = data
            groups.setdefault(name, CollectiveExpectation.model_validate(data["expect"]))
    for name, expect in groups.items():
        there = [alias for alias in expect.members if alias in hosts]
        if not there:
            continue
        if name not in recorded and all(hosts[alias].selected.way == "replay" for alias in there):
            continue  # nothing can be run on recordings, and they hold no run
        members = tuple(member_of(hosts[alias], expect, python) for alias in there)
        missing = tuple(alias for alias in expect.members if alias not in hosts)
        anchor = hosts[there[0]]
        made = HostCollective(name, expect, members, missing, connect, recorded.get(name), on_progress)
        anchor.collectives = (*anchor.collectives, made)


def plain(collectives: Iterable[HostCollective]) -> list[dict[str, Any]]:
    """Give groups as plain data, for a worker of xdist."""
    return [
        {
            "name": one.name,
            "expect": one.expect.model_dump(mode="json", exclude_defaults=True),
            "missing": list(one.missing),
            "recorded": one.recorded,
            "members": [
                {
                    "alias": member.alias,
                    "way": member.host.way,
                    "destination": member.host.destination,
                    "spec": member.host.spec.plain(),
                    "devices": list(member.devices),
                    "python": member.python,
                    "boot_id": member.boot_id,
                    "trouble": member.trouble,
                    "process": member.process,
                }
                for member in one.members
            ],
        }
        for one in collectives
    ]


def from_plain(
    data: Iterable[Mapping[str, Any]],
    *,
    connect: Callable[[SelectedHost], Connection],
    on_progress: Callable[[str], None],
) -> tuple[HostCollective, ...]:
    """Rebuild what `plain` gave."""

    def member(one: Mapping[str, Any]) -> Member:
        alias = one["alias"]
        spec = parse_inventory({"hosts": {alias: one["spec"]}}, "hand-over").hosts[alias]
        process = None if one["process"] is None else tuple(one["process"])
        host = SelectedHost(alias, one["way"], one["destination"], spec)
        return Member(host, tuple(one["devices"]), one["python"], one["boot_id"], one["trouble"], process)

    return tuple(
        HostCollective(
            one["name"],
            CollectiveExpectation.model_validate(one["expect"]),
            tuple(map(member, one["members"])),
            tuple(one["missing"]),
            connect,
            one["recorded"],
            on_progress,
        )
        for one in data
    )
