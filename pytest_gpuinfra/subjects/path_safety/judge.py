"""
Path safety: is the path between GPUs that the service uses one that was proven right on this boot?

Two things can move data between the GPUs of one model. NCCL goes over shared memory or peer to peer, as its
variables say; the engine's own all-reduce goes peer to peer over CUDA IPC, whatever NCCL's variables say.
Each in use has to be proven by results of the GPU programs on the very GPUs that the service runs on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Literal

from pytest_gpuinfra.subjects.transfers.all_reduce import AllReduceRun
from pytest_gpuinfra.subjects.transfers.transfer import PeerTransfer
from pytest_gpuinfra.subjects.verdict import Ending, Verdict

State = Literal["safe", "unsafe", "unknown", "none"]
"""none: the service has no path between GPUs (one GPU)."""
Path = Literal["SHM", "P2P", "NET"]

NCCL_MECHANISMS = ("copy_engine", "kernel_store", "kernel_load")
IPC_MECHANISMS = ("ipc_store", "ipc_load")
NCCL_SWITCH = "NCCL_P2P_DISABLE=1"
_OFF_LEVELS = frozenset({"LOC", "0"})
_WORDS: dict[Path, str] = {"SHM": "shared memory", "P2P": "peer-to-peer", "NET": "the network"}
# Arguments of the engine that bring a peer path of their own, besides the custom all-reduce.
# Source: SGLang python/sglang/srt/server_args.py 0.5, vLLM vllm/engine/arg_utils.py 0.10.
PEER_ARGUMENTS = {
    "sglang": (
        "--enable-mscclpp",
        "--enable-symm-mem",
        "--enable-torch-symm-mem",
        "--enable-flashinfer-allreduce-fusion",
    ),
    "vllm": (),
}
CUSTOM_SWITCH = "--disable-custom-all-reduce"


@dataclass(frozen=True, slots=True)
class RankPath:
    """
    One rank of the running service.

    Attributes:
        rank: Its number among the service's ranks.
        environment: NCCL variables known to be in effect, whoever set them.
        whole: Whether the environment is known whole, so that a variable missing from it is not set.
            Engines overwrite the beginning of what /proc shows, and what a process set for itself is not there:
            then a missing variable is unknown.
        transport: Transport that it is seen to use right now (files in /dev/shm that it shares with another rank
            mean SHM); None if none can be seen. Among more than two ranks SHM does not exclude P2P beside it.
    """

    rank: int
    environment: Mapping[str, str]
    whole: bool
    transport: Path | None = None

    @property
    def peers_off(self) -> bool | None:
        """Whether NCCL's peer-to-peer is switched off by its variables; None if that is unknown."""
        if self.environment.get("NCCL_P2P_DISABLE", "").strip() == "1":
            return True
        if self.environment.get("NCCL_P2P_LEVEL", "").strip().upper() in _OFF_LEVELS:
            return True
        return False if self.whole else None

    @property
    def shm_off(self) -> bool:
        """Whether NCCL's shared memory is known to be switched off."""
        return self.environment.get("NCCL_SHM_DISABLE", "").strip() == "1"


@dataclass(frozen=True, slots=True)
class ServicePath:
    """
    The running service, as far as its path goes.

    Attributes:
        name: Its unit, or what else it is called.
        devices: PCI addresses that its ranks run on. Shape (world_size,), by rank; empty if unknown.
        ranks: Its ranks; empty if they were not found.
        custom_all_reduce: Whether the engine's own all-reduce may be in use; None if that is unknown.
        peer_arguments: Arguments in effect that bring another peer path of the engine's own.
        switch: The argument that turns the engine's own all-reduce off.
    """

    name: str
    devices: tuple[str, ...]
    ranks: tuple[RankPath, ...]
    custom_all_reduce: bool | None
    peer_arguments: tuple[str, ...] = ()
    switch: str = CUSTOM_SWITCH


@dataclass(frozen=True, slots=True)
class PathSafety:
    """
    What is to be said of the service's path.

    Attributes:
        state: safe, unsafe, unknown, or none.
        reasons: Why, one sentence each; of an unsafe path each names the pair, or the arm, and the switch.
        switches: Settings that would make it safe by what was proven. Empty if none would, or none is missing.
        choices: What would be safe to run on these GPUs, by what was proven.
    """

    state: State
    reasons: tuple[str, ...]
    switches: tuple[str, ...]
    choices: tuple[str, ...]

    def verdict(self, subject: str) -> Verdict:
        """Give the verdict of a suite."""
        endings: dict[State, Ending] = {"safe": "ok", "unsafe": "wrong", "unknown": "error", "none": "skip"}
        action = "set " + " and ".join(self.switches) if self.switches else ""
        if not action and self.choices:
            action = f"safe to run, by what was proven: {'; or '.join(self.choices)}"
        return Verdict(
            ending=endings[self.state],
            subject=f"{subject}: path between its GPUs",
            observed="; ".join(self.reasons),
            expected="only paths that were proven right on this boot",
            why="over a path that corrupts, the model answers nonsense or hangs while every call succeeds",
            action=action or "run the peer and collective suites on this boot, then judge again",
        )


