"""
Participation judged: does every GPU that the service should run on carry one of its ranks, and work?

GPUs are judged one by one and never averaged: seven busy ones and an idle one are a failure of the idle one.
Activity is the GPU's, not one process's: where another process computes beside the service, a warning says so.
A rank that waits in a collective for another counts as active, since its kernel runs; the one it waits for does not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pytest_gpuinfra.pci_address import short_address
from pytest_gpuinfra.subjects.participation.samples import GpuUse, Participation
from pytest_gpuinfra.subjects.verdict import Verdict

_UNTOLD = "nothing tells which of the processes on the GPUs is the service's"
_NAME_UNIT = "name the service's unit in the inventory (service), so that its processes can be told from others"


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """
    What became of our own load.

    Attributes:
        streams: Requests under way at the same time.
        answered: Requests that had a whole answer.
        failures: Why the others had none.
    """

    streams: int
    answered: int
    failures: tuple[str, ...]


def judge_presence(seen: Participation, address: str, unit: str | None, subject: str) -> Verdict:
    """
    Judge whether a process of the service computes on a GPU, all the time.

    Returns:
        wrong: None does, or not in every sample. error: the driver does not show the GPU, does not list processes,
        or none of those that it lists can be told to be the service's.
    """
    expected = "a process of the service, in every sample"
    gpu, serving = seen.gpu(address), seen.serving(unit)
    trouble = _unreadable(seen, gpu, serving, unit)
    if gpu is None or trouble:
        return _error(subject, trouble, expected)
    here = sorted(serving & gpu.pids)
    others = sorted(gpu.pids - serving)
    counts = {pid: sum(pid in (one.processes or ()) for one in gpu.samples) for pid in here}
    if here and max(counts.values()) == len(gpu.samples):
        shown = ", ".join(f"{seen.processes[pid]}{_memory_words(gpu, pid)}" for pid in here)
        return Verdict(ending="ok", subject=subject, observed=shown, expected=expected, warnings=_beside(seen, others))
    if here:
        observed = ", ".join(f"{seen.processes[pid]} in {n} of {len(gpu.samples)} samples" for pid, n in counts.items())
    else:
        beside = f"; there: {', '.join(str(seen.processes[pid]) for pid in others)}" if others else ""
        observed = f"no process of the service{beside}; it runs on {_where(seen, serving) or 'no GPU'}"
    return Verdict(
        ending="wrong",
        subject=subject,
        observed=observed,
        expected=expected,
        why="the model is not sharded as it was planned: another GPU carries this one's part, or nothing does",
        action="compare --tp and CUDA_VISIBLE_DEVICES in effect with the inventory; read the log of its start",
    )


def judge_activity(
    seen: Participation, address: str, subject: str, *, unit: str | None, least: float | None
) -> Verdict:
    """
    Judge whether a GPU worked while the service had requests.

    Args:
        seen: The sampling.
        address: The GPU.
        subject: The same, for messages.
        unit: The service's unit; None if it has none.
        least: Least median activity in percent; None: that it worked at all.
    """
    expected = "above 0 % in some sample" if not least else f"a median of {least:g} % or more"
    gpu, serving = seen.gpu(address), seen.serving(unit)
    if gpu is None or not gpu.activity:
        told = "the driver does not show this GPU" if gpu is None else "the driver tells no activity of it"
        return _error(subject, told, expected)
    idle = max(gpu.activity) <= 0
    low = least is not None and median(gpu.activity) < least
    ranks = ", ".join(str(seen.processes[pid]) for pid in sorted(serving & gpu.pids))
    rest = "; ".join(f"{short_address(one.pci_address)}: {one}" for one in seen.gpus if one is not gpu)
    observed = f"{gpu}{f', with {ranks}' if ranks else ''}"
    if idle or low:
        observed = f"{'idle: ' if idle else ''}{observed}{f'; the others: {rest}' if rest else ''}"
    return Verdict(
        ending="wrong" if idle or low else "ok",
        subject=subject,
        observed=observed,
        expected=expected,
        why="a rank that takes no part: the others do its work, or the service is about to hang",
        action="see this rank's log and stack (py-spy dump), and compare --tp in effect with the inventory",
        warnings=_beside(seen, sorted(gpu.pids - serving)),
    )


def judge_memory(
    seen: Participation, address: str, subject: str, *, unit: str | None, least: float | None, most: float | None
) -> Verdict:
    """Judge the memory that the service's processes hold on one GPU, in MiB, against the inventory's band."""
    band = [f"{bound:g} MiB or {word}" for bound, word in ((least, "more"), (most, "less")) if bound is not None]
    expected = " and ".join(band) or "recorded"
    if not band:
        return Verdict(ending="skip", subject=subject, observed="nothing is expected", expected=expected)
    gpu, serving = seen.gpu(address), seen.serving(unit)
    trouble = _unreadable(seen, gpu, serving, unit)
    if gpu is None or trouble:
        return _error(subject, trouble, expected)
    held = [_held(one.processes or {}, serving) for one in gpu.samples]
    told = [value for value in held if value is not None]
    if not told:
        return _error(subject, "the driver tells no memory of the service's processes", expected)
    low, high = min(told), max(told)
    outside = (least is not None and low < least) or (most is not None and high > most)
    return Verdict(
        ending="wrong" if outside else "ok",
        subject=subject,
        observed=f"{low:g} to {high:g} MiB held by the service's processes",
        expected=expected,
        why="a rank that holds less has not loaded its part, or has a smaller KV cache; with more, others starve",
        action="compare the rank's part of the weights and --mem-fraction-static with the other ranks'",
    )


def judge_no_other(seen: Participation, expected_gpus: Collection[str], unit: str | None, subject: str) -> Verdict:
    """Judge that the service runs on no other GPU of the host."""
    expected = f"on {', '.join(short_address(address) for address in expected_gpus)} alone"
    serving = seen.serving(unit)
    if not serving:
        return _error(subject, _unreadable(seen, seen.gpus[0], serving, unit) or "it runs on no GPU at all", expected)
    others = [gpu for gpu in seen.gpus if gpu.pci_address not in expected_gpus and gpu.pids & serving]
    shown = "; ".join(
        f"{short_address(gpu.pci_address)}: {', '.join(str(seen.processes[pid]) for pid in sorted(gpu.pids & serving))}"
        for gpu in others
    )
    return Verdict(
        ending="wrong" if others else "ok",
        subject=subject,
        observed=f"also on {shown}" if others else f"on {_where(seen, serving)}",
        expected=expected,
        why="it takes memory and time from what is planned for that GPU",
        action="compare CUDA_VISIBLE_DEVICES in effect with the inventory",
    )


def judge_load(load: LoadOutcome, subject: str) -> Verdict:
    """Judge that the service answered every request of the load."""
    observed = f"{load.answered} answers at {load.streams} streams, {len(load.failures)} requests lost"
    if load.failures:
        observed += f": {load.failures[0]}"
    return Verdict(
        ending="error" if not load.answered and not load.failures else "wrong" if load.failures else "ok",
        subject=subject,
        observed=observed,
        expected="an answer to every request",
        why="what the GPUs did under this load says nothing if the service dropped it",
        action="read the server's log at this moment",
    )


def _unreadable(seen: Participation, gpu: GpuUse | None, serving: Collection[int], unit: str | None) -> str:
    """Say what keeps the processes from being known; "" if nothing does."""
    if gpu is None:
        return "the driver does not show this GPU"
    if any(one.processes is None for one in gpu.samples):
        return "the driver does not list the processes of this GPU"
    if serving:
        return ""
    hidden = [process for process in seen.processes.values() if not process.visible]
    if hidden:
        return f"/proc does not show process {hidden[0].pid}, which the driver lists: look from the host"
    if seen.processes and unit is None and all(process.listens is None for process in seen.processes.values()):
        return _UNTOLD
    busy = [one for one in seen.gpus if one.activity and max(one.activity) > 0]
    if not seen.processes and busy:
        return "a GPU works and the driver lists no process: look from the host, not from a container"
    return ""


def _held(processes: Mapping[int, float | None], serving: Collection[int]) -> float | None:
    values = [memory for pid, memory in processes.items() if pid in serving]
    told = [memory for memory in values if memory is not None]
    return sum(told) if len(told) == len(values) else None


def _memory_words(gpu: GpuUse, pid: int) -> str:
    told = [one.processes[pid] for one in gpu.samples if one.processes and pid in one.processes]
    numbers = [value for value in told if value is not None]
    return f", {max(numbers):g} MiB" if numbers else ""


def _where(seen: Participation, serving: Collection[int]) -> str:
    return ", ".join(short_address(gpu.pci_address) for gpu in seen.gpus if gpu.pids & frozenset(serving))


def _beside(seen: Participation, others: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"another process computes there: {seen.processes[pid]}" for pid in others)


def _error(subject: str, observed: str, expected: str) -> Verdict:
    action = _NAME_UNIT if observed == _UNTOLD else "see what nvidia-smi shows of it on the host itself, then run again"
    return Verdict(ending="error", subject=subject, observed=observed, expected=expected, action=action)
