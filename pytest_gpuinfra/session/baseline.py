"""What hosts are compared with: an earlier recording, or themselves before this session rebooted them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError
from pytest_gpuinfra.record.recording import RecordedHost, Recording

if TYPE_CHECKING:
    from pytest_gpuinfra.host.host import GpuHost
    from pytest_gpuinfra.record.compare import HostComparison


class Baseline:
    """
    The baseline of one session.

    Args:
        recording: An earlier recording; None without `--gpu-baseline`.
        started_at: When the session began: UTC, ISO 8601.
        allowed_changes: Changes that were meant, as `compare.compare` takes them.

    Attributes:
        recording: What hosts are compared with; None where there is nothing.
        before: Hosts as they were before this session rebooted them, by alias; empty if it was given a recording.
        boots_before: Ids of the boots that this session ended, by alias.
    """

    def __init__(self, recording: Recording | None, started_at: str, allowed_changes: tuple[str, ...] = ()) -> None:
        self.recording = recording
        self.before: dict[str, RecordedHost] = {}
        self.boots_before: dict[str, str] = {}
        self._started_at = started_at
        self._allowed_changes = allowed_changes
        self._last: tuple[tuple[str, int], HostComparison] | None = None

    def boots(self, alias: str) -> tuple[str, ...]:
        """Give the id of the boot that a host was recorded in; () if it is not known."""
        old = self.recording.hosts.get(alias) if self.recording else None
        if old is None:
            return ()
        from pytest_gpuinfra.host.facts import HostFacts

        try:
            return (HostFacts(old.capture).boot_id,)
        except GpuInfraError:
            return ()

    def list_areas(self, hosts: Iterable[GpuHost]) -> None:
        """Note for each host which areas of facts the baseline holds; hosts as they were before a reboot are one."""
        if self.recording is None and self.before:
            self.recording = Recording(dict(self.before), (), self._started_at)
        if self.recording is None:
            return
        from pytest_gpuinfra.record.snapshot import snapshot_of

        for host in hosts:
            old = self.recording.hosts.get(host.alias)
            if old is not None:
                found = snapshot_of(host.alias, old.spec, old.capture, old.gathered)
                names = [*found.facts, *found.unknown]
                host.baseline_areas = tuple(dict.fromkeys(name.partition("/")[0].replace(" ", "-") for name in names))

    def compare(self, host: GpuHost, gathered: Mapping[str, Any] | None = None) -> HostComparison:
        """
        Compare a host with the baseline; the last comparison is held until more has been gathered.

        Args:
            host: One of the session's.
            gathered: What was gathered of it elsewhere, by a worker of xdist; None for what was gathered here.

        Raises:
            FactUnavailable: The baseline does not hold the host.
        """
        from pytest_gpuinfra.record.compare import compare

        host.capture.check_reached()
        if self.recording is None or host.alias not in self.recording.hosts:
            raise FactUnavailable(
                f"{host.alias}: baseline", "it does not hold this host", remedy="record the host first"
            )
        gathered = gathered or host.gathered()
        known = (host.alias, len(str(gathered)))
        if self._last is None or self._last[0] != known:
            before = Recording({host.alias: self.recording.hosts[host.alias]}, (), self.recording.started_at)
            now = RecordedHost(host.selected.spec.plain(), host.capture, gathered)
            after = Recording({host.alias: now}, (), self._started_at)
            self._last = known, compare(before, after, allow=self._allowed_changes).hosts[0]
        return self._last[1]
