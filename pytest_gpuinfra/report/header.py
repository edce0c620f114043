"""The header: what was reached, how, how long it took, and what it is judged against."""

from __future__ import annotations

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.host.host import GpuHost
from pytest_gpuinfra.report.escaped import readable
from pytest_gpuinfra.session.session import Session

SHOWN = 12
"""Hosts shown one by one; beyond that only those that were not reached."""


def header_lines(session: Session) -> list[str]:
    """Give one line a host, and what the inventory may regret."""
    hosts = list(session.hosts.values())
    failed = [host for host in hosts if host.capture.error]
    lines = []
    if session.share_of:
        lines.append(f"gpuinfra: {session.share_of}")
    shown = hosts if len(hosts) <= SHOWN else failed[:SHOWN]
    if len(hosts) > SHOWN:
        lines.append(
            f"gpuinfra: {len(hosts) - len(failed)} of {len(hosts)} hosts reached in {session.captures.took_s:.1f} s, "
            f"{sum(host.capture.round_trips for host in hosts)} round trips; level {session.settings.level}"
        )
    lines += [f"gpuinfra: {_line(host)}" for host in shown]
    if len(hosts) > SHOWN and len(failed) > SHOWN:
        lines.append(f"gpuinfra: and {len(failed) - SHOWN} more that were not reached")
    if session.no_inventory and any(host.expect.empty for host in hosts):
        lines.append(f"gpuinfra: {session.no_inventory}")
    for host in hosts:
        lines += [f"gpuinfra: {host.alias}: warning: {warning}" for warning in host.expect.warnings()]
    return [readable(line) for line in lines]


def _line(host: GpuHost) -> str:
    capture = host.capture
    if capture.error:
        return f"{host.alias} NOT REACHED: {capture.error[1].removeprefix(f'{host.alias}: ')}"
    if host.selected.way == "replay":
        reached = f"{host.alias} replayed, taken {capture.taken_at} by {capture.reached_by}"
    else:
        trips = f"{capture.round_trips} round trip{'s' if capture.round_trips != 1 else ''}"
        reached = f"{host.alias} reached by {capture.reached_by} in {capture.took_s:.2f} s, {trips}"
        if capture.uid not in (0, None):
            reached += f", as uid {capture.uid}"
    basis = f"expected by {host.expectation_from}" if not host.expect.empty else "nothing expected: judged as observed"
    return f"{reached}: {'; '.join([*_facts(host), basis])}"


def _facts(host: GpuHost) -> list[str]:
    words = []
    try:
        words.append(f"kernel {host.facts.kernel_release}")
        words.append(f"up {_duration(host.facts.uptime_s)}")
        gpus = len(host.facts.pci_functions.gpus)
        words.append(f"{gpus} GPU{'s' if gpus != 1 else ''} seen")
    except GpuInfraError as error:
        words.append(error.reason)
    return words


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
