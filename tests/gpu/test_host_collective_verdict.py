"""All-reduces over hosts judged, by events as the program writes them: every ending, and which host is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_gpuinfra.capture.selected import SelectedHost
from pytest_gpuinfra.errors import InventoryError, ParseError
from pytest_gpuinfra.gather.groups import Member, plan_pairs
from pytest_gpuinfra.inventory.inventory import HostSpec, parse_inventory
from pytest_gpuinfra.subjects.groups.judge import (
    busbw_of,
    judge_group,
    judge_group_busbw,
    judge_group_transport,
    judge_with_pairs,
    name_bad_hosts,
)
from pytest_gpuinfra.subjects.groups.part import HostPart, parse_host_part

HOSTS = ("a", "b", "c")
EXPECTED = dict.fromkeys(HOSTS, 2)
RING = ("NET/IB/0", "NET/IB/0/GDRDMA")


def rank(number: int, **changes: Any) -> dict[str, Any]:
    """One rank as the program reports it."""
    return {
        "rank": number, "pci": "0000:01:00.0", "pid": 100 + number, "stage": "leaving", "done": True,
        "exit_status": None, "signal": None, "error": None, "last_line": "", "silent_s": 0.1, "steps": 9,
        "state": None, **changes,
    }  # fmt: skip


def one_sum(wrong: int = 0, ranks: int = 2) -> dict[str, Any]:
    """One sum of a host's ranks."""
    return {
        "type": "int32", "size_bytes": 4096, "repeat": 1, "elements": 1024, "ranks_reported": ranks,
        "wrong_elements": wrong, "wrong_by_rank": {"1": wrong} if wrong else {}, "unreduced_elements": 0,
        "zero_elements": 0, "first_wrong_index": 0 if wrong else None,
    }  # fmt: skip


def lines_of(
    place: int,
    *,
    boot_id: str | None = None,
    ending: str | None = "right",
    reason: str | None = None,
    met: dict[str, int] | None = EXPECTED,
    error: tuple[str, str] | None = None,
    via: tuple[str, ...] = RING,
    ranks: list[dict[str, Any]] | None = None,
    reached: dict[str, tuple[str, str]] | None = None,
    busbw: float = 40.0,
    end: bool = True,
    skipped: str | None = None,
    sums: list[dict[str, Any]] | None = None,
) -> list[str]:
    """What one host said, line by line."""
    first = 2 * place
    events: list[dict[str, Any]] = [{"event": "progress", "text": "x"}]
    if skipped is not None:
        events.append({"event": "skipped", "reason": skipped})
    else:
        events.append(
            {
                "event": "host",
                "schema": 1,
                "boot_id": boot_id or f"boot-{place}",
                "about": {"torch": "2.11"},
                "devices": ["x", "y"],
            }
        )
    if met is not None and skipped is None:
        hosts = [{"alias": alias, "ranks": count} for alias, count in met.items()]
        events.append(
            {"event": "met", "node_rank": place, "first_rank": first, "world_size": sum(met.values()), "hosts": hosts,
             "took_s": 1.0}
        )  # fmt: skip
    if error is not None:
        events.append({"event": "error", "fatal": True, "kind": error[0], "reason": error[1]})
    if ending is not None and skipped is None:
        good = ending == "right"
        made = {"right": [one_sum()], "wrong": [one_sum(3)]}.get(ending, [])
        speed = {"type": "int32", "size_bytes": 4096, "time_s": 1e-3, "algbw_gb_s": busbw, "busbw_gb_s": busbw}
        edges = [{"src_rank": first + 1, "dst_rank": (first + 2) % 6, "via": word, "count": 4} for word in via]
        edges += [{"src_rank": first, "dst_rank": first + 1, "via": "P2P/CUMEM", "count": 8}]
        events.append(
            {
                "event": "sums", "ending": ending, "reason": reason, "library": {"path": None, "version": "2.28.9"},
                "runs": made if sums is None else sums,
                "speed": speed if good else None, "edges": edges, "log": [],
                "ranks": ranks if ranks is not None else [rank(first), rank(first + 1)],
                "reached": [{"alias": alias, "at_start": start, "now": now}
                            for alias, (start, now) in (reached or {}).items()],
            }
        )  # fmt: skip
    if end:
        events.append({"event": "end", "complete": True, "took_s": 5.0, "stuck": []})
    return [json.dumps(event) for event in events]


def part(place: int, **changes: Any) -> HostPart:
    """What one host said, read."""
    return parse_host_part(lines_of(place, **changes))