def judge_without_service(safety: PathSafety | None, subject: str, nobody: str) -> Verdict:
    """
    Say what would be safe to run where nobody expects a service: there is nothing to be judged.

    Args:
        safety: What was proven on the GPUs; None if that is unknown.
        subject: As in `PathSafety.verdict`.
        nobody: Why no service is expected.
    """
    if safety is None:
        proven = "what would be safe to run is unknown: the GPU programs proved nothing"
    elif safety.choices:
        proven = f"safe to run, by what was proven: {'; or '.join(safety.choices)}"
    else:
        proven = f"nothing is proven to be safe to run: {'; '.join(safety.reasons[1:]) or 'no result'}"
    return Verdict(
        ending="skip", subject=f"{subject}: path between its GPUs", observed=f"{nobody}; {proven}", expected="nothing"
    )


@dataclass(frozen=True, slots=True)
class _Proof:
    """Whether one path is right on these GPUs: True, False, or None, and why."""

    right: bool | None
    reasons: tuple[str, ...]


def custom_all_reduce_in_effect(engine: str, arguments: Sequence[str] | None) -> bool | None:
    """
    Say whether an engine's own all-reduce may be in use.

    Args:
        engine: "sglang", "vllm", or anything else.
        arguments: Its command line as it is in effect; None if it could not be read whole.

    Returns:
        False where the switch is there, True where it is not (both engines have it on by default),
        None for an unread command line or an engine that is not known.
    """
    if arguments is None or engine not in PEER_ARGUMENTS:
        return None
    return not any(argument == CUSTOM_SWITCH or argument.startswith(CUSTOM_SWITCH + "=") for argument in arguments)


def peer_arguments_in_effect(engine: str, arguments: Sequence[str] | None) -> tuple[str, ...]:
    """Give the arguments that bring another peer path of the engine's own."""
    return tuple(word for word in PEER_ARGUMENTS.get(engine, ()) if word in (arguments or ()))


def judge_path_safety(
    transfers: Sequence[PeerTransfer],
    runs: Sequence[AllReduceRun],
    service: ServicePath | None,
    *,
    devices: Sequence[str] = (),
) -> PathSafety:
    """
    Judge the path of the running service.

    Args:
        transfers: All of this boot; none of another.
        runs: All of this boot; none of another.
        service: None if none is running: then only what would be safe is told.
        devices: PCI addresses to speak of where no service is running, or where it does not tell its own.
    """
    at = tuple((service.devices if service else ()) or devices)
    proofs: dict[Path, _Proof] = {
        "SHM": _prove_alone(runs, at, "SHM"),
        "P2P": _prove_p2p(transfers, runs, at),
        "NET": _prove_alone(runs, at, "NET"),
    }
    ipc = _prove_pairs(transfers, at, IPC_MECHANISMS)
    choices = _choices(proofs, ipc, service.switch if service else CUSTOM_SWITCH)
    if service is None:
        known = _known((proofs["SHM"], proofs["P2P"], ipc))
        return PathSafety("unknown", ("no service is running", *known), (), choices)
    if len(at) == 1:
        return PathSafety("none", (f"{service.name} runs on one GPU ({at[0]})",), (), ())
    if not at:
        return PathSafety("unknown", (f"the GPUs of {service.name} are unknown",), (), choices)
    found = _Findings()
    _judge_nccl(service, proofs, found)
    _judge_engine(service, ipc, found)
    if found.unsafe:
        return PathSafety("unsafe", tuple(found.unsafe), tuple(dict.fromkeys(found.switches)), choices)
    if found.unknown:
        return PathSafety("unknown", tuple(found.unknown), (), choices)
    return PathSafety("safe", tuple(found.safe), (), choices)


@dataclass(frozen=True, slots=True)
class _Findings:
    """What was found of each path, and the settings that would help."""

    unsafe: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    safe: list[str] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)


