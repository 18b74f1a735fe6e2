"""Rounds in times, planted and not, against all sizes and places tried one by one."""

from __future__ import annotations

import random
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.statistics import rounds as module
from kinetoscope.statistics.rounds import CHANCE, FEWEST, Rounds, judged, rounds


def planted(draw: random.Random, n: int, size: int, first: int, extra: float) -> list[float]:
    """Times of which one in twenty is long by chance, and something more comes in with each ``size``-th."""
    values = [
        1 + 0.1 * draw.random() + extra * (0.8 + 0.4 * draw.random()) * (number % size == first)
        for number in range(n)
    ]
    for at in draw.sample(range(n), n // 20):
        values[at] += draw.expovariate(1)
    return values


def of_all(values: list[float]) -> Rounds | None:
    """The clearest of all rounds that there could be."""
    n = len(values)
    every = (judged(range(n), values, size, first) for size in range(2, n) for first in range(size))
    clear = [one for one in every if one is not None and one.chance <= CHANCE]
    return min(clear, key=lambda one: (one.chance, one.size), default=None)


@given(st.integers(0, 10**6), st.integers(3, 20), st.integers(6, 9), st.floats(0.5, 20))
@settings(max_examples=60, deadline=None)
def test_rounds_that_were_planted_are_those_of_all_and_are_found(
    seed: int, size: int, times: int, extra: float
) -> None:
    draw = random.Random(seed)
    first = draw.randrange(size)
    values = planted(draw, times * size, size, first, extra)
    found = rounds(values)
    assert found is not None
    assert (found.size, found.first, found.seen) == (size, first, times)
    assert found == of_all(values)


@given(st.lists(st.floats(0.1, 10), min_size=4, max_size=30))
@settings(max_examples=80, deadline=None)
def test_what_is_found_in_any_times_is_at_most_as_clear_as_the_clearest_of_all(values: list[float]) -> None:
    found, clearest = rounds(values), of_all(values)
    if found is not None:
        assert clearest is not None
        assert found.chance >= clearest.chance
        assert found == judged(range(len(values)), values, found.size, found.first)


def test_times_in_any_order_have_rounds_as_seldom_as_is_said() -> None:
    draw, found = random.Random(3), 0
    for _ in range(400):
        values = planted(draw, draw.randrange(20, 120), 7, 0, draw.choice([0, 1, 5]))
        draw.shuffle(values)
        found += rounds(values) is not None
    assert found <= CHANCE * 400


def test_what_a_step_takes_with_its_share_is_that_of_whole_rounds_wherever_they_are_cut() -> None:
    values = [11.0 if number % 10 == 4 else 1.0 for number in range(200)]
    for start in range(10):
        for end in range(150, 160):
            found = rounds(values[start:end])
            assert found is not None
            assert (found.size, found.each, found.whole, found.between) == pytest.approx((10, 2, 20, 10))


def test_steps_that_were_not_timed_leave_the_others_their_numbers() -> None:
    numbers = [number for number in range(7, 100) if not 27 <= number < 41]
    values = [4.0 if number % 12 == 5 else 1.0 for number in numbers]
    found = rounds(values, numbers)
    assert found is not None
    assert (found.size, found.first % 12) == (12, 5)
    assert rounds(values) != found


def test_one_missing_long_time_and_other_long_ones_leave_the_rounds() -> None:
    values = [5.0 if number % 10 == 3 and number != 43 else 1.0 for number in range(100)]
    values[17] = values[18] = 40.0
    found = rounds(values)
    assert found is not None
    assert (found.size, found.seen) == (10, 10)


def test_of_few_long_times_the_median_counts_and_of_many_the_mean() -> None:
    values = [5.0 if number % 10 == 9 else 1.0 for number in range(100)]
    values[29] = 65.0
    few, many = rounds(values[:40]), rounds(values)
    assert few is not None
    assert many is not None
    assert (few.size, few.each) == (10, pytest.approx(1.4))
    assert (many.size, many.each) == (10, pytest.approx(sum(values) / 100))


def test_two_long_times_come_by_chance_and_even_ones_are_no_rounds() -> None:
    assert rounds([9.0 if number % 20 == 5 else 1.0 for number in range(40)]) is None
    assert rounds([1.0] * 50) is None
    assert rounds([1.0, 2.0, 1.0]) is None
    assert rounds([]) is None


@given(st.integers(1, 30), st.data())
def test_the_chance_is_that_of_counting_all_ways(of: int, data: st.DataObject) -> None:
    drawn, marked = data.draw(st.integers(0, of)), data.draw(st.integers(0, of))
    hits = data.draw(st.integers(0, drawn))
    ways = sum(comb(marked, k) * comb(of - marked, drawn - k) for k in range(hits, drawn + 1))
    at_least = module._at_least(hits, drawn, marked, of)  # pyright: ignore[reportPrivateUsage]
    assert at_least == pytest.approx(ways / comb(of, drawn))


def test_three_long_times_are_the_fewest() -> None:
    values = [9.0 if number % 30 == 29 else 1.0 for number in range(90)]
    found = rounds(values)
    assert found is not None
    assert (found.size, found.seen) == (30, FEWEST)


def test_ways_to_place_rounds_are_those_of_counting_them() -> None:
    for span in range(8, 60):
        counted = sum(
            len(range(first, span, size)) >= FEWEST for size in range(2, span) for first in range(size)
        )
        assert module._sizes_and_places(span) == counted  # pyright: ignore[reportPrivateUsage]


def test_numbers_far_apart_take_no_longer() -> None:
    assert rounds([1.0] * 10 + [2.0] * 10, [*range(10), *range(10**15, 10**15 + 10)]) is None
