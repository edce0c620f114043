"""
A first inventory, written from a host that is known to be good: commented, minimal, and true on that host.

Only what must come back after every reboot is written down: what a person would have to decide is left as a comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pytest_gpuinfra.capture.capture import Request, command, node
from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError
from pytest_gpuinfra.host.facts import HostFacts
from pytest_gpuinfra.masking import mask_text
from pytest_gpuinfra.pci_address import short_address
from pytest_gpuinfra.record.recording import RecordedHost
from pytest_gpuinfra.record.snapshot import snapshot_of
from pytest_gpuinfra.report.pair_matrix import matrix_of
from pytest_gpuinfra.subjects.pci.functions import PciFunction, PciFunctions
from pytest_gpuinfra.wire import text_lines

T = TypeVar("T")
_UNIT_NAMES = ("nvidia*", "*gpu*", "dcgm*", "*fabricmanager*", "amd-smi*", "*rocm*")
_ASK = ("--no-legend", "--no-pager", "--type=service", *_UNIT_NAMES)
UNITS: Request = node(
    "init_units",
    command("active", "systemctl", "list-units", "--plain", "--state=active", *_ASK),
    command("files", "systemctl", "list-unit-files", *_ASK),
)
"""What to ask beside the capture: units by whose names they have to do with GPUs, and whether they start at boot."""

_SWITCHES = ("iommu", "amd_iommu", "intel_iommu", "iommu.passthrough", "iommu.strict", "mem_encrypt", "kvm_amd.sev_snp")
_SERVING = {
    "container": '# container = "docker:NAME"             # where the service runs, if not on the host itself',
    "service": '# service = "sglang.service"            # its unit there',
    "endpoint": '# endpoint = "http://localhost:30000"   # its API, as seen from there',
}
_SHARE = 0.9
"""A measured bandwidth becomes a minimum at this share of it."""


def first_inventory(alias: str, address: str | None, host: RecordedHost) -> str:
    """
    Write the inventory's text.

    Args:
        alias: What the host is to be called.
        address: What ssh(1) takes, or "local"; None to leave it out.
        host: What was seen of it.

    Raises:
        GpuInfraError: The host was not reached.
    """
    host.capture.check_reached()
    facts = HostFacts(host.capture)
    lines = [
        f"# What must hold of {alias} after every reboot, as it stood at {host.capture.taken_at}.",
        "# Delete what does not matter, add what does: `gpuinfra schema` prints all keys.",
        "",
        f"[hosts.{_key(alias)}]",
    ]
    if address:
        lines.append(f"address = {_text(address)}")
    for key, example in _SERVING.items():
        known = host.spec.get(key)
        lines.append(f"{key} = {_text(str(known))}" if known else example)
    lines += [
        "",
        f"[hosts.{_key(alias)}.expect]",
        *_expect(facts, host),
        *_gpu(alias, facts, host),
        *_model(alias, host),
        *_devices(alias, facts),
    ]
    return mask_text("\n".join(lines).rstrip() + "\n")


def _expect(facts: HostFacts, host: RecordedHost) -> list[str]:
    lines = []
    release = _maybe(lambda: facts.kernel_release)
    if release:
        lines.append(f"kernel_release = {_text(_series(release))}  # it runs {release}")
    line = _maybe(lambda: facts.kernel_command_line)
    if line is not None:
        given = [str(parameter) for parameter in line.parameters if parameter.name in _SWITCHES]
        has = [token for token in dict.fromkeys(given) if line.has(token)]
        lacks = [token for token in ("iommu=pt", "iommu.passthrough=1") if not line.has(token)]
        if any("=pt" in token or "passthrough=1" in token for token in has):
            lacks = []
        lines.append(f"kernel_command_line = {{ has = {_list(has)}, lacks = {_list(lacks)} }}")
    level = _maybe(lambda: facts.confidential.level)
    if level is not None and level != "none":
        lines.append(f"confidential = {_text(level)}  # guests may rely on it")
    version = _maybe(lambda: facts.driver_version.version)
    if version:
        lines.append(f"driver_version = {_text(version.partition('.')[0] + '.*')}  # it runs {version}")
    parameter = _maybe(lambda: facts.driver_parameters["DmaRemapPeerMmio"])
    if parameter is not None:
        lines.append(f'driver_parameters = {{ DmaRemapPeerMmio = "{parameter}" }}')
    matrix = matrix_of(host.gathered)
    if matrix is not None and matrix.seen_right == matrix.pairs:
        lines.append('peer_access = "correct"  # every directed pair was right by every mechanism')
    else:
        lines += [
            '# peer_access = "correct"   # GPU-to-GPU copies must be right',
            '# peer_access = "blocked"   # nothing may rely on them, as under IOMMU translation',
        ]
    units = _units(host)
    rows = ", ".join(f"{_text(name)} = {_text(state)}" for name, state in units.items())
    lines.append(f"units = {{ {rows} }}" if units else '# units = { "nvidia-persistenced.service" = "active" }')
    return lines


def _units(host: RecordedHost) -> dict[str, str]:
    """Give the units about GPUs that start at boot and are active, and those that do not and have not run."""
    if host.capture.request("init_units") is None:
        return {}
    readings = host.capture.node("init_units")
    active = {line.split()[0] for line in text_lines(readings["active"].text or "") if line.split()}
    files = dict(line.split()[:2] for line in text_lines(readings["files"].text or "") if len(line.split()) > 1)
    found = {}
    for name, state in files.items():
        if "@" in name:
            continue  # a template: its instances have names of their own
        if state == "enabled" and name in active:
            found[name] = "active"
        elif state == "disabled" and name not in active:
            found[name] = "without-effect"
    return found


def _gpu(alias: str, facts: HostFacts, host: RecordedHost) -> list[str]:
    table = _maybe(lambda: facts.gpu_table)
    if table is None:
        return []
    lines = ["", f"[hosts.{_key(alias)}.expect.gpu]"]
    for key, field in (("name", "name"), ("persistence_mode", "persistence_mode"), ("ecc", "ecc.mode.current")):
        values = {_maybe(partial(row.text, field)) for row in table}
        value = values.pop() if len(values) == 1 else None
        if value and key == "name":
            lines.append(f"name = {_text(value)}")
        elif value in ("Enabled", "Disabled"):
            lines.append(f"{key} = {str(value == 'Enabled').lower()}")
    if {row.mig_enabled for row in table} == {False}:
        lines.append("mig = false")
    numbers = snapshot_of(alias, {}, host.capture, host.gathered).numbers
    copies = [value for name, value in numbers.items() if name.endswith("/copy engine GB/s")]
    if copies:
        least = min(copies)
        lines.append(f"peer_copy_gb_s_min = {_SHARE * least:.1f}  # the slowest pair did {least:g} GB/s")
    arms = {
        name.removeprefix("all-reduce/").partition(" ")[0]: value
        for name, value in numbers.items()
        if name.startswith("all-reduce/") and "(cuda)" in name
    }
    arms = {arm: value for arm, value in arms.items() if arm in ("shm", "p2p")}
    if arms:
        rows = ", ".join(f"{arm} = {_SHARE * value:.1f}" for arm, value in arms.items())
        lines.append(f"busbw_gb_s_min = {{ {rows} }}  # {_SHARE:.0%} of what was measured")
    return lines if len(lines) > 2 else []


def _model(alias: str, host: RecordedHost) -> list[str]:
    """Give what the endpoint showed, where a recording has it."""
    endpoint = host.gathered.get("endpoint") or {}
    models = list((endpoint.get("readiness") or {}).get("models") or [])
    if len(models) != 1:
        return []
    lines = ["", f"[hosts.{_key(alias)}.expect.model]", f"id = {_text(str(models[0]))}"]
    numbers = snapshot_of(alias, {}, host.capture, host.gathered).numbers
    speeds = {
        "one_stream_tokens_per_s": numbers.get("endpoint/1 stream tokens/s"),
        "eight_streams_tokens_per_s": numbers.get("endpoint/8 streams tokens/s"),
    }
    rows = ", ".join(f"{key} = {value:.1f}" for key, value in speeds.items() if value)
    if rows:
        lines.append(f"throughput = {{ {rows} }}  # as measured; 15 % slower still passes")
    return lines


def _devices(alias: str, facts: HostFacts) -> list[str]:
    functions = _maybe(lambda: facts.pci_functions)
    groups = _maybe(lambda: facts.iommu_groups)
    if functions is None or not functions.gpus:
        why = "PCI functions could not be read" if functions is None else "none was on the PCI bus"
        return [
            "",
            f"# No GPU was seen: {why}. Where there should be some, name them, or their loss goes unnoticed:",
            f"# [[hosts.{_key(alias)}.expect.devices]]",
            '# pci = ["01:00.0"]',
            '# driver = "nvidia"',
        ]
    rows: dict[tuple[str, ...], list[str]] = {}
    for function in functions.gpus:
        group = groups.of(function.address) if groups is not None else None
        driver, node = _maybe(partial(_driver, function)), _maybe(partial(getattr, function, "numa_node"))
        width = _maybe(partial(getattr, function, "link_width"))
        speed = _fastest(functions, function)
        companions = {
            other.driver or "none"
            for other in functions
            if other.address.rpartition(".")[0] == function.address.rpartition(".")[0] and other is not function
        }
        keys = [f"driver = {_text(driver)}" if driver else "# driver: could not be read"]
        if len(companions) == 1 and driver != "vfio-pci":
            keys.append(f"companion_driver = {_text(companions.pop())}")
        if group is not None and group.type_known:
            keys.append(f"group_type = {_text(group.type)}")
        if node is not None and node >= 0:
            keys.append(f"numa_node = {node}")
        if width in (1, 2, 4, 8, 16, 32):
            keys.append(f"link_width = {width}")
        if speed is not None:
            keys.append(f"link_speed_gt_s = {speed:g}")
        rows.setdefault(tuple(keys), []).append(short_address(function.address))
    lines = []
    for shared, addresses in rows.items():
        lines += ["", f"[[hosts.{_key(alias)}.expect.devices]]", f"pci = {_list(addresses)}", *shared]
    return lines


def _driver(function: PciFunction) -> str:
    return function.driver or "none"


def _fastest(functions: PciFunctions, function: PciFunction) -> float | None:
    """Give the highest speed that both ends of a link are capable of, GT/s; None if one is not known."""
    ends = [function, *(functions[address] for address in function.upstream[-1:])]
    speeds = [_maybe(partial(getattr, end, "max_link_speed_gt_s")) for end in ends]
    known = [speed for speed in speeds if speed]
    return min(known) if len(known) == len(speeds) else None


def _maybe(read: Callable[[], T]) -> T | None:
    """Read a fact; None where it cannot be observed: nothing is expected of it then."""
    try:
        return read()
    except (GpuInfraError, FactUnavailable):
        return None


def _series(release: str) -> str:
    """Make a glob of a kernel release that survives its minor updates: "6.14.11-4-pve" is "6.14.*-pve"."""
    match = re.match(r"(\d+\.\d+)\.\d+(?:.*?(-[a-z]+))?$", release)
    return f"{match[1]}.*{match[2] or ''}" if match else release


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _list(values: list[str]) -> str:
    return "[" + ", ".join(_text(value) for value in values) + "]"