def _judge_nccl(service: ServicePath, proofs: Mapping[Path, _Proof], found: _Findings) -> None:
    if service.ranks and _disagree(service, found):
        return
    paths = [_paths_of(rank, len(service.ranks), proofs["P2P"]) for rank in service.ranks]
    dark = [rank.rank for rank, path in zip(service.ranks, paths, strict=True) if path is None]
    if dark or not paths:
        if proofs["SHM"].right and proofs["P2P"].right:
            found.safe.append("NCCL: both shared memory and peer-to-peer are proven right")
        elif dark:
            found.unknown.append(
                f"NCCL's path in rank {_list(dark)} is unknown: its environment is not known whole "
                "and its transport cannot be seen"
            )
        else:
            found.unknown.append(f"the ranks of {service.name} were not found, so NCCL's path is unknown")
        return
    for path in sorted({path for some in paths if some for path in some}):
        _judge_nccl_path(service, path, proofs, found)


def _disagree(service: ServicePath, found: _Findings) -> bool:
    off = {rank.rank: rank.peers_off for rank in service.ranks}
    if not (True in off.values() and False in off.values()):
        return False
    bare = _list([rank for rank, value in off.items() if value is False])
    found.unsafe.append(f"{NCCL_SWITCH} is in effect in some ranks only, not in rank {bare}")
    found.switches.append(f"{NCCL_SWITCH} in every rank")
    return True


def _judge_nccl_path(service: ServicePath, path: Path, proofs: Mapping[Path, _Proof], found: _Findings) -> None:
    proof = proofs[path]
    words = f"NCCL goes over {_WORDS[path]}"
    against = [rank.rank for rank in service.ranks if rank.peers_off and rank.transport == "P2P"]
    if path == "P2P" and against:
        words += f" (seen in rank {_list(against)}, although its variables switch that off)"
    if proof.right:
        found.safe.append(f"{words}: {proof.reasons[0]}")
    elif proof.right is None:
        found.unknown.append(f"{words}, which is not proven: {'; '.join(proof.reasons)}")
    elif path == "P2P" and not against:
        bare = _list([rank.rank for rank in service.ranks if not rank.peers_off])
        found.unsafe.extend(f"{reason}, and {NCCL_SWITCH} is missing in rank {bare}" for reason in proof.reasons)
        if proofs["SHM"].right is not False:
            found.switches.append(NCCL_SWITCH)
    else:
        found.unsafe.extend(f"{words}: {reason}" for reason in proof.reasons)
        if path != "P2P" and proofs["P2P"].right:
            found.switches.append("NCCL_P2P_DISABLE=0")


def _judge_engine(service: ServicePath, ipc: _Proof, found: _Findings) -> None:
    used = list(service.peer_arguments)
    if service.custom_all_reduce:
        used.insert(0, "the engine's own all-reduce")
    on = " and ".join(used)
    if ipc.right:
        found.safe.append(f"{on or 'CUDA IPC, for the engine to use or not'}: {ipc.reasons[0]}")
    elif used and ipc.right is False:
        remedy = [service.switch] if service.custom_all_reduce else []
        remedy += [f"no {argument}" for argument in service.peer_arguments]
        found.switches.extend(remedy)
        missing = f"{on} is on ({', '.join(remedy)} is missing)"
        found.unsafe.extend(f"{reason}, and {missing}" for reason in ipc.reasons)
    elif used:
        found.unknown.append(f"{on} goes over CUDA IPC, which is not proven: {'; '.join(ipc.reasons)}")
    elif service.custom_all_reduce is None:
        state = "wrong" if ipc.right is False else "not proven"
        found.unknown.append(f"whether the engine's own all-reduce is on is unknown, and CUDA IPC is {state}")
    else:
        found.safe.append(f"the engine's own all-reduce is off ({service.switch})")


def _paths_of(rank: RankPath, ranks: int, p2p: _Proof) -> set[Path] | None:
    """Give every path that NCCL may take in a rank, by what is seen, else by its variables; None if that is unknown."""
    quiet: Path = "NET" if rank.shm_off else "SHM"
    if rank.transport == "SHM" and ranks > 2 and not rank.peers_off and p2p.reasons != _NO_ACCESS:
        return {"SHM", "P2P"}
    if rank.transport:
        return {rank.transport}
    if rank.peers_off or (rank.peers_off is False and p2p.reasons == _NO_ACCESS):
        return {quiet}
    return None if rank.peers_off is None else {"P2P"}


_NO_ACCESS = ("no pair has peer access, so NCCL has no peer-to-peer path",)


