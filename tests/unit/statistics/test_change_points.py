"""Series that change their level, series that do not, and runs that are compared without being paired."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from kinetoscope.statistics.change_points import change_points
from kinetoscope.statistics.intervals import (
    Ratio,
    between_runs_noise,
    compare_apart,
    compare_groups,
    stands,
    welch_margin,
)


def noisy(draw: random.Random, *levels: float, each: int = 8, noise: float = 0.01) -> list[float]:
    return [level * math.exp(draw.gauss(0, noise)) for level in levels for _ in range(each)]


def test_levels_are_found_where_they_change() -> None:
    found = change_points(noisy(random.Random(0), 10, 11, 9.5)).points
    assert [cut.at for cut in found] == [8, 16]
    assert all(
        cut.ratio.low < expected < cut.ratio.high
        for cut, expected in zip(found, (1.1, 9.5 / 11), strict=True)
    )


def test_few_or_even_values_have_no_change() -> None:
    assert change_points([1, 1, 1, 9, 9]) == ([], None)
    assert change_points([5.0] * 12) == ([], None)


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_drift_is_no_change_at_one_place(noise: float) -> None:
    draw = random.Random(1)
    found = change_points([10 * 1.02**n * math.exp(draw.gauss(0, noise)) for n in range(10)])
    assert found.points == []
    assert found.drift == pytest.approx(1.02, abs=0.005)


@pytest.mark.parametrize("levels", [(10, 11), (10, 12, 14)])
def test_steps_are_no_drift(levels: tuple[float, ...]) -> None:
    for seed in range(10):
        found = change_points(noisy(random.Random(seed), *levels, each=5))
        assert (len(found.points), found.drift) == (len(levels) - 1, None)


def test_noise_has_a_change_at_most_so_often() -> None:
    draw = random.Random(7)
    flagged = sum(change_points(noisy(draw, 10, each=10)) != ([], None) for _ in range(60))
    assert flagged <= 7  # 5 % of 60 are 3; more than 7 come once in 80 times


def test_runs_that_are_compared_apart_are_flagged_at_most_so_often() -> None:
    """Samples that remember: each is partly the one before."""
    draw = random.Random(3)

    def remembering(n: int) -> list[float]:
        values, state = [], 0.0
        for _ in range(n):
            state = 0.6 * state + draw.gauss(0, 0.02)
            values.append(10 * math.exp(state))
        return values

    flagged = sum(
        stands(compare_apart(remembering(40), remembering(40)), 0) in ("faster", "slower") for _ in range(60)
    )
    assert flagged <= 7


def test_groups_of_runs_have_welchs_interval() -> None:
    base, new = [10.0, 10.2, 9.9], [11.0, 11.1, 10.8, 11.3]
    logs = [[math.log(value) for value in side] for side in (base, new)]
    errors = [statistics.variance(side) / len(side) for side in logs]
    found = compare_groups(base, new)
    assert math.log(found.ratio) == pytest.approx(statistics.mean(logs[1]) - statistics.mean(logs[0]))
    # Satterthwaite's freedom here is 4.6, so 4: Student's t is 2.776.
    assert math.log(found.high / found.ratio) == pytest.approx(2.7764 * math.sqrt(sum(errors)), rel=1e-3)


def test_one_run_of_each_has_no_interval() -> None:
    assert compare_groups([10], [11])[1:] == (0, math.inf)
    assert welch_margin([1.0], [1.0]) == math.inf
    assert math.isfinite(compare_groups([10.0], [11.0, 11.2]).high)


def test_independent_errors_add_as_squares() -> None:
    found = Ratio(1.0, math.exp(-0.03), math.exp(0.03)).widened(0.04)
    assert found.low == pytest.approx(math.exp(-0.05))
    assert found.high == pytest.approx(math.exp(0.05))


def test_runs_differ_by_more_than_their_own_sections_where_noise_walks() -> None:
    """Of random walks, each the continuation of the one before, no more are distinguished than stated."""
    draw, apart, count = random.Random(3), 0, 300
    for _ in range(count):
        level, runs = 0.0, list[list[float]]()
        for _ in range(2):
            runs.append([math.exp(level := level + draw.gauss(0, 0.002)) for _ in range(24)])
        apart += abs(math.log(statistics.median(runs[1]) / statistics.median(runs[0]))) > between_runs_noise(
            *runs
        )
    assert apart <= 0.05 * count  # 13 % by how far one section of either differs
