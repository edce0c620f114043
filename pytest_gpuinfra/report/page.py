"""One page of a run, made of its recording: verdicts, findings, what is wrong and why, what is unknown, numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from pytest_gpuinfra.capture.selected import SelectedHost
from pytest_gpuinfra.diagnosis.finding import Finding
from pytest_gpuinfra.diagnosis.gather import findings_of
from pytest_gpuinfra.host.factory import HostFactory
from pytest_gpuinfra.host.facts import HostFacts
from pytest_gpuinfra.inventory.inventory import HostSpec, parse_inventory
from pytest_gpuinfra.options import Settings
from pytest_gpuinfra.record.recording import RecordedHost, Recording
from pytest_gpuinfra.record.snapshot import snapshot_of
from pytest_gpuinfra.report.allure_files import versions_of
from pytest_gpuinfra.report.change_rows import Since
from pytest_gpuinfra.report.endpoint_picture import EndpointFigures, figures_of
from pytest_gpuinfra.report.fleet.fleet import Fleet, make_fleet
from pytest_gpuinfra.report.host_verdict import EACH, IN_FULL, verdict_of
from pytest_gpuinfra.report.message import Message, parse_message
from pytest_gpuinfra.report.pair_matrix import PairMatrix, matrix_of


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
        endpoint: How its endpoint came up and answered; None if none was asked.
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
    endpoint: EndpointFigures | None = None

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
        fleet: The hosts side by side; None of a single one.
        since: What changed since a baseline, by alias; {} without one.
    """

    hosts: tuple[HostPage, ...]
    started_at: str
    plugin: str
    recording: str = ""
    sha256: str = ""
    notes: tuple[str, ...] = field(default=())
    fleet: Fleet | None = None
    since: Mapping[str, Since] = field(default_factory=dict)


def make_page(
    recording: Recording,
    name: str = "",
    sha256: str = "",
    *,
    fleet: Fleet | None = None,
    unknown_allowed: bool = False,
    since: Mapping[str, Since] | None = None,
) -> Page:
    """
    Make the page of a recording that holds results.

    Args:
        recording: The recording.
        name: Its file's name. sha256: Its digest; "" where none was written.
        fleet: Its hosts side by side, if they have been put so already.
        unknown_allowed: Whether a verdict may be good although something could not be observed.
        since: What changed since a baseline, by alias; None without one.
    """
    by_host: dict[str, list[Mapping[str, Any]]] = {alias: [] for alias in recording.hosts}
    for result in recording.results:
        by_host.setdefault(result["host"], []).append(result)
    many = len(recording.hosts) > EACH

    def of(alias: str, *, brief: bool) -> HostPage:
        said = {
            "unknown_allowed": unknown_allowed,
            "cut_short": recording.cut_short,
            "narrowed": recording.narrowed.get(alias, ""),
        }
        return _host(alias, recording.hosts[alias], by_host[alias], brief, said)

    hosts = [of(alias, brief=many) for alias in recording.hosts]
    order = {"bad": 0, "unknown": 1, "good": 2}
    hosts.sort(key=lambda host: order[host.mood])
    if many:
        full = [of(host.alias, brief=False) for host in hosts[:IN_FULL] if host.mood != "good"]
        hosts[: len(full)] = full
    if len(hosts) > 1:
        fleet = fleet or make_fleet(recording, unknown_allowed=unknown_allowed)
    return Page(tuple(hosts), recording.started_at, recording.plugin, name, sha256, fleet=fleet, since=since or {})


def _host(
    alias: str,
    host: RecordedHost,
    results: list[Mapping[str, Any]],
    brief: bool,
    said: Mapping[str, Any],
) -> HostPage:
    """Make a host's part; a brief one is for lists, and reads nothing of what the host answered."""
    spec = parse_inventory({"hosts": {alias: dict(host.spec)}}, alias).hosts[alias]
    counts = Counter(str(result["outcome"]) for result in results)
    nothing = spec.expect.empty
    findings = () if brief else _findings(alias, spec, host)
    verdict, style = verdict_of(counts, nothing_expected=nothing, suspected=bool(findings), **said)
    if brief:
        failed, unknown = (_troubles(results, outcome) for outcome in ("failed", "error"))
        return HostPage(alias, verdict, style, counts, "", {}, (), failed, unknown, {}, {}, None)
    facts = HostFacts(host.capture, spec)
    skipped = Counter(str(r["message"]).removeprefix("Skipped: ") for r in results if r["outcome"] == "skipped")
    return HostPage(
        alias,
        verdict,
        style,
        counts,
        f"{host.capture.reached_by}, {host.capture.taken_at}",
        {} if host.capture.error else versions_of(facts, spec, host.gathered),
        findings,
        _troubles(results, "failed"),
        _troubles(results, "error"),
        dict(skipped.most_common()),
        _numbers(alias, host),
        matrix_of(host.gathered),
        figures_of(host.gathered),
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
            label, _, unit = name.rpartition(" ")
            found[label] = f"{value:.4g} {unit}"
    for mechanism, values in by_mechanism.items():
        found[f"{mechanism}, {len(values)} directions"] = (
            f"{min(values):.0f} to {max(values):.0f} GB/s, median {median(values):.0f}"
        )
    return found


def _findings(alias: str, spec: HostSpec, host: RecordedHost) -> tuple[Finding, ...]:
    """Ask the diagnosis for what everything together means."""
    selected = SelectedHost(alias, "replay", "", spec, "recording", host.capture, host.gathered)
    return findings_of(HostFactory(Settings()).host(selected, host.capture), host.gathered)
