"""
Outliers: hosts whose numbers are not like those of their group, named by a robust statistic.

Source: B. Iglewicz, D. Hoaglin, How to Detect and Handle Outliers, 1993: the modified z-score
0.6745 (x - median) / MAD, beyond 3.5; as in the NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.5.17.
Median and MAD (the median of the distances from the median) say what is usual while fewer than half of a group are bad.
A group whose numbers are nearly the same has a tiny MAD, so a distance that is within the noise of a measurement never
counts: a share of the median, and for some numbers an amount.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

SMALLEST = 5
"""Hosts that a group must have: of fewer, two bad ones decide what is usual."""

BEYOND = 3.5
"""Modified z-score beyond which a number is an outlier."""

_NORMAL = 0.6744897501960817
"""MAD of normally distributed numbers whose standard deviation is 1."""


@dataclass(frozen=True, slots=True)
class Measure:
    """
    What is measured, and how much of a difference means nothing.

    Attributes:
        name: "copy engine, one way".
        unit: "GB/s"; behind the value.
        better: Whether more or less of it is better; the other direction is the one of harm.
        share: Share of the median that may come and go.
        least: Amount that may come and go, in the unit.
    """

    name: str
    unit: str
    better: Literal["more", "less"]
    share: float = 0.1
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Number:
    """
    One number of one host.

    Attributes:
        host: Alias.
        kind: Kind of host; only hosts of one kind are compared.
        measure: What was measured.
        about: The part of the host, by its place: "GPU 0 to GPU 1"; "" for the host itself.
        value: In the measure's unit; finite.
    """

    host: str
    kind: str
    measure: Measure
    about: str
    value: float


@dataclass(frozen=True, slots=True)
class NumberGroup:
    """
    One number of all hosts of a kind.

    Attributes:
        kind: Kind of host.
        measure: What was measured.
        about: The part of the host; "" for the host itself.
        values: By host, the smallest first. At least SMALLEST.
        median: Of the values.
        spread: MAD over 0.6745: the standard deviation, if the numbers are normally distributed but for outliers.
        limit: Distance from the median beyond which a value is an outlier.
    """

    kind: str
    measure: Measure
    about: str
    values: Mapping[str, float]
    median: float
    spread: float
    limit: float

    @property
    def outliers(self) -> tuple[str, ...]:
        """Hosts beyond the limit in either direction, the farthest first."""
        far = {host: abs(value - self.median) for host, value in self.values.items()}
        return tuple(sorted((host for host in far if far[host] > self.limit), key=lambda host: -far[host]))

    @property
    def stragglers(self) -> tuple[str, ...]:
        """Outliers in the direction of harm, the farthest first."""
        return tuple(host for host in self.outliers if not self.is_better(host))

    @property
    def ahead(self) -> tuple[str, ...]:
        """Outliers in the other direction: no harm, but not like the others either."""
        return tuple(host for host in self.outliers if self.is_better(host))

    def is_better(self, host: str) -> bool:
        """Tell whether a host's value is on the better side of the median."""
        more = self.values[host] > self.median
        return more if self.measure.better == "more" else not more

    @property
    def name(self) -> str:
        """The number's name."""
        return f"{self.measure.name}, {self.about}" if self.about else self.measure.name


@dataclass(frozen=True, slots=True)
class Comparison:
    """
    All numbers of all hosts compared.

    Attributes:
        groups: Those that could be compared.
        too_small: Hosts by kind, where a kind has fewer than SMALLEST with numbers.
    """

    groups: tuple[NumberGroup, ...]
    too_small: Mapping[str, int]

    @property
    def stragglers(self) -> tuple[str, ...]:
        """Hosts with an outlier in the direction of harm, in the order of their names."""
        return tuple(sorted({host for group in self.groups for host in group.stragglers}))


def compare_hosts(numbers: Iterable[Number], *, smallest: int = SMALLEST) -> Comparison:
    """
    Compare each number of each host with those of the other hosts of its kind.

    Args:
        numbers: One for each host, measure and part; in any order.
        smallest: Hosts that a group must have.

    Raises:
        ValueError: A number is not finite, or a host has two for the same thing.
    """
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    measures: dict[tuple[str, str, str], Measure] = {}
    kinds: dict[str, set[str]] = {}
    for number in numbers:
        key = number.kind, number.measure.name, number.about
        if not math.isfinite(number.value):
            raise ValueError(f"{number.host}: {number.measure.name} {number.about}: {number.value} is no number")
        if number.host in values.setdefault(key, {}):
            raise ValueError(f"{number.host}: two numbers for {number.measure.name} {number.about}")
        values[key][number.host] = number.value
        measures[key] = number.measure
        kinds.setdefault(number.kind, set()).add(number.host)
    groups = [_group(key, measures[key], found) for key, found in values.items() if len(found) >= smallest]
    return Comparison(
        tuple(sorted(groups, key=lambda group: (group.kind, group.measure.name, group.about))),
        {kind: len(hosts) for kind, hosts in sorted(kinds.items()) if len(hosts) < smallest},
    )


def _group(key: tuple[str, str, str], measure: Measure, values: Mapping[str, float]) -> NumberGroup:
    middle = median(values.values())
    spread = median(abs(value - middle) for value in values.values()) / _NORMAL
    limit = max(BEYOND * spread, measure.share * abs(middle), measure.least)
    ordered = dict(sorted(values.items(), key=lambda item: (item[1], item[0])))
    return NumberGroup(key[0], measure, key[2], ordered, middle, spread, limit)
