"""An all-reduce over a group of hosts judged: wrong, partition, hang, crash and unknown are told apart and placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pytest_gpuinfra.subjects.groups.part import HostPart, RankStep
from pytest_gpuinfra.subjects.transfers.nccl_edge import NcclEdge
from pytest_gpuinfra.subjects.verdict import Ending, Verdict

_WHY = "a model over these hosts hangs at its start, or computes wrongly"
_EXPECTED = "all hosts meet, and every rank on each of them gets exact sums"


def judge_group(
    expected: Mapping[str, int], parts: Mapping[str, HostPart], errors: Mapping[str, str], subject: str
) -> Verdict:
    """
    Judge one all-reduce over hosts.

    Args:
        expected: Ranks that each host was to bring, by alias.
        parts: What each host saw, by alias.
        errors: Why a host said nothing, or broke off, by alias.
        subject: The group, with its hosts.

    Returns:
        ok: all met, and every rank's sums are right. wrong: sums are wrong; hosts that answered at the start do not
        any more, or could not reach the first one (partition); a rank stopped (hang), was ended by a signal (crash),
        or got an error from the library. error: a host could not be asked, or had no torch, no memory, no GPU.
    """
    for ending, words in (
        ("wrong", _wrong_sums(parts)),
        ("wrong", _stuck(parts)),
        ("wrong", _partition(expected, parts)),
        ("error", _unasked(expected, parts, errors)),
        ("wrong", _crash(parts)),
        ("wrong", _hang(parts)),
        ("wrong", _failed(parts)),
        ("error", _unproven(parts)),
        ("wrong", _odd_world(expected, parts)),
    ):
        if words:
            return _verdict(ending, subject, words)  # type: ignore[arg-type]
    world = sum(expected.values())
    speed = busbw_of(parts)
    each = ", ".join(f"{alias} {count}" for alias, count in expected.items())
    return _verdict(
        "ok",
        subject,
        f"{len(expected)} hosts, world size {world} (ranks: {each}): right"
        + (f", busbw {speed:g} GB/s" if speed is not None else ""),
    )


def judge_group_transport(parts: Mapping[str, HostPart], subject: str, wanted: str) -> Verdict:
    """Judge which transport carried the data between hosts, by NCCL's own log of every rank."""
    found = _between_hosts(parts, lambda edge: f"{edge.transport}/{edge.net}" if edge.net else edge.transport)
    expected = f"{wanted} on every channel between hosts"
    if lacking := _unlogged(parts, found):
        return Verdict(
            ending="error",
            subject=subject,
            observed=lacking,
            expected=expected,
            action="see the all-reduce of this group",
        )
    shown = ", ".join(f"{src} to {dst}: {count} channels via {word}" for (src, dst, word), count in found.items())
    return Verdict(
        ending="ok" if {word for _, _, word in found} == {wanted} else "wrong",
        subject=subject,
        observed=shown,
        expected=expected,
        why="over another network than the one that was built for it, every layer of the model waits",
        action="see NCCL_IB_HCA, NCCL_SOCKET_IFNAME and NCCL_NET in effect, and `ibv_devinfo` on both hosts",
    )


def judge_group_direct(parts: Mapping[str, HostPart], subject: str, wanted: bool | None) -> Verdict:
    """
    Judge whether network cards reach GPU memory directly (GPU Direct RDMA), by NCCL's own log of every rank.

    Args:
        parts: What each host saw, by alias.
        subject: The group.
        wanted: Whether they shall; None for whatever is seen, which is a skip.
    """
    found = _between_hosts(parts, lambda edge: {True: "with", False: "without", None: "other than NET"}[edge.gdr])
    words = {True: "with", False: "without"}
    expected = f"every channel between hosts {words[wanted]} GDRDMA" if wanted is not None else "nothing"
    lacking = _unlogged(parts, found)
    shown = ", ".join(f"{src} to {dst}: {count} channels {word} GDRDMA" for (src, dst, word), count in found.items())
    if wanted is None or lacking:
        return Verdict(
            ending="skip" if wanted is None else "error",
            subject=subject,
            observed=f"nothing is expected; {lacking or shown}" if wanted is None else lacking,
            expected=expected,
            action="see the all-reduce of this group",
        )
    return Verdict(
        ending="ok" if {word for _, _, word in found} == {words[wanted]} else "wrong",
        subject=subject,
        observed=shown,
        expected=expected,
        why="without it every byte between hosts is copied through host memory first",
        action="see whether nvidia_peermem is loaded or dma-buf is there, NCCL_NET_GDR_LEVEL, and ACS on the bridges",
    )


