"""The pair matrix of a host: for every directed pair of GPUs the worst that any mechanism did, and the bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.pci_address import short_address
from pytest_gpuinfra.subjects.transfers.program import GpuProgramRun, parse_gpu_program_events
from pytest_gpuinfra.subjects.transfers.transfer import PeerTransfer

WORST_FIRST = ("wrong", "crash", "hang", "failed", "error", "not_tested", "right")
"""Outcomes of a copy, the worst first."""

SHORT = {
    "copy_engine": "CE",
    "kernel_store": "ST",
    "kernel_load": "LD",
    "ipc_store": "IS",
    "ipc_load": "IL",
    "torch_copy": "TO",
}
"""Mechanisms in two letters; "2" behind them: both directions at once."""


@dataclass(frozen=True, slots=True)
class PairCell:
    """
    One directed pair.

    Attributes:
        outcome: The worst outcome of all mechanisms; "not seen" if none was tried.
        word: Class of the wrong bytes ("zeroed"), or the outcome.
        mechanisms: Two letters of those that ended so.
        gb_s: Bandwidth by the copy engine, GB/s, 10^9 bytes; None if none was measured.
    """

    outcome: str
    word: str
    mechanisms: tuple[str, ...]
    gb_s: float | None


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """
    All directed pairs of a host.

    Attributes:
        devices: Short PCI addresses. Shape (n,), in the driver's order.
        cells: By (source, destination).
        mechanisms: Outcomes by mechanism, the worst over all pairs, with the number of pairs that ended so.
        seen_right: Pairs that were right by every mechanism.
    """

    devices: tuple[str, ...]
    cells: Mapping[tuple[str, str], PairCell]
    mechanisms: Mapping[str, tuple[str, int]]
    seen_right: int

    @property
    def pairs(self) -> int:
        """Number of directed pairs."""
        return len(self.devices) * (len(self.devices) - 1)


def cuda_program(gathered: Mapping[str, Any], name: str = "cuda") -> GpuProgramRun | None:
    """Read what a GPU program said from what was gathered; None if it was not run, or said nothing that can be read."""
    lines = (gathered.get("gpu") or {}).get(name, {}).get("lines")
    if not lines:
        return None
    try:
        return parse_gpu_program_events(lines)
    except GpuInfraError:
        return None


def matrix_of(gathered: Mapping[str, Any]) -> PairMatrix | None:
    """Make a host's matrix from what was gathered there; None if no pair was tried."""
    programs = [program for name in ("cuda", "torch") if (program := cuda_program(gathered, name))]
    transfers = [transfer for program in programs for transfer in program.transfers]
    if not transfers:
        return None
    planned = [address for program in programs[:1] if program.plan for address in program.plan.devices]
    devices = list(dict.fromkeys([*planned, *(t.src for t in transfers), *(t.dst for t in transfers)]))
    cells = {
        (short_address(src), short_address(dst)): _cell([t for t in transfers if (t.src, t.dst) == (src, dst)])
        for src in devices
        for dst in devices
        if src != dst
    }
    by_mechanism: dict[str, list[str]] = {}
    for transfer in transfers:
        by_mechanism.setdefault(mechanism_of(transfer), []).append(transfer.outcome)
    return PairMatrix(
        tuple(short_address(address) for address in devices),
        cells,
        {name: (worst(outcomes), outcomes.count(worst(outcomes))) for name, outcomes in by_mechanism.items()},
        sum(cell.outcome == "right" for cell in cells.values()),
    )


def mechanism_of(transfer: PeerTransfer) -> str:
    """Name the way of a copy."""
    both = ", both directions at once" if transfer.simultaneous else ""
    return f"{transfer.mechanism.replace('_', ' ')}{both}"


def worst(outcomes: list[str]) -> str:
    """Give the worst of some outcomes; "not seen" if there is none."""
    return min(outcomes, key=WORST_FIRST.index, default="not seen")


def _cell(transfers: list[PeerTransfer]) -> PairCell:
    outcome = worst([transfer.outcome for transfer in transfers])
    same = [transfer for transfer in transfers if transfer.outcome == outcome]
    word = next((t.corruption for t in same if t.corruption), None) or outcome
    speeds = [t.gb_s for t in transfers if t.mechanism == "copy_engine" and not t.simultaneous and t.gb_s is not None]
    letters = [f"{SHORT.get(t.mechanism, t.mechanism)}{'2' if t.simultaneous else ''}" for t in same]
    return PairCell(outcome, word.replace("_", " "), tuple(letters), speeds[0] if speeds else None)
