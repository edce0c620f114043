"""Peer transfers and all-reduces judged: what arrived, by which transport, and how fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_gpuinfra.subjects.transfers.all_reduce import AllReduceRun
from pytest_gpuinfra.subjects.transfers.program import GpuProgramRun
from pytest_gpuinfra.subjects.transfers.transfer import PeerTransfer
from pytest_gpuinfra.subjects.verdict import Verdict

_CORRUPT = (
    "the copy returned success and the data is not there: a model split over these GPUs computes with stale memory, "
    "and NCCL over peer-to-peer hangs or sums wrongly"
)
_ACTION = (
    "set NCCL_P2P_DISABLE=1 for the service and switch the engine's own all-reduce off "
    "(SGLang: --disable-custom-all-reduce), or take IOMMU translation away where nothing needs it; then run again"
)
_UNOBSERVED = "free the GPUs' memory or give the program the devices, then run again"
TRANSPORT_OF_ARM = {"shm": frozenset({"SHM"}), "p2p": frozenset({"P2P"})}
"""Transports that each arm must be seen to use, on every channel."""


def judge_program(run: GpuProgramRun, subject: str, devices: Sequence[str]) -> Verdict:
    """
    Judge what a program says of itself: that it came to its end, on these GPUs, with everything that it planned.

    Args:
        run: What it said.
        subject: The program, with the host.
        devices: PCI addresses of the GPUs that it was to use; () for every device that CUDA shows.

    Returns:
        ok. wrong: a process hangs in the driver so that not even SIGKILL ends it. error: anything else, since what
        such a run says of its copies and sums may be a part of the truth.
    """
    expected = "its last event, every device usable, and a result for everything planned"
    stuck = [*run.stuck, *(one for arm in run.runs for one in arm.stuck)]
    faults = [*(f"{one.kind}: {one.reason}" for one in run.troubles), *run.faults(devices)]
    if run.incomplete_reason and not any(run.incomplete_reason in fault for fault in faults):
        faults.insert(0, run.incomplete_reason)
    if stuck:
        return Verdict(
            ending="wrong",
            subject=subject,
            observed="; ".join([f"not even SIGKILL ended {', '.join(stuck)}", *faults]),
            expected=expected,
            why="a process hangs in the driver, and keeps its GPU and its memory",
            action="read the kernel log for Xids and hung tasks; the machine needs a reboot",
        )
    if faults:
        return Verdict(
            ending="error", subject=subject, observed="; ".join(faults), expected=expected, action=_UNOBSERVED
        )
    plan = run.plan
    told = f"{len(plan.devices)} GPUs, {plan.tasks} transfers, {len(plan.arms)} all-reduce arms" if plan else ""
    return Verdict(ending="ok", subject=subject, observed=f"complete: {told}", expected=expected)


def judge_logged(faults: str, subject: str) -> Verdict:
    """Judge what the kernel logged while our programs had the GPUs at work, from the faults in words; "" for none."""
    return Verdict(
        ending="wrong" if faults else "ok",
        subject=subject,
        observed=faults or "no fault",
        expected="no fault",
        why="the GPUs or their paths fail under load, whatever the copies and sums said",
        action="do what the vendor's table says for the code; read the kernel log around these lines",
    )


def judge_transfer(
    transfer: PeerTransfer | None,
    subject: str,
    *,
    peer_access: str | None,
    context: Sequence[str] = (),
) -> Verdict:
    """
    Judge one directed pair or chain by one mechanism.

    Args:
        transfer: What the program saw; None if it says nothing of it.
        subject: The pair and the mechanism, with the host.
        peer_access: What the inventory says: "correct", "blocked", "any", or None.
        context: What else was seen of the pair: group types, capability, kernel messages.

    Returns:
        ok: every byte is right. wrong: bytes differ, or the driver, a hang or a crash stopped a copy that it had
        allowed; or no access where it must be correct. skip: not tested for want of access, or wrong where the
        inventory relies on nothing. error: not observed.
    """
    expected = "every byte right, as read back by the destination's owner"
    seen = "" if not context else "\n    " + "\n    ".join(context)
    if transfer is None and peer_access == "blocked":
        return Verdict(
            ending="skip",
            subject=subject,
            observed='peer_access is "blocked": not tried, since each refused access would be logged as a fault',
            expected="nothing",
        )
    if transfer is None:
        return Verdict(
            ending="error",
            subject=subject,
            observed="the program says nothing of it: it did not get there",
            expected=expected,
            action="see the other results of this program, then run again",
        )
    observed = f"{transfer}{seen}"
    if transfer.outcome == "right":
        return Verdict(ending="ok", subject=subject, observed=observed, expected=expected)
    if transfer.outcome == "error":
        return Verdict(ending="error", subject=subject, observed=observed, expected=expected, action=_UNOBSERVED)
    if transfer.outcome == "not_tested":
        return Verdict(
            ending="wrong" if peer_access == "correct" else "skip",
            subject=subject,
            observed=f"not tested: no peer access; a copy would go through the host{seen}",
            expected="peer access, and every byte right" if peer_access == "correct" else expected,
            why="the service falls back to host memory, and is slow",
            action="see `nvidia-smi topo -p2p r` and the driver's parameters",
        )
    if peer_access in ("blocked", "any"):
        return Verdict(
            ending="skip",
            subject=subject,
            observed=f'peer_access is "{peer_access}", so nothing may rely on it; it was tried: {observed}',
            expected="nothing",
        )
    return Verdict(ending="wrong", subject=subject, observed=observed, expected=expected, why=_CORRUPT, action=_ACTION)


def judge_alone(transfer: PeerTransfer | None, subject: str) -> Verdict:
    """Judge the copies on one GPU alone, as read back by the GPU itself."""
    expected = "every byte right, as read back by the GPU"
    if transfer is None:
        return Verdict(
            ending="error",
            subject=subject,
            observed="the program says nothing of it: it did not get there",
            expected=expected,
            action="see the other results of this program, then run again",
        )
    if transfer.outcome in ("error", "not_tested"):
        return Verdict(ending="error", subject=subject, observed=str(transfer), expected=expected, action=_UNOBSERVED)
    return Verdict(
        ending="ok" if transfer.outcome == "right" else "wrong",
        subject=subject,
        observed=str(transfer),
        expected=expected,
        why="weights and requests reach the GPU this way: a model on it alone computes with wrong bytes",
        action="read the kernel log for Xids and PCIe errors, and the GPU's ECC and row-remapping counters",
    )


def judge_capability(transfer: PeerTransfer | None, subject: str) -> Verdict:
    """Judge whether the driver offers peer access, where the inventory says that it must be correct."""
    if transfer is None or transfer.can_access is None:
        return Verdict(
            ending="error",
            subject=subject,
            observed="the driver was not asked"
            if transfer is None
            else str(transfer.reason or "the driver did not say"),
            expected="peer access offered",
            action=_UNOBSERVED,
        )
    return Verdict(
        ending="ok" if transfer.can_access else "wrong",
        subject=subject,
        observed="offered" if transfer.can_access else "not offered",
        expected="offered",
        why="NCCL and the engine fall back to host memory, and are slow",
        action="see `nvidia-smi topo -p2p r`, NVLink, and the driver's parameters",
    )


def judge_bandwidth(transfer: PeerTransfer | None, subject: str, least_gb_s: float | None) -> Verdict:
    """Judge a pair's bandwidth against what was measured before; only right bytes have one."""
    expected = "recorded" if least_gb_s is None else f"{least_gb_s:g} GB/s or more"
    if least_gb_s is None:
        return Verdict(ending="skip", subject=subject, observed="nothing is expected", expected=expected)
    if transfer is None or transfer.gb_s is None:
        return Verdict(
            ending="error",
            subject=subject,
            observed="no bandwidth: the bytes were not right, or were not compared",
            expected=expected,
            action="see the pair's other checks",
        )
    return Verdict(
        ending="ok" if transfer.gb_s >= least_gb_s else "wrong",
        subject=subject,
        observed=f"{transfer.gb_s:g} GB/s",
        expected=expected,
        why="tensor parallelism moves data over this pair in every layer",
        action="see link width and speed under load, NVLink state, and who else uses the GPUs",
    )


