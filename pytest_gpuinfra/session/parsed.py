"""Parsed facts, of the last few hosts only where there are many, and the diagnoses made of them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from pytest_gpuinfra.capture.spool import IN_MEMORY

if TYPE_CHECKING:
    from pytest_gpuinfra.diagnosis.diagnose import Finding
    from pytest_gpuinfra.host.host import GpuHost
    from pytest_gpuinfra.session.session import Session


class ParsedHosts:
    """
    The hosts whose parsed facts are held.

    Args:
        session: Whose.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last: deque[GpuHost] = deque()
        self._diagnosed: dict[str, tuple[dict[str, Any], tuple[Finding, ...]]] = {}

    def watch(self, host: GpuHost) -> GpuHost:
        """Learn of it when a host's facts are parsed, and drop those of another, where there are many."""
        if len(self._session.selected) > IN_MEMORY:
            host.on_facts = self._hold
            if host.has_facts:
                self._hold(host)
        return host

    def _hold(self, host: GpuHost) -> None:
        self._last.append(host)
        if len(self._last) > IN_MEMORY:
            oldest = self._last.popleft()
            if oldest not in self._last:
                if oldest.alias in self._session.wrong and oldest.has_facts:
                    self._diagnosed[oldest.alias] = oldest.gathered(), self._diagnose(oldest)
                oldest.release()

    def findings(self, alias: str) -> tuple[Finding, ...]:
        """
        Say what is wrong with a host; of many, from before its facts were dropped, if nothing was gathered since.

        Returns:
            Findings, causes first; () if nothing wrong was seen. Shape (n,).
        """
        host = self._session.hosts[alias]
        if alias in self._diagnosed:
            gathered, found = self._diagnosed[alias]
            if gathered == host.gathered():
                return found
        return self._diagnose(host)

    def _diagnose(self, host: GpuHost) -> tuple[Finding, ...]:
        from pytest_gpuinfra.diagnosis.gather import findings_of

        return findings_of(host, self._session.gathered.get(host.alias))
