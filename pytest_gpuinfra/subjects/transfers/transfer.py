"""
One copy as a GPU program saw it: a directed pair, a chain of three, or one GPU alone, by one mechanism.

Source: on_target/gpu/pairs.py and on_target/gpu/torch_program.py, events "local", "pair" and "chain".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from pytest_gpuinfra.subjects.event import ProgramEvent

Outcome = Literal["right", "wrong", "failed", "hang", "crash", "not_tested", "error"]
"""
right: every byte of every copy was compared and is right.
wrong: bytes differ, though every call succeeded.
failed: the driver returned an error from a copy that it had allowed.
hang, crash: the copying process did not come back, or was ended by a signal.
not_tested: no peer access, so a copy would have gone through the host.
error: nothing could be observed (too little memory, a mapping refused, a device missing).
"""
Corruption = Literal["never_written", "zeroed", "scrambled", "outside"]
"""The class that most wrong bytes belong to; outside: only bytes beside the destination differ."""


@dataclass(frozen=True, slots=True)
class WrongCopy:
    """
    One destination that was not right.

    Attributes:
        size_bytes: Bytes copied.
        src_offset: Offset of the source from an aligned address, bytes.
        dst_offset: The same of the destination.
        repeat: Which round, from 1; the timed round is the last.
        wrong_bytes: Bytes of the destination that differ.
        never_written_bytes: Of these, still what was there before.
        zeroed_bytes: Of these, zero.
        scrambled_bytes: Of these, anything else.
        first_wrong_offset: From the destination's start, bytes; None if only guards differ.
        last_wrong_offset: The same of the last.
        guard_wrong_bytes: Bytes beside the destination that were touched.
    """

    size_bytes: int
    src_offset: int
    dst_offset: int
    repeat: int
    wrong_bytes: int
    never_written_bytes: int
    zeroed_bytes: int
    scrambled_bytes: int
    first_wrong_offset: int | None
    last_wrong_offset: int | None
    guard_wrong_bytes: int

    def __str__(self) -> str:
        where = "" if self.first_wrong_offset is None else f", the first at offset {self.first_wrong_offset}"
        beside = f", and {self.guard_wrong_bytes} bytes beside the destination" if self.guard_wrong_bytes else ""
        return (
            f"{self.wrong_bytes} of {self.size_bytes} bytes wrong{where} (repeat {self.repeat}, "
            f"offsets {self.src_offset} and {self.dst_offset}){beside}"
        )


@dataclass(frozen=True, slots=True)
class PeerTransfer:
    """
    One directed pair, or chain of three, by one mechanism.

    Attributes:
        src: PCI address that the bytes come from.
        dst: PCI address that they go to.
        via: PCI address of the device between them, for a chain; None for a pair.
        mechanism: "copy_engine", "kernel_store", "kernel_load", "ipc_store", "ipc_load" or "torch_copy".
        simultaneous: Whether the other direction was busy at the same time.
        can_access: What the driver (torch, for "torch_copy") says of peer access; None if it was not asked.
        outcome: How it ended.
        corruption: Class of the wrong bytes; None unless the outcome is "wrong".
        reason: Why the outcome is neither "right" nor "wrong"; None for those.
        copies_checked: Destinations compared, each poisoned before.
        bytes_checked: Bytes compared, all copies together.
        largest_bytes: Size of the largest copy compared.
        wrong_copies: Destinations that were not right.
        wrong_bytes: Wrong bytes, all copies together; by class in the next three.
        never_written_bytes: Still what was there before.
        zeroed_bytes: Zero.
        scrambled_bytes: Anything else.
        guard_wrong_bytes: Bytes beside destinations that were touched.
        failures: The first wrong destinations, at most 8. Shape (n,), in order.
        gb_s: Bandwidth of the largest copies, GB/s, 10^9 bytes; None unless the outcome is "right", and for chains.
        began_monotonic_s: Target's CLOCK_MONOTONIC when it began, the clock of its kernel log; None if it did not.
        ended_monotonic_s: The same when it ended.
        log_from: Number of the kernel log's youngest record before it began; None where the program cannot read that.
        log_to: The same after it ended.
    """

    src: str
    dst: str
    via: str | None
    mechanism: str
    simultaneous: bool
    can_access: bool | None
    outcome: Outcome
    corruption: Corruption | None
    reason: str | None
    copies_checked: int
    bytes_checked: int
    largest_bytes: int
    wrong_copies: int
    wrong_bytes: int
    never_written_bytes: int
    zeroed_bytes: int
    scrambled_bytes: int
    guard_wrong_bytes: int
    failures: tuple[WrongCopy, ...]
    gb_s: float | None
    began_monotonic_s: float | None
    ended_monotonic_s: float | None
    log_from: int | None = None
    log_to: int | None = None

    @property
    def pair(self) -> str:
        """The pair or chain, for people."""
        if self.src == self.dst:
            return f"{self.src} alone"
        return " to ".join([self.src, *([self.via] if self.via else []), self.dst])

    @property
    def observed_wrong(self) -> bool:
        """Whether something wrong was seen, as opposed to nothing seen."""
        return self.outcome in ("wrong", "failed", "hang", "crash")

    def __str__(self) -> str:
        both = ", both directions at once" if self.simultaneous else ""
        head = f"{self.pair} by {self.mechanism}{both}: {self.outcome.replace('_', ' ')}"
        if self.outcome == "right":
            speed = "" if self.gb_s is None else f", {self.gb_s:g} GB/s"
            return f"{head}, {self.bytes_checked} bytes in {self.copies_checked} copies{speed}"
        if self.outcome == "wrong" and self.corruption:
            copies = f"{self.wrong_copies} of {self.copies_checked} copies"
            counts = f"{self.wrong_bytes} of {self.bytes_checked} bytes in {copies}"
            first = f"; first: {self.failures[0]}" if self.failures else ""
            return f"{head}, {self.corruption.replace('_', ' ')}, {counts}{first}"
        return f"{head}: {self.reason}"


def parse_peer_transfer(event: ProgramEvent) -> PeerTransfer:
    """
    Read one event of a pair or chain.

    Raises:
        ParseError: It has another shape, or its outcome contradicts its own counts.
    """
    outcome = cast(Outcome, event.one_of("outcome", get_args(Outcome)))
    wrong = event.integer("wrong_bytes") + event.integer("guard_wrong_bytes")
    compared = min(event.integer(name) for name in ("copies_checked", "bytes_checked", "largest_bytes"))
    if outcome == "right" and (wrong or not compared):
        raise event.unknown("a right outcome that nothing was compared for")
    corruption = event.optional("class", str)
    counts = ("wrong_copies", "never_written_bytes", "zeroed_bytes", "scrambled_bytes")
    words = (corruption, event.optional("reason", str))
    able = event.optional("can_access", bool) or (event.text("src") == event.text("dst"))
    contrary = any(map(event.integer, counts)) or event.parts("failures") or not able
    if outcome == "right" and (contrary or words != (None, None)):
        raise event.unknown("a right outcome, and words of a wrong one")
    if outcome == "wrong" and (not wrong or corruption not in get_args(Corruption)):
        raise event.unknown("a wrong outcome without wrong bytes or their class")
    return PeerTransfer(
        src=event.text("src"),
        dst=event.text("dst"),
        via=event.optional("via", str),
        mechanism=event.text("mechanism"),
        simultaneous=event.optional("simultaneous", bool) or False,
        can_access=event.optional("can_access", bool),
        outcome=outcome,
        corruption=cast(Corruption, corruption) if outcome == "wrong" else None,
        reason=event.optional("reason", str),
        copies_checked=event.integer("copies_checked"),
        bytes_checked=event.integer("bytes_checked"),
        largest_bytes=event.integer("largest_bytes"),
        wrong_copies=event.integer("wrong_copies"),
        wrong_bytes=event.integer("wrong_bytes"),
        never_written_bytes=event.integer("never_written_bytes"),
        zeroed_bytes=event.integer("zeroed_bytes"),
        scrambled_bytes=event.integer("scrambled_bytes"),
        guard_wrong_bytes=event.integer("guard_wrong_bytes"),
        failures=tuple(_wrong_copy(part) for part in event.parts("failures")),
        gb_s=event.optional("gb_s", float),
        began_monotonic_s=event.optional("began_monotonic_s", float),
        ended_monotonic_s=event.optional("ended_monotonic_s", float),
        log_from=event.optional("log_from", int),
        log_to=event.optional("log_to", int),
    )


def _wrong_copy(event: ProgramEvent) -> WrongCopy:
    return WrongCopy(
        size_bytes=event.integer("size_bytes"),
        src_offset=event.integer("src_offset"),
        dst_offset=event.integer("dst_offset"),
        repeat=event.integer("repeat"),
        wrong_bytes=event.integer("wrong_bytes"),
        never_written_bytes=event.integer("never_written_bytes"),
        zeroed_bytes=event.integer("zeroed_bytes"),
        scrambled_bytes=event.integer("scrambled_bytes"),
        first_wrong_offset=event.optional("first_wrong_offset", int),
        last_wrong_offset=event.optional("last_wrong_offset", int),
        guard_wrong_bytes=event.integer("guard_wrong_bytes"),
    )