def _between_hosts(parts: Mapping[str, HostPart], word_of: Callable[[NcclEdge], str]) -> Counter[tuple[str, str, str]]:
    """Count channels by (host, host, word)."""
    found: Counter[tuple[str, str, str]] = Counter()
    for part in parts.values():
        if part.met is None:
            continue
        hosts = [alias for alias, ranks in part.met.ranks_by_host.items() for _ in range(ranks)]
        here: Counter[tuple[str, str, str]] = Counter()
        for edge, count in part.edges:
            if max(edge.src, edge.dst) < len(hosts) and hosts[edge.src] != hosts[edge.dst]:
                here[hosts[edge.src], hosts[edge.dst], word_of(edge)] += count
        found |= here  # both ends log a channel: the larger count of the two
    return found


def _unlogged(parts: Mapping[str, HostPart], found: Mapping[tuple[str, str, str], int]) -> str:
    """Say of which host NCCL's log proves no channel to another; "" if of none."""
    hosts = {alias for part in parts.values() if part.met for alias in part.met.ranks_by_host} | set(parts)
    silent = sorted(hosts - {alias for src, dst, _ in found for alias in (src, dst)})
    if not found:
        return "NCCL's log proves no channel between hosts"
    return f"NCCL's log proves no channel between {', '.join(silent)} and another host" if silent else ""


def judge_group_busbw(parts: Mapping[str, HostPart], subject: str, least: float) -> Verdict:
    """Judge the group's busbw against what was measured before."""
    speed = busbw_of(parts)
    expected = f"{least:g} GB/s or more"
    if speed is None:
        return Verdict(
            ending="error",
            subject=subject,
            observed="no speed was measured: the sums were not right, or were not made",
            expected=expected,
            action="see the all-reduce of this group",
        )
    return Verdict(
        ending="ok" if speed >= least else "wrong",
        subject=subject,
        observed=f"{speed:g} GB/s",
        expected=expected,
        why="every layer of a model over these hosts waits for it",
        action="run the pairs one by one, and compare the hosts' link speed, NCCL_IB_HCA and NCCL_SOCKET_IFNAME",
    )


def busbw_of(parts: Mapping[str, HostPart]) -> float | None:
    """Give the busbw of the slowest host, GB/s; None unless every host has one."""
    speeds = [part.speed.busbw_gb_s for part in parts.values() if part.speed is not None]
    return min(speeds) if speeds and len(speeds) == len(parts) else None


def name_bad_hosts(endings: Mapping[tuple[str, str], Ending]) -> str:
    """
    Name the hosts that a group fails by.

    Args:
        endings: Ending of each pair that was run, by the aliases of its two hosts.

    Returns:
        Words: hosts that fail with every other one while the rest are right among themselves; else the pairs.
    """
    hosts = sorted({alias for pair in endings for alias in pair})
    right = {pair for pair, ending in endings.items() if ending == "ok"}
    bad = {pair for pair, ending in endings.items() if ending == "wrong"}
    unknown = {pair for pair, ending in endings.items() if ending not in ("ok", "wrong")}
    alone = [
        alias
        for alias in hosts
        if all(pair in bad for pair in endings if alias in pair) and any(alias not in pair for pair in right)
    ]
    rest = {pair for pair in bad if not set(pair) & set(alone)}
    words = [f"{alias} fails with every other host that it was tried with" for alias in alone]
    words += [f"{one} and {other} fail together" for one, other in sorted(rest)]
    words += [f"{one} and {other} could not be judged" for one, other in sorted(unknown)]
    if not bad and not unknown:
        return "every pair is right: only all hosts together fail"
    if alone and not rest:
        words.append("all others are right among themselves")
    return "; ".join(words)


def judge_with_pairs(verdict: Verdict, endings: Mapping[tuple[str, str], Ending]) -> Verdict:
    """Add what the pairs tell to the verdict of a group that fails."""
    return replace(verdict, observed=f"{verdict.observed}\n    pairs: {name_bad_hosts(endings)}")


def _wrong_sums(parts: Mapping[str, HostPart]) -> str:
    return "; ".join(f"wrong sums: {part.reason}" for part in parts.values() if part.ending == "wrong")


def _stuck(parts: Mapping[str, HostPart]) -> str:
    return "; ".join(
        f"{alias}: not even SIGKILL ended {', '.join(part.stuck)}" for alias, part in parts.items() if part.stuck
    )