def judge_all_reduce(run: AllReduceRun | None, subject: str, devices: Sequence[str]) -> Verdict:
    """
    Judge an all-reduce: exact sums in every rank; hang, crash and wrong are told apart, each with its rank.

    Args:
        run: What the program saw; None if it says nothing of it.
        subject: The arm, with the host.
        devices: PCI addresses of the GPUs that it was to be over, shape (world_size,).
    """
    expected = "exact sums in every rank, of every type and size"
    if run is None:
        return Verdict(
            ending="error",
            subject=subject,
            observed="the program says nothing of it: it did not get there",
            expected=expected,
            action="see the other results of this program, then run again",
        )
    ranks = "".join(
        f"\n    rank {rank.rank} ({rank.pci}): {rank.stage}{f'; {rank.error}' if rank.error else ''}"
        f"{f'; last line: {rank.last_line}' if rank.last_line else ''}"
        for rank in run.ranks
    )
    observed = str(run) if run.ending == "right" else f"{run}{ranks}"
    if run.ending == "inconclusive":
        return Verdict(ending="error", subject=subject, observed=observed, expected=expected, action=_UNOBSERVED)
    doubts = run.doubts(devices) if run.ending == "right" else ""
    if doubts:
        return Verdict(
            ending="error",
            subject=subject,
            observed=f"{observed}, and yet {doubts}{ranks}",
            expected=expected,
            action="run it again; keep the recording and report it if that does not help",
        )
    return Verdict(
        ending="ok" if run.ending == "right" else "wrong",
        subject=subject,
        observed=observed,
        expected=expected,
        why="a service over these GPUs by this path hangs at its start, or computes wrongly",
        action=_ACTION
        if "p2p" in run.arm
        else "read the ranks' last lines; then run one pair at a time (--gpu-subsets)",
    )


