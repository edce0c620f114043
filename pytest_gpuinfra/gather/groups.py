"""
All-reduces over groups of hosts: one program on every host at once, first all of them, then, on failure, pairs.

What they said is written into the recording of the group's first host; a replay judges it again, by boot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pytest_gpuinfra.capture.selected import SelectedHost
from pytest_gpuinfra.connection.nested import connect_container
from pytest_gpuinfra.connection.protocol import Connection
from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError
from pytest_gpuinfra.gather.event_lines import EventLines
from pytest_gpuinfra.inventory.groups import CollectiveExpectation
from pytest_gpuinfra.inventory.inventory import container_of
from pytest_gpuinfra.masking import last_of
from pytest_gpuinfra.on_target.plan import ON_CPU, ON_GPUS, Deadlines, HostsPlan, Rendezvous, program_text
from pytest_gpuinfra.subjects.groups.part import HostPart, parse_host_part

ROUNDS = 7
"""Rounds of pairs at most, so that the pairs of a large group stay in proportion to its hosts."""
_ALLOWANCE_S = 60.0


@dataclass(frozen=True)
class Member:
    """
    One host of a group.

    Attributes:
        host: How it is reached.
        devices: What its ranks run on: PCI addresses, or words for the CPU. Shape (ranks,).
        python: The Python that has torch; None for the service's, or the login's python3.
        boot_id: Boot that its facts belong to; "" if unknown.
        trouble: Why nothing can be run there; "" if something can.
        process: (number, start time) of the service's process in whose Python it runs; None for another Python.
    """

    host: SelectedHost
    devices: tuple[str, ...]
    python: str | None
    boot_id: str
    trouble: str
    process: tuple[int, int] | None = None

    @property
    def alias(self) -> str:
        """Its alias."""
        return self.host.alias

    @property
    def address(self) -> str:
        """The address that ssh takes, without user and port."""
        if self.host.way == "local":
            return "127.0.0.1"
        place = self.host.destination.removeprefix("ssh://").rpartition("@")[2].rstrip("/")
        if place.startswith("["):
            return place[1:].partition("]")[0]
        return place.partition(":")[0] if place.count(":") == 1 else place


@dataclass(frozen=True)
class GroupRun:
    """
    One all-reduce over some hosts.

    Attributes:
        expected: Ranks that each host was to bring, by alias, in the group's order.
        parts: What each host saw, by alias; a host that said nothing is missing.
        errors: Why a host is missing, by alias.
    """

    expected: Mapping[str, int]
    parts: Mapping[str, HostPart]
    errors: Mapping[str, str]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Aliases of those that were asked. Shape (n >= 2,)."""
        return tuple(self.expected)


@dataclass(frozen=True, slots=True)
class HostPair:
    """
    Two hosts of a group.

    Attributes:
        group: Name of the group.
        one: Alias of the host on which they meet.
        other: Alias of the other one.
    """

    group: str
    one: str
    other: str

    def __str__(self) -> str:
        return f"{self.one} and {self.other}"