def parts(**changes: HostPart) -> dict[str, HostPart]:
    """Parts of all three hosts, healthy but for those given."""
    return {alias: changes.get(alias) or part(place) for place, alias in enumerate(HOSTS)}


def waits(place: int, stage: str = "waiting for an all-reduce", steps: int = 5, **changes: Any) -> list[dict[str, Any]]:
    """Ranks that wait."""
    return [rank(2 * place + number, done=False, stage=stage, steps=steps, **changes) for number in range(2)]


NO_WAY = ("unreachable", "no way to 10.0.0.1 port 29400: No route to host")
ALONE = ("rendezvous", "not all of the 3 hosts came within 90 s")
STOPPED = [rank(4, done=False, stage="calling x", state="T"), rank(5, done=False, stage="calling x", state="S")]

# name: (parts, errors, ending, words)
TABLE: dict[str, tuple[dict[str, HostPart], dict[str, str], str, tuple[str, ...]]] = {
    "healthy": (parts(), {}, "ok", ("3 hosts, world size 6 (ranks: a 2, b 2, c 2): right, busbw 40 GB/s",)),
    "a wrong sum counts more than what follows from it":
        (parts(b=part(1, ending="wrong", reason="rank 3 (b) holds 3 wrong"), a=part(0, ending="hang", ranks=waits(0))),
         {}, "wrong", ("wrong sums: rank 3 (b)",)),
    "a host that answered and does not any more":
        (parts(a=part(0, ending="hang", ranks=waits(0), reached={"b": ("", ""), "c": ("", "no answer within 2 s")}),
               b=part(1, ending="failed", reason="x", reached={"a": ("", ""), "c": ("", "no answer within 2 s")})),
         {"c": "the connection broke off"}, "wrong",
         ("partition, c is cut off", "a does not reach c any more (no answer within 2 s)")),
    "two hosts that lost each other":
        ({"a": part(0, ending="hang", ranks=waits(0), reached={"b": ("", "No route to host")}),
          "b": part(1, ending="hang", ranks=waits(1), reached={"a": ("", "No route to host")})},
         {}, "wrong", ("partition, between a and b",)),
    "never reachable from the start proves no partition, and the hang stands":
        (parts(a=part(0, ending="hang", reason="h", ranks=waits(0), reached={"c": ("timed out", "timed out")}),
               b=part(1, ending="hang", reason="h", ranks=waits(1)), c=part(2, ending="hang", ranks=waits(2))),
         {}, "wrong", ("hang: no rank goes on", "rank 0 on a in: waiting", "and 2 more")),
    "one host has no way to the first one":
        (parts(a=part(0, ending="inconclusive", met=None, error=ALONE), b=part(1, ending="inconclusive", met=None,
                                                                               error=ALONE),
               c=part(2, ending="inconclusive", met=None, error=NO_WAY)),
         {}, "wrong", ("partition, c is cut off", "c never met the others: no way to 10.0.0.1")),
    "nobody has a way to the first one":
        (parts(a=part(0, ending="inconclusive", met=None, error=ALONE),
               b=part(1, ending="inconclusive", met=None, error=NO_WAY),
               c=part(2, ending="inconclusive", met=None, error=NO_WAY)),
         {}, "wrong", ("partition, a is cut off",)),
    "a host that we do not reach is unknown, and so is what the others say":
        (parts(a=part(0, ending="inconclusive", met=None, error=ALONE), b=part(1, ending="failed", reason="closed")),
         {"c": "not reached by ssh"}, "error", ("c: not reached by ssh",)),
    "no torch": (parts(b=part(1, skipped="python3 has no usable torch")), {}, "error", ("b: python3 has no",)),
    "too little memory":
        (parts(b=part(1, ending="inconclusive", reason="rank 0 (b): too little free memory"),
               a=part(0, ending="inconclusive", met=None, error=ALONE)),
         {}, "error", ("b: rank 0 (b): too little free memory; a: not all of the 3 hosts came",)),
    "a name that only the controller knows":
        (parts(b=part(1, ending="inconclusive", met=None, error=("address", "node-a is not known here"))),
         {}, "error", ("b: node-a is not known here",)),
    "lock": (parts(c=part(2, ending=None, error=("lock", "another run kept the lock"))), {}, "error",
             ("c: another run kept the lock",)),
    "one host said nothing": ({"a": part(0), "b": part(1)}, {}, "error", ("c: it said nothing",)),
    "a rank that a signal ended":
        (parts(b=part(1, ending="crash", reason="rank 3 (b) was ended by SIGSEGV"), a=part(0, ending="failed",
                                                                                          reason="closed by peer")),
         {}, "wrong", ("crash: rank 3 (b) was ended by SIGSEGV",)),
    "a rank that stays behind":
        (parts(a=part(0, ending="hang", ranks=waits(0)), b=part(1, ending="hang", ranks=waits(1)),
               c=part(2, ending="hang", ranks=waits(2, "calling an all-reduce", 4))),
         {}, "wrong", ("hang, behind the others: rank 4 on c in: calling an all-reduce, rank 5 on c",)),
    "a rank that is stopped while all of them call":
        (parts(a=part(0, ending="hang", ranks=waits(0, "calling x")),
               b=part(1, ending="hang", ranks=waits(1, "calling x")), c=part(2, ending="hang", ranks=STOPPED)),
         {}, "wrong", ("hang, the others wait for: rank 4 on c, stopped by a signal, in: calling x",)),
    "all ranks are stuck in the kernel":
        ({"a": part(0, ending="hang", ranks=waits(0, state="D"))}, {}, "error", ("b: it said nothing",)),
    "a hang of which no rank is open":
        (parts(a=part(0, ending="hang", reason="not ready within 60 s")), {}, "wrong",
         ("hang: not ready within 60 s",)),
    "an error of the library":
        (parts(a=part(0, ending="failed", reason="rank 0 (a): NCCL error")), {}, "wrong",
         ("a: rank 0 (a): NCCL error",)),
    "a program that was cut off": (parts(c=part(2, end=False)), {}, "error", ("c: it ended without its last event",)),
    "another world":
        (parts(c=part(2, met={"a": 2, "b": 2})), {}, "wrong", ("c saw a world of 4 ranks, not 6", "c met")),
    "a rank that compared nothing":
        (parts(b=part(1, sums=[one_sum(ranks=1)])), {}, "wrong", ("b: 1 of 2 ranks compared their sum",)),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_ending_and_the_host_that_is_named(name: str) -> None:
    """Partition, hang, crash, wrong and unknown are told apart; the cause comes before what follows from it."""
    said, errors, ending, words = TABLE[name]
    expected = {
        alias: 2 for alias in HOSTS if alias in said or alias in errors or name != "two hosts that lost each other"
    }
    verdict = judge_group(expected, said, errors, "x")

    assert verdict.ending == ending, verdict
    assert [word for word in words if word not in verdict.observed] == [], verdict.observed


@pytest.mark.parametrize(
    ("said", "wanted", "ending", "words"),
    [
        (parts(), "NET/IB", "ok", "a to b: 8 channels via NET/IB"),
        (parts(), "NET/Socket", "wrong", "via NET/IB"),
        (parts(b=part(1, via=("NET/Socket/0",))), "NET/IB", "wrong", "b to c: 4 channels via NET/Socket"),
        (parts(b=part(1, via=("NET/AWS Libfabric/0",))), "NET/IB", "wrong", "via NET/AWS Libfabric"),
        (parts(b=part(1, via=("SHM/direct/direct",))), "NET/IB", "wrong", "b to c: 4 channels via SHM"),
        ({alias: part(place, via=()) for place, alias in enumerate(HOSTS)}, "NET/IB", "error", "proves no channel"),
        ({"a": part(0, met=None, ending="inconclusive", error=ALONE)}, "NET/IB", "error", "proves no channel"),
    ],
)
def test_transport_between_hosts_is_proven_by_the_log(
    said: dict[str, HostPart], wanted: str, ending: str, words: str
) -> None:
    """What goes on within a host (P2P here) does not count; what goes between hosts has to be what was built for it."""
    verdict = judge_group_transport(said, "x", wanted)

    assert verdict.ending == ending, verdict
    assert words in verdict.observed


@pytest.mark.parametrize(
    ("said", "least", "ending"),
    [
        (parts(b=part(1, busbw=38.0)), 38.0, "ok"),
        (parts(b=part(1, busbw=37.0)), 38.0, "wrong"),
        (parts(b=part(1, ending="failed", reason="x")), 38.0, "error"),
        ({}, 38.0, "error"),
    ],
)
def test_slowest_host_sets_the_speed(said: dict[str, HostPart], least: float, ending: str) -> None:
    """A speed of some hosts is none."""
    assert judge_group_busbw(said, "x", least).ending == ending
    assert (busbw_of(said) is None) == (ending == "error")


@pytest.mark.parametrize(
    ("endings", "words"),
    [
        ({("a", "b"): "ok", ("a", "c"): "wrong", ("b", "c"): "wrong"},
         "c fails with every other host that it was tried with; all others are right among themselves"),
        ({("a", "b"): "wrong", ("a", "c"): "ok", ("b", "c"): "ok"}, "a and b fail together"),
        ({("a", "b"): "ok", ("a", "c"): "ok", ("b", "c"): "ok"}, "every pair is right: only all hosts together fail"),
        ({("a", "b"): "wrong", ("a", "c"): "wrong", ("b", "c"): "wrong"},
         "a and b fail together; a and c fail together; b and c fail together"),
        ({("a", "b"): "ok", ("a", "c"): "error", ("b", "c"): "wrong"},
         "b and c fail together; a and c could not be judged"),
    ],
)  # fmt: skip
def test_bad_host_is_what_the_failing_pairs_have_in_common(endings: dict[Any, Any], words: str) -> None:
    """A host is named only if it fails with everybody while others are right without it."""
    assert name_bad_hosts(endings) == words


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_every_pair_is_planned_once_in_rounds_of_disjoint_pairs(count: int) -> None:
    """n(n-1)/2 pairs; the first of a pair is the one that stands first in the group."""
    hosts = [f"n{number}" for number in range(count)]
    rounds = plan_pairs(hosts)
    pairs = [pair for pairs in rounds for pair in pairs]

    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    assert all(len({alias for pair in pairs for alias in pair}) == 2 * len(pairs) for pairs in rounds)
    assert all(hosts.index(one) < hosts.index(other) for one, other in pairs)


def test_pairs_of_a_large_group_stay_in_proportion() -> None:
    """100 hosts: 7 rounds, 350 pairs, each host in seven of them."""
    pairs = [pair for pairs in plan_pairs([str(number) for number in range(100)]) for pair in pairs]

    assert len(pairs) == 350
    assert {sum(alias in pair for pair in pairs) for alias in map(str, range(100))} == {7}


@pytest.mark.parametrize(
    ("way", "destination", "address"),
    [
        ("ssh", "root@192.0.2.10", "192.0.2.10"),
        ("ssh", "ssh://root@node-a:2222", "node-a"),
        ("ssh", "ssh://root@[2001:db8::1]:22", "2001:db8::1"),
        ("ssh", "node-a", "node-a"),
        ("local", "", "127.0.0.1"),
    ],
)
def test_address_is_the_one_that_ssh_takes(way: str, destination: str, address: str) -> None:
    """Without user and port."""
    assert Member(SelectedHost("a", way, destination, HostSpec()), (), None, "", "").address == address


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"hosts": ["a"]}, "`hosts` must be two or more"),
        ({"hosts": ["a", "a"]}, "`hosts` names 'a' twice"),
        ({"hosts": ["n[1-3]", "n2"]}, "`hosts` names 'n2' twice"),
        ({"hosts": ["a", "b"], "backend": "gloo", "transport": "NET/IB"}, "has none"),
        ({"hosts": ["a", "b"], "transport": "IB"}, "collectives.rack.transport"),
        ({"hosts": ["a", "b"], "hots": 1}, "unknown key"),
    ],
)
def test_contradictions_of_a_group_are_refused(keys: dict[str, Any], words: str) -> None:
    """With the key, before any host is touched."""
    with pytest.raises(InventoryError) as error:
        parse_inventory({"collectives": {"rack": keys}}, "gpuinfra.toml")
    assert words in str(error.value)


