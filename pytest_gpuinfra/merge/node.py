"""One node's report: what its recording holds of it, under the node's own name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_gpuinfra.capture.spool import Spool
from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.host.facts import HostFacts
from pytest_gpuinfra.record.recording import RecordedHost, Recording


@dataclass(frozen=True, slots=True)
class NodeReport:
    """
    One host in one recording.

    Attributes:
        node: Alias, or the place's name where that is "local".
        place: Name of the folder or file.
        file: The recording.
        host: The host. results: Its items.
        began: When the run began. plugin: Version that wrote it.
        ended: pytest's own status; None if it is not known. explained: Whether some item of the run tells why it is 1.
        boot: Its boot id; "" if it is not known. trimmed: What was cut out of it for its size.
        contested: Whether several speak for this host, so that none is believed.
    """

    node: str
    place: str
    file: Path
    host: RecordedHost
    results: tuple[Mapping[str, Any], ...]
    began: str
    plugin: str
    ended: int | None
    explained: bool
    boot: str
    trimmed: tuple[Mapping[str, Any], ...]
    narrowed: str = ""
    contested: bool = False

    @property
    def at(self) -> str:
        """The file, and when its run began."""
        return f"{self.file.parent.name}/{self.file.name} (began {self.began or 'at an unknown time'})"

    def count(self, outcome: str) -> int:
        """Give the number of items that ended so."""
        return sum(result["outcome"] == outcome for result in self.results)


def read_reports(recording: Recording, path: Path, place: str, spool: Spool | None = None) -> list[NodeReport]:
    """
    Take a recording apart by host; the host "local" gets the name of its place.

    Args:
        recording: The recording.
        path: Its file.
        place: Name of the folder or file that it stands in.
        spool: Keeps what hosts answered out of memory; None to keep it there.
    """
    found = []
    explained = any(result["outcome"] in ("failed", "error") for result in recording.results)
    for alias, host in recording.hosts.items():
        node = place if alias == "local" else alias
        results = tuple(rename_result(result, alias, node) for result in recording.results if result["host"] == alias)
        capture = replace(host.capture, alias=node)
        boot = _boot(HostFacts(capture))
        if spool is not None:
            key = hashlib.sha256(f"{path} {alias}".encode()).hexdigest()
            capture = replace(spool.put(replace(capture, alias=key)), alias=node)
        renamed = RecordedHost(host.spec, capture, host.gathered)
        begin = f"hosts/{alias}/"
        trimmed = tuple(
            {**row, "where": f"hosts/{node}/{str(row['where']).removeprefix(begin)}"}
            for row in recording.trimmed
            if str(row["where"]).startswith(begin)
        )
        run = recording.started_at, recording.plugin, recording.exit_status, explained
        narrowed = recording.narrowed.get(alias, "")
        found.append(NodeReport(node, place, path, renamed, results, *run, boot, trimmed, narrowed))
    return found


def _boot(facts: HostFacts) -> str:
    try:
        return facts.boot_id
    except GpuInfraError:
        return ""


def rename_result(result: Mapping[str, Any], alias: str, node: str) -> Mapping[str, Any]:
    """Give a result under another alias."""
    if alias == node:
        return result
    return {
        **result,
        "host": node,
        "id": rename_id(str(result["id"]), alias, node),
        "message": re.sub(rf"(?<![\w/.-]){re.escape(alias)}(?=: )", node, str(result["message"])),
    }


def rename_id(identity: str, alias: str, node: str) -> str:
    """Give a node id, or an item's name, under another alias: "test_x[local-01:00.0]" of "local" as "node-a"."""
    return re.sub(rf"\[{re.escape(alias)}(?=[]~-])", f"[{node}", identity)