def _prove_alone(runs: Sequence[AllReduceRun], devices: Sequence[str], path: Path) -> _Proof:
    """Prove shared memory, or the network, by the runs on exactly these devices that NCCL's log shows on it alone."""
    return _prove_runs([run for run in runs if set(run.devices) == set(devices) and _goes_over(run, path)], path)


def _goes_over(run: AllReduceRun, path: Path) -> bool:
    """Whether a run tells of a path; one that ended badly before NCCL logged a transport tells of the one asked for."""
    if run.transports:
        return "P2P" in run.transports if path == "P2P" else run.transports == {path}
    quiet = "NET" if run.environment.get("NCCL_SHM_DISABLE") == "1" else "SHM"
    asked = quiet if run.environment.get("NCCL_P2P_DISABLE") == "1" else "P2P"
    return run.observed_wrong and asked == path


def _prove_p2p(transfers: Sequence[PeerTransfer], runs: Sequence[AllReduceRun], devices: Sequence[str]) -> _Proof:
    """Prove peer-to-peer by every pair that has peer access, and by a run that NCCL's log shows on it."""
    here = [one for one in transfers if one.src in devices and one.dst in devices]
    asked = [one for one in here if one.mechanism in NCCL_MECHANISMS]
    if asked and all(one.outcome == "not_tested" for one in asked):
        return _Proof(None, _NO_ACCESS)
    apart = {(one.src, one.dst) for one in asked if one.outcome == "not_tested"}  # there NCCL has no such path either
    pairs = _prove_pairs(transfers, devices, NCCL_MECHANISMS, apart)
    sums = _prove_runs([run for run in runs if set(run.devices) == set(devices) and _goes_over(run, "P2P")], "P2P")
    if False in (pairs.right, sums.right):
        return _Proof(False, tuple(reason for one in (pairs, sums) if one.right is False for reason in one.reasons))
    if None in (pairs.right, sums.right):
        return _Proof(None, tuple(reason for one in (pairs, sums) if one.right is None for reason in one.reasons))
    return _Proof(True, (f"{pairs.reasons[0]}; {sums.reasons[0]}",))


def _prove_runs(runs: Sequence[AllReduceRun], path: Path) -> _Proof:
    words = f"all-reduce over {path}"
    wrong = [run for run in runs if run.observed_wrong]
    if wrong:
        return _Proof(False, tuple(f"{words} ({run.arm}) ended {run.ending}: {run.reason}" for run in wrong))
    right = [run for run in runs if run.ending == "right"]
    if right:
        return _Proof(True, (f"{words} ({right[0].arm}) gave right sums on {len(right[0].devices)} GPUs",))
    return _Proof(None, (f"no {words} on exactly these GPUs gave sums to judge",))


def _prove_pairs(
    transfers: Sequence[PeerTransfer],
    devices: Sequence[str],
    mechanisms: Sequence[str],
    apart: Collection[tuple[str, str]] = (),
) -> _Proof:
    here = [one for one in transfers if one.src in devices and one.dst in devices and one.mechanism in mechanisms]
    wrong = [one for one in here if one.observed_wrong]
    if wrong:
        return _Proof(False, tuple(str(one) for one in wrong))
    right = {(one.src, one.dst, one.mechanism) for one in here if one.outcome == "right" and not one.simultaneous}
    pairs = [pair for pair in permutations(devices, 2) if pair not in apart]
    missing = [
        f"{src} to {dst} by {mechanism}"
        for src, dst in pairs
        for mechanism in mechanisms
        if (src, dst, mechanism) not in right
    ]
    if missing or not pairs:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return _Proof(None, (f"not proven: {missing[0] if missing else 'no pair'}{more}",))
    return _Proof(True, (f"all {len(pairs)} directed pairs copy right by {', '.join(mechanisms)}",))


def _choices(proofs: Mapping[Path, _Proof], ipc: _Proof, switch: str) -> tuple[str, ...]:
    """Say what would be safe to run, the fastest first."""
    engine = "the engine's own all-reduce on or off" if ipc.right else switch
    choices = []
    if proofs["P2P"].right:
        choices.append(f"peer-to-peer in NCCL (NCCL_P2P_DISABLE not set), {engine}")
    if proofs["SHM"].right:
        choices.append(f"{NCCL_SWITCH}, {engine}")
    return tuple(choices)


def _known(proofs: Iterable[_Proof]) -> tuple[str, ...]:
    return tuple(reason for proof in proofs if proof.right is not None for reason in proof.reasons)


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in sorted(ranks))