def test_hostlist_stands_for_its_hosts() -> None:
    """As everywhere in the inventory."""
    found = parse_inventory({"collectives": {"rack": {"hosts": ["n[1-2]", "m"]}}}, "x").collectives["rack"]
    assert found.members == ("n1", "n2", "m")


@pytest.mark.parametrize(
    "event",
    [
        {"event": "host", "schema": 2},
        {"event": "sums", "ending": "splendid"},
        {"event": "sums", "ending": "right", "runs": []},
        {"event": "riddle"},
    ],
)
def test_unknown_shapes_are_no_observations(event: dict[str, Any]) -> None:
    """Another schema, word or event is a parse error, never a pass."""
    with pytest.raises(ParseError):
        parse_host_part([json.dumps(event)])


def test_connection_without_a_transport_is_no_observation() -> None:
    """NCCL's line ended early."""
    with pytest.raises(ParseError, match="via is ''"):
        part(0, via=("",))


def test_pairs_join_the_groups_own_message() -> None:
    """What was seen with all hosts, and whom the pairs name."""
    verdict = judge_group(EXPECTED, parts(a=part(0, ending="failed", reason="NCCL error")), {}, "x")
    joined = judge_with_pairs(verdict, {("a", "b"): "wrong", ("a", "c"): "wrong", ("b", "c"): "ok"})

    assert joined.ending == "wrong"
    assert joined.observed.startswith("a: NCCL error\n    pairs: a fails with every other host")