def judge_service_run(
    run: AllReduceRun | None, subject: str, devices: Sequence[str], *, loaded: Sequence[str] = ()
) -> Verdict:
    """
    Judge the all-reduce as the service runs: its environment, and its own NCCL.

    Args:
        run: What the program saw; None if it says nothing of it.
        subject: The service, with the host.
        devices: As in `judge_all_reduce`.
        loaded: Files of libnccl that the service's processes have loaded; () where none is seen.

    Returns:
        As `judge_all_reduce`; an error where right sums were made by another libnccl than the service's.
    """
    verdict = judge_all_reduce(run, subject, devices)
    if run is None:
        return verdict
    library = run.library
    given = " ".join(f"{name}={value}" for name, value in sorted(run.environment.items())) or "no variable of NCCL's"
    by = "" if library is None else f"; by NCCL {library.version} of {library.path or 'an unknown file'}"
    observed = f"{verdict.observed}\n    with {given}{by}"
    if verdict.ok and loaded and (library is None or library.path not in loaded):
        return Verdict(
            ending="error",
            subject=subject,
            observed=f"{observed}, and the service has loaded {', '.join(loaded)}",
            expected=verdict.expected,
            action="see whether that file can be loaded where the program runs: it may have been replaced on disk",
        )
    return replace(verdict, observed=observed)


def judge_transport(run: AllReduceRun | None, subject: str, arm: str) -> Verdict:
    """Judge which transport carried an all-reduce: asked for and seen are two facts."""
    wanted = TRANSPORT_OF_ARM.get(arm, frozenset())
    expected = f"{'+'.join(sorted(wanted))} on every channel" if wanted else "recorded"
    if not wanted:
        return Verdict(ending="skip", subject=subject, observed="nothing is expected of this arm", expected=expected)
    if run is None or not run.channels:
        return Verdict(
            ending="error",
            subject=subject,
            observed="NCCL's log proves no channel" + (f": {run.ending}: {run.reason}" if run and run.reason else ""),
            expected=expected,
            action="see the all-reduce of this arm",
        )
    counted = [c for c in run.channels if c.count]
    ends = {c.src_rank for c in counted} & {c.dst_rank for c in counted}
    silent = sorted(set(range(len(run.devices))) - ends)
    right = run.transports == wanted
    if right and silent:
        return Verdict(
            ending="error",
            subject=subject,
            observed=f"NCCL's log does not prove a channel to and from rank {', '.join(map(str, silent))}",
            expected=expected,
            action="see the all-reduce of this arm",
        )
    seen = ", ".join(f"rank {c.src_rank} to {c.dst_rank}: {c.count} channels via {c.transport}" for c in run.channels)
    return Verdict(
        ending="ok" if right else "wrong",
        subject=subject,
        observed=seen,
        expected=expected,
        why="what was proven is another path than the one that it was run for",
        action="see NCCL's variables in effect: another layer (nccl.conf, sitecustomize) sets them again",
    )


def judge_busbw(run: AllReduceRun | None, subject: str, least: Mapping[str, float], arm: str) -> Verdict:
    """Judge an arm's busbw against what was measured before."""
    floor = least.get(arm)
    if floor is None:
        return Verdict(ending="skip", subject=subject, observed="nothing is expected", expected="recorded")
    if run is None or run.speed is None:
        return Verdict(
            ending="error",
            subject=subject,
            observed="no speed was measured: the sums were not right, or were not made",
            expected=f"{floor:g} GB/s or more",
            action="see the all-reduce of this arm",
        )
    return Verdict(
        ending="ok" if run.speed.busbw_gb_s >= floor else "wrong",
        subject=subject,
        observed=f"{run.speed.busbw_gb_s:g} GB/s",
        expected=f"{floor:g} GB/s or more",
        why="every layer of the model waits for it",
        action="see the pairs' bandwidth, NVLink state, and NCCL's variables",
    )