def _partition(expected: Mapping[str, int], parts: Mapping[str, HostPart]) -> str:
    first = next(iter(expected))
    lost = {(alias, reach.host): reach.now for alias, part in parts.items() for reach in part.reached if reach.lost}
    words = [f"{src} does not reach {dst} any more ({why})" for (src, dst), why in lost.items()]
    never = {alias: part.trouble for alias, part in parts.items() if part.trouble_kind == "unreachable"}
    words += [f"{alias} never met the others: {why}" for alias, why in never.items()]
    if not words:
        return ""
    counts = Counter(alias for pair in (*lost, *((alias, first) for alias in never)) for alias in pair)
    if never and any(alias != first and alias not in never for alias in parts):
        counts.pop(first, None)  # somebody else did reach it
    most = max(counts.values())
    named = sorted(alias for alias, count in counts.items() if count == most)
    who = f"{named[0]} is cut off" if len(named) == 1 else f"between {' and '.join(named)}"
    return f"partition, {who}: {'; '.join(words)}"


def _unasked(expected: Mapping[str, int], parts: Mapping[str, HostPart], errors: Mapping[str, str]) -> str:
    words = [f"{alias}: {reason}" for alias, reason in errors.items()]
    words += [f"{alias}: it said nothing" for alias in expected if alias not in parts and alias not in errors]
    words += [f"{alias}: {part.skipped_reason}" for alias, part in parts.items() if part.skipped_reason]
    words += [
        f"{alias}: {part.trouble}"
        for alias, part in parts.items()
        if part.trouble_kind not in (None, "unreachable", "rendezvous")
    ]
    words += [
        f"{alias}: {part.reason}"
        for alias, part in parts.items()
        if part.ending == "inconclusive" and part.trouble_kind is None
    ]
    waiting = [f"{alias}: {part.trouble}" for alias, part in parts.items() if part.trouble_kind == "rendezvous"]
    return "; ".join([*words, *waiting])


def _crash(parts: Mapping[str, HostPart]) -> str:
    return "; ".join(f"crash: {part.reason}" for part in parts.values() if part.ending == "crash")


def _hang(parts: Mapping[str, HostPart]) -> str:
    if not any(part.ending == "hang" for part in parts.values()):
        return ""
    waiting = [(alias, step) for alias, part in parts.items() for step in part.ranks if not step.report.done]
    held = [(alias, step) for alias, step in waiting if step.held]
    if held and len(held) < len(waiting):
        return f"hang, the others wait for: {_named(held)}"
    if not waiting:
        return "hang: " + "; ".join(part.reason or "" for part in parts.values() if part.ending == "hang")
    least = min(step.steps for _, step in waiting)
    behind = [(alias, step) for alias, step in waiting if step.steps == least]
    if len(behind) == sum(len(part.ranks) for part in parts.values()):
        return f"hang: no rank goes on; {_named(behind)}"
    return f"hang, behind the others: {_named(behind)}"


def _named(ranks: Sequence[tuple[str, RankStep]]) -> str:
    words = [
        f"rank {step.report.rank} on {alias}{f', {step.held},' if step.held else ''} in: {step.report.stage}"
        for alias, step in ranks[:4]
    ]
    return ", ".join(words) + (f", and {len(ranks) - 4} more" if len(ranks) > 4 else "")


def _failed(parts: Mapping[str, HostPart]) -> str:
    return "; ".join(f"{alias}: {part.reason}" for alias, part in parts.items() if part.ending == "failed")


def _unproven(parts: Mapping[str, HostPart]) -> str:
    return "; ".join(
        f"{alias}: {part.reason or 'it ended without its last event'}"
        for alias, part in parts.items()
        if not part.proven
    )


def _odd_world(expected: Mapping[str, int], parts: Mapping[str, HostPart]) -> str:
    world = sum(expected.values())
    words = []
    for alias, part in parts.items():
        seen = part.met.world_size if part.met else 0
        if seen != world:
            words.append(f"{alias} saw a world of {seen} ranks, not {world}")
        if part.met is not None and dict(part.met.ranks_by_host) != dict(expected):
            words.append(f"{alias} met {dict(part.met.ranks_by_host)}, not {dict(expected)}")
        short = [one for one in part.sums if one.ranks_reported != expected[alias]]
        if short:
            words.append(f"{alias}: {short[0].ranks_reported} of {expected[alias]} ranks compared their sum")
    return "; ".join(words)


def _verdict(ending: Ending, subject: str, observed: str) -> Verdict:
    return Verdict(
        ending=ending,
        subject=subject,
        observed=observed,
        expected=_EXPECTED,
        why=_WHY,
        action="look at the host that the pairs name: its links, routes and firewall, NCCL_SOCKET_IFNAME, NCCL_IB_HCA"
        if ending == "wrong"
        else "see that every host is reached, has torch (--gpu-python), free GPUs, and an address that the others know "
        "(collectives.NAME.addresses)",
    )