def plan_pairs(hosts: Sequence[str], rounds: int = ROUNDS) -> tuple[tuple[tuple[str, str], ...], ...]:
    """
    Plan rounds of disjoint pairs, as a round-robin tournament does, so that a round's pairs can run at the same time.

    Returns:
        Rounds, each of at most n // 2 pairs; every pair once where n - 1 rounds are enough.
    """
    circle: list[str | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    found = []
    for _ in range(min(rounds, len(circle) - 1)):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        order = {alias: place for place, alias in enumerate(hosts)}
        found.append(
            tuple(
                (one, other) if order[one] < order[other] else (other, one)
                for one, other in pairs
                if one is not None and other is not None
            )
        )
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return tuple(found)


@dataclass
class HostCollective:
    """
    One group of the inventory; everything is run on first use.

    Attributes:
        name: Its name.
        expect: What the inventory says of it.
        members: Its hosts in this run, in order.
        missing: Aliases of those that this run is not about.
        connect: Makes a host's connection.
        recorded: What an earlier run said; None for live hosts.
        on_progress: Called with a line whenever a host begins something.
    """

    name: str
    expect: CollectiveExpectation
    members: tuple[Member, ...]
    missing: tuple[str, ...]
    connect: Callable[[SelectedHost], Connection]
    recorded: Mapping[str, Any] | None = None
    on_progress: Callable[[str], None] = lambda _: None
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def rounds(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        """Pairs that would be run, in rounds."""
        return plan_pairs([member.alias for member in self.members])

    @cached_property
    def whole(self) -> GroupRun:
        """
        The all-reduce over all hosts.

        Raises:
            FactUnavailable: A host is not in this run, or could not be reached; or the results are of another boot.
        """
        self._check()
        return self._run("whole", self.members)

    @cached_property
    def pairs(self) -> Mapping[tuple[str, str], GroupRun]:
        """
        All-reduces over pairs of hosts, those of a round at the same time.

        Raises:
            As `whole`.
        """
        self._check()
        by_alias = {member.alias: member for member in self.members}
        found: dict[tuple[str, str], GroupRun] = {}
        for pairs in self.rounds:
            with ThreadPoolExecutor(len(pairs)) as pool:
                names = [f"{one}+{other}" for one, other in pairs]
                both = [(by_alias[one], by_alias[other]) for one, other in pairs]
                found |= dict(zip(pairs, pool.map(self._run, names, both), strict=True))
        return found

    def gathered(self) -> dict[str, Any] | None:
        """Give what was said, as plain data for the recording; None if nothing was run."""
        if self.recorded is not None:
            return dict(self.recorded)
        if not self.said:
            return None
        return {"expect": self.expect.model_dump(mode="json", exclude_defaults=True), "runs": dict(self.said)}

    def _check(self) -> None:
        if self.missing:
            raise FactUnavailable(
                f"group {self.name}",
                f"this run is not about {', '.join(self.missing)}",
                remedy="name every host of the group by --gpu-host",
            )
        then = None if self.recorded is None else CollectiveExpectation.model_validate(self.recorded["expect"])
        for key in () if then is None else ("members", "backend", "ranks", "environment"):
            recorded, expected = getattr(then, key), getattr(self.expect, key)
            if recorded != expected:
                raise FactUnavailable(
                    f"group {self.name}",
                    f"the recording is of {key} {recorded!r}, and the inventory has {expected!r}",
                    remedy="correct the inventory, or run on the hosts themselves",
                )
        for member in self.members:
            if member.trouble and self.recorded is None:
                raise FactUnavailable(f"group {self.name}", f"{member.alias}: {member.trouble}")

    def _run(self, name: str, members: Sequence[Member]) -> GroupRun:
        if self.recorded is not None:
            said = self.recorded["runs"].get(name)
            if said is None:
                raise FactUnavailable(
                    f"group {self.name}", f"the recording holds no run of {name}", remedy="run on the hosts themselves"
                )
        else:
            said = self.said[name] = self._ask(name, members)
        parts, errors = {}, {}
        for member in members:
            told = said.get(member.alias)
            if told is None:
                raise FactUnavailable(
                    f"group {self.name}",
                    f"the recording's run {name} holds nothing of {member.alias}",
                    remedy="run on the hosts themselves",
                )
            if told.get("error"):
                errors[member.alias] = told["error"]
            if told["lines"]:
                part = parse_host_part(told["lines"], source=f"{member.alias}: hosts_program")
                if part.boot_id and member.boot_id and part.boot_id != member.boot_id:
                    raise FactUnavailable(
                        f"{member.alias}: hosts_program",
                        f"its results belong to boot {part.boot_id}, the facts to boot {member.boot_id}",
                        remedy="run on the hosts themselves: what was proven on one boot is not proven on another",
                    )
                parts[member.alias] = part
        return GroupRun({member.alias: len(member.devices) for member in members}, parts, errors)

    def _ask(self, name: str, members: Sequence[Member]) -> dict[str, dict[str, Any]]:
        """Run the program on every host at once; gives what each said, or why it said nothing."""
        first = members[0]
        expect = self.expect
        plan = HostsPlan(
            Rendezvous(
                expect.addresses.get(first.alias, first.address), expect.port, len(members), expect.join_timeout_s
            ),
            backend=expect.backend,
            environment=expect.environment,
            messages=ON_CPU if expect.backend == "gloo" else ON_GPUS,
            deadlines=Deadlines(
                prepare_s=60.0,
                stall_s=expect.stall_timeout_s,
                arm_s=expect.join_timeout_s + 6 * expect.stall_timeout_s,
                total_s=2 * expect.join_timeout_s + 6 * expect.stall_timeout_s + 120.0,
            ),
        )
        ranks = sum(len(member.devices) for member in members)
        self.on_progress(f"group {self.name}: an all-reduce over {len(members)} hosts ({name}), {ranks} ranks")
        taken: set[str] = set()
        documents = []
        for member in members:
            lock = not member.boot_id or member.boot_id not in taken  # two hosts of a group may be one machine
            taken.add(member.boot_id)
            documents.append(plan.document(member.alias, member.devices, first=member is first, lock=lock))
        with ThreadPoolExecutor(len(members)) as pool:
            timeout_s = plan.deadlines.total_s + _ALLOWANCE_S
            answers = pool.map(lambda member, document: self._ask_one(member, document, timeout_s), members, documents)
            return {member.alias: answer for member, answer in zip(members, answers, strict=True)}

    def _ask_one(self, member: Member, document: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        output = EventLines(f"group {self.name}", self.on_progress)
        said: dict[str, Any] = {"lines": output.lines}
        connection = self.connect(member.host)
        try:
            container = container_of(member.host.spec)
            inside = connection if container is None else connect_container(connection, container)
            result = inside.run_program(
                program_text("hosts"),
                document,
                timeout_s=timeout_s,
                on_output=output.feed,
                python=member.python,
                keep_output=False,
                process=member.process,
            )
            if not output.lines:
                told = last_of(result.stderr.strip(), 600)
                said["error"] = f"its program ended with status {result.exit_status} and said nothing: {told}"
        except GpuInfraError as error:
            said["error"] = error.reason
        finally:
            connection.close()
        return said
