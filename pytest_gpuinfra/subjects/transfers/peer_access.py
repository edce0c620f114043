"""
Peer access as the CUDA samples print it: which device can access which, not whether a copy arrives.

Source: NVIDIA cuda-samples, p2pBandwidthLatencyTest ("Device=0 CAN Access Peer Device=1", and a matrix of 0 and 1
under "P2P Connectivity Matrix") and simpleP2P ("> Peer access from NAME (GPU0) -> NAME (GPU1) : Yes").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.wire import text_lines

_SENTENCE = re.compile(r"Device=(?P<src>\d{1,18}) (?P<word>CAN|CANNOT) Access Peer Device=(?P<dst>\d{1,18})")
_SIMPLE = re.compile(r"Peer access from .*\(GPU(?P<src>\d{1,18})\) -> .*\(GPU(?P<dst>\d{1,18})\) ?: (?P<word>Yes|No)\b")
_MATRIX_HEADER = re.compile(r"\s*D\\D((?:\s+\d{1,18})+)\s*")
_MATRIX_ROW = re.compile(r"\s*(\d{1,18})((?:\s+[01])+)\s*")


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """
    Peer access by directed pair of device indices.

    Attributes:
        granted: Whether the driver grants it, by (src, dst). Shape (n,); pairs that are not told are not in it.
    """

    granted: Mapping[tuple[int, int], bool]

    @property
    def devices(self) -> tuple[int, ...]:
        """Every device that is named, in order."""
        return tuple(sorted({device for pair in self.granted for device in pair}))

    @property
    def both_ways(self) -> tuple[tuple[int, int], ...]:
        """Pairs with access in both directions, smaller index first."""
        return tuple(
            (a, b) for a, b in sorted(self.granted) if a < b and self.granted[a, b] and self.granted.get((b, a))
        )

    @property
    def without(self) -> tuple[tuple[int, int], ...]:
        """Pairs, smaller index first, that lack access in a direction, or of which a direction is not told."""
        found = set(self.both_ways)
        return tuple((a, b) for a in self.devices for b in self.devices if a < b and (a, b) not in found)


def parse_peer_access(reading: Reading) -> PeerAccess:
    """
    Read what one of the CUDA samples printed on peer access.

    Raises:
        FactUnavailable: The program could not be run.
        ParseError: The text says nothing of peer access, or contradicts itself.
    """
    granted: dict[tuple[int, int], bool] = {}
    header: list[int] = []
    for number, line in enumerate(text_lines(reading.require()), 1):
        match = _SENTENCE.search(line) or _SIMPLE.search(line)
        if match:
            found = {(int(match["src"]), int(match["dst"])): match["word"] in ("CAN", "Yes")}
        elif columns := _MATRIX_HEADER.fullmatch(line):
            header, found = [int(word) for word in columns[1].split()], {}
        elif header and (row := _MATRIX_ROW.fullmatch(line)):
            words = zip(header, row[2].split(), strict=False)
            found = {(int(row[1]), column): word == "1" for column, word in words if column != int(row[1])}
        else:
            header, found = [], {}
        for pair, access in found.items():
            if granted.setdefault(pair, access) != access:
                raise ParseError(reading.source, number, line, f"says another thing of {pair} than before")
    if not granted:
        raise ParseError(reading.source, 0, reading.require(), "nothing on peer access")
    return PeerAccess(granted)
