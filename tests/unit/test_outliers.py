"""Outliers: who is named, who never is, whatever the numbers."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuinfra.subjects.outliers import BEYOND, SMALLEST, Comparison, Measure, Number, compare_hosts

SPEED = Measure("copy engine", "GB/s", "more")
HEAT = Measure("temperature", "degrees C", "less", share=0.0, least=5.0)
values = st.floats(0.01, 1e6, allow_nan=False)
many = st.lists(values, min_size=SMALLEST, max_size=60)


def compared(found: list[float], measure: Measure = SPEED) -> Comparison:
    """Compare hosts h0, h1, ... that have these numbers."""
    return compare_hosts(Number(f"h{place}", "8 x H200", measure, "", value) for place, value in enumerate(found))


@pytest.mark.parametrize(
    ("measure", "usual", "odd", "stragglers", "ahead"),
    [
        (SPEED, 50.0, 21.0, ("h0",), ()),
        (SPEED, 50.0, 90.0, (), ("h0",)),
        (SPEED, 50.0, 45.1, (), ()),
        (SPEED, 50.0, 44.9, ("h0",), ()),
        (HEAT, 60.0, 82.0, ("h0",), ()),
        (HEAT, 60.0, 40.0, (), ("h0",)),
        (HEAT, 60.0, 65.0, (), ()),
    ],
)
def test_straggler_is_named_in_the_direction_of_harm(
    measure: Measure, usual: float, odd: float, stragglers: tuple[str, ...], ahead: tuple[str, ...]
) -> None:
    """A number that is usual but for one host; ten per cent and five degrees are noise."""
    (group,) = compared([odd, *[usual] * 9], measure).groups
    assert (group.stragglers, group.ahead) == (stragglers, ahead)
    assert (group.median, group.spread) == (usual, 0.0)


def test_spread_of_a_group_widens_its_limit() -> None:
    """The example of the handbook's statistic by hand: median 10, MAD 2, so 3.5 * 2 / 0.6745 = 10.4 is the limit."""
    found = [4.0, 8.0, 8.0, 10.0, 12.0, 12.0, 25.0]
    (group,) = compared(found, Measure("x", "s", "less", share=0.0)).groups
    assert group.median == 10.0
    assert group.limit == pytest.approx(BEYOND * 2 / 0.6745, rel=1e-4)
    assert group.stragglers == ("h6",)


def test_group_that_is_too_small_is_not_judged() -> None:
    """Four hosts: nobody can say who is usual, and the comparison says that it did not judge."""
    found = compared([50.0, 50.0, 50.0, 1.0])
    assert found.groups == ()
    assert found.too_small == {"8 x H200": 4}


def test_hosts_of_two_kinds_are_never_compared() -> None:
    """Eight H200s at 390 GB/s and eight L40S at 25 GB/s are both usual."""
    numbers = [Number(f"a{n}", "H200", SPEED, "", 390.0) for n in range(6)]
    numbers += [Number(f"b{n}", "L40S", SPEED, "", 25.0) for n in range(6)]
    found = compare_hosts(numbers)
    assert len(found.groups) == 2
    assert found.stragglers == ()


def test_number_that_is_none_is_refused() -> None:
    """Not a number is no number; two for one thing cannot both be meant."""
    with pytest.raises(ValueError, match="is no number"):
        compared([1.0, 1.0, 1.0, 1.0, float("nan")])
    with pytest.raises(ValueError, match="two numbers"):
        compare_hosts([Number("a", "k", SPEED, "", 1.0), Number("a", "k", SPEED, "", 1.0)])


@given(many, st.randoms(use_true_random=False))
def test_order_of_hosts_makes_no_difference(found: list[float], random: object) -> None:
    """The same numbers in another order name the same hosts."""
    numbers = [Number(f"h{place}", "k", SPEED, "", value) for place, value in enumerate(found)]
    other = list(numbers)
    random.shuffle(other)  # type: ignore[attr-defined]
    assert compare_hosts(numbers) == compare_hosts(other)


@given(many)
def test_no_more_than_half_are_ever_named(found: list[float]) -> None:
    """What most hosts show is what is usual, by definition."""
    (group,) = compared(found).groups
    assert 2 * len(group.outliers) <= len(found)


@given(many)
def test_every_host_is_in_the_group_once(found: list[float]) -> None:
    """Nobody is lost, and nobody is a straggler and ahead at once."""
    (group,) = compared(found).groups
    assert sorted(group.values.values()) == sorted(found)
    assert not set(group.stragglers) & set(group.ahead)
    assert all(group.values[host] < group.median for host in group.stragglers)


@given(many)
def test_host_within_the_noise_is_never_named(found: list[float]) -> None:
    """However tiny the spread: what differs by less than the measure's share is like the others."""
    middle = median(found)
    (group,) = compared(found).groups
    near = {host for host, value in group.values.items() if abs(value - middle) <= SPEED.share * middle}
    assert near.isdisjoint(group.outliers)


@given(st.lists(st.floats(97.0, 103.0), min_size=SMALLEST, max_size=40), st.floats(0.1, 60.0), st.floats(1.01, 100.0))
def test_straggler_that_gets_worse_stays_one(usual: list[float], slow: float, factor: float) -> None:
    """Moving a straggler farther away leaves the median, and so its name on the list."""
    before, after = (compared([value, *usual]).groups[0] for value in (slow, slow / factor))
    assert before.stragglers == after.stragglers == ("h0",)
    assert after.median == before.median


@given(st.lists(st.floats(97.0, 103.0), min_size=SMALLEST, max_size=40), st.floats(0.1, 60.0))
def test_one_slow_host_among_steady_ones_is_the_one_that_is_named(usual: list[float], slow: float) -> None:
    """Noise of three per cent, and one host at six tenths or less."""
    found = compared([slow, *usual])
    assert found.stragglers == ("h0",)


@given(many, st.integers(-20, 20))
def test_unit_makes_no_difference(found: list[float], exponent: int) -> None:
    """GB/s or GiB/s: where no amount is set, scaling all numbers names the same hosts (by powers of two, exactly)."""
    scaled = [value * 2.0**exponent for value in found]
    assert compared(found).groups[0].outliers == compared(scaled).groups[0].outliers
