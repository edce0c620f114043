"""One page of a run, made of its recording: verdicts, findings, what is wrong and why, what is unknown, numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from pytest_gpuinfra.diagnosis_input import findings_of
from pytest_gpuinfra.host import GpuHost
from pytest_gpuinfra.host_facts import HostFacts
from pytest_gpuinfra.inventory import HostSpec, parse_inventory
from pytest_gpuinfra.recording import RecordedHost, Recording
from pytest_gpuinfra.report.allure_files import versions_of
from pytest_gpuinfra.report.message import Message, parse_message
from pytest_gpuinfra.report.pair_matrix import PairMatrix, matrix_of
from pytest_gpuinfra.report.verdict import verdict_of
from pytest_gpuinfra.run import Run, Settings
from pytest_gpuinfra.selection import SelectedHost
from pytest_gpuinfra.snapshot import snapshot_of
from pytest_gpuinfra.verdict.diagnosis_finding import Finding


@dataclass(frozen=True, slots=True)
class Trouble:
    """
    Items that say the same.

    Attributes:
        message: What they say.
        items: Their names.
    """

    message: Message
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostPage:
    """
    What the page says of one host.

    Attributes:
        alias: Its name.
        verdict: In words. style: rich's style of it; its colour tells good, bad or unknown.
        counts: Items by outcome.
        reached: How and when it was reached.
        versions: Kernel, driver, model, ... by name.
        findings: What the diagnosis makes of it, causes first.
        failed: What is wrong. unknown: What could not be observed. skipped: Why items were skipped, with how many.
        numbers: Measured, by name.
        matrix: Its GPU pairs; None if none was tried.
    """

    alias: str
    verdict: str
    style: str
    counts: Mapping[str, int]
    reached: str
    versions: Mapping[str, str]
    findings: tuple[Finding, ...]
    failed: tuple[Trouble, ...]
    unknown: tuple[Trouble, ...]
    skipped: Mapping[str, int]
    numbers: Mapping[str, str]
    matrix: PairMatrix | None

    @property
    def mood(self) -> str:
        """ "good", "bad" or "unknown"."""
        return "bad" if "red" in self.style else "good" if "green" in self.style else "unknown"

    @property
    def because(self) -> str:
        """The first reason in one line; "" where nothing is wrong."""
        if self.findings:
            return self.findings[0].title
        worst = [*self.failed, *self.unknown][:1]
        return worst[0].message.brief.removeprefix(f"{self.alias}: ") if worst else ""


@dataclass(frozen=True, slots=True)
class Page:
    """
    The page.

    Attributes:
        hosts: The worst first.
        started_at: UTC, ISO 8601. plugin: Version that wrote the recording.
        recording: Its file's name. sha256: Its digest; "" where none was written.
    """

    hosts: tuple[HostPage, ...]
    started_at: str
    plugin: str
    recording: str = ""
    sha256: str = ""
    notes: tuple[str, ...] = field(default=())


def make_page(recording: Recording, name: str = "", sha256: str = "") -> Page:
    """Make the page of a recording that holds results."""
    hosts = [_host(alias, host, recording) for alias, host in recording.hosts.items()]
    order = {"bad": 0, "unknown": 1, "good": 2}
    hosts.sort(key=lambda host: order[host.mood])
    return Page(tuple(hosts), recording.started_at, recording.plugin, name, sha256)


def _host(alias: str, host: RecordedHost, recording: Recording) -> HostPage:
    spec = parse_inventory({"hosts": {alias: dict(host.spec)}}, alias).hosts[alias]
    results = [result for result in recording.results if result["host"] == alias]
    counts = Counter(str(result["outcome"]) for result in results)
    verdict, style = verdict_of(counts, nothing_expected=spec.expect.empty)
    facts = HostFacts(host.capture, spec)
    skipped = Counter(str(r["message"]).removeprefix("Skipped: ") for r in results if r["outcome"] == "skipped")
    return HostPage(
        alias,
        verdict,
        style,
        counts,
        f"{host.capture.reached_by}, {host.capture.taken_at}",
        {} if host.capture.error else versions_of(facts, spec, host.gathered),
        _findings(alias, spec, host),
        _troubles(results, "failed"),
        _troubles(results, "error"),
        dict(skipped.most_common()),
        _numbers(alias, host),
        matrix_of(host.gathered),
    )


def _troubles(results: list[Mapping[str, Any]], outcome: str) -> tuple[Trouble, ...]:
    groups: dict[Message, list[str]] = {}
    for result in results:
        if result["outcome"] == outcome:
            message = parse_message(str(result["message"]), str(result["id"]))
            groups.setdefault(message, []).append(str(result["id"]).rpartition("::")[2])
    return tuple(Trouble(message, tuple(items)) for message, items in groups.items())


def _numbers(alias: str, host: RecordedHost) -> dict[str, str]:
    numbers = snapshot_of(alias, host.spec, host.capture, host.gathered).numbers
    found: dict[str, str] = {}
    by_mechanism: dict[str, list[float]] = {}
    for name, value in numbers.items():
        area, _, rest = name.partition("/")
        if area == "pair":
            by_mechanism.setdefault(rest.partition("/")[2].removesuffix(" GB/s"), []).append(value)
        else:
            found[name.removesuffix(" GB/s")] = f"{value:g} GB/s"
    for mechanism, values in by_mechanism.items():
        found[f"{mechanism}, {len(values)} directions"] = (
            f"{min(values):.0f} to {max(values):.0f} GB/s, median {median(values):.0f}"
        )
    return found


def _findings(alias: str, spec: HostSpec, host: RecordedHost) -> tuple[Finding, ...]:
    """Ask the diagnosis for what everything together means."""
    selected = SelectedHost(alias, "replay", "", spec, "recording", host.capture, host.gathered)
    run = Run(Settings(), {alias: selected})
    replayed = GpuHost(selected, host.capture, run.connect, run.serving, run.gpu_runs, run.participation)
    return findings_of(replayed, host.gathered)
