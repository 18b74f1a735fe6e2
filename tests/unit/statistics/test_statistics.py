"""The statistics of timings: against brute force, and on distributions whose truth is known."""

from __future__ import annotations

import itertools
import math
import random
import statistics as stdlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broad import broad
from kinetoscope.statistics import distribution, intervals

Pair = tuple[list[float], list[float]]


def independent(r: random.Random, n: int) -> Pair:
    draw = lambda: [10 * math.exp(r.gauss(0, 0.02)) for _ in range(n)]  # noqa: E731
    return draw(), draw()


def shared_drift_with_memory(r: random.Random, n: int) -> Pair:
    """A clock that wanders slowly: both subjects of a round feel it."""
    state, base, other = r.gauss(0, 1), [], []
    for _ in range(n):
        state = 0.9 * state + math.sqrt(1 - 0.81) * r.gauss(0, 1)
        base.append(10 * math.exp(0.03 * state + r.gauss(0, 0.01)))
        other.append(10 * math.exp(0.03 * state + r.gauss(0, 0.01)))
    return base, other


def memory_of_its_own(r: random.Random, n: int) -> Pair:
    """The hard case: each subject's noise remembers the past, and not the other's."""
    series: list[list[float]] = []
    for _ in range(2):
        state, values = r.gauss(0, 1), []
        for _ in range(n):
            state = 0.6 * state + 0.8 * r.gauss(0, 1)
            values.append(10 * math.exp(0.02 * state))
        series.append(values)
    return series[0], series[1]


def clock_states(r: random.Random, n: int) -> Pair:
    """Two clock states 10 % apart, each lasting about twenty rounds."""
    slow, base, other = r.random() < 0.5, [], []
    for _ in range(n):
        slow ^= r.random() < 0.05
        level = 11.0 if slow else 10.0
        base.append(level * math.exp(r.gauss(0, 0.01)))
        other.append(level * math.exp(r.gauss(0, 0.01)))
    return base, other


def two_speeds_at_random(r: random.Random, n: int) -> Pair:
    draw = lambda: [  # noqa: E731
        (11.0 if r.random() < 0.4 else 10.0) * math.exp(r.gauss(0, 0.01)) for _ in range(n)
    ]
    return draw(), draw()


def outliers(r: random.Random, n: int) -> Pair:
    draw = lambda: [  # noqa: E731
        10 * (1 + abs(r.gauss(0, 0.005))) * (1 + (r.random() < 0.05) * r.expovariate(1)) for _ in range(n)
    ]
    return draw(), draw()


def coarse_timer(r: random.Random, n: int) -> Pair:
    draw = lambda: [round(20 * math.exp(r.gauss(0, 0.02))) / 2 for _ in range(n)]  # noqa: E731
    return draw(), draw()


WORLDS: list[Callable[[random.Random, int], Pair]] = [
    independent,
    shared_drift_with_memory,
    clock_states,
    two_speeds_at_random,
    outliers,
    coarse_timer,
]


@pytest.mark.parametrize("world", [*WORLDS, memory_of_its_own], ids=lambda w: w.__name__)
def test_identical_subjects_are_called_different_in_at_most_5_percent(world) -> None:
    sessions = 160
    alarms = 0
    for seed in range(sessions):
        base, other = world(random.Random(seed), 48)
        alarms += intervals.verdict(intervals.compare(base, other, resamples=100)) != "cannot tell"
    # 160 sessions at a true rate of 5 % give at most 13 alarms in 95 % of runs; the seeds are fixed.
    assert alarms / sessions <= (0.08 if world is memory_of_its_own else 0.05)


# A ratio's interval covers it as often as that of identical subjects covers one: one of the worlds tells.
@pytest.mark.parametrize("world", broad(WORLDS, WORLDS[:1]), ids=lambda w: w.__name__)
def test_the_interval_covers_the_true_ratio(world) -> None:
    covered = 0
    for seed in range(160):
        base, other = world(random.Random(seed + 1000), 60)
        other = [x * 0.93 for x in other]
        interval = intervals.compare(base, other, resamples=100)
        covered += interval.low <= 0.93 <= interval.high
    assert covered / 160 >= 0.93


@pytest.mark.parametrize(
    "world",
    broad([w for w in WORLDS if w is not two_speeds_at_random], [independent, outliers]),
    ids=lambda w: w.__name__,
)
def test_a_planted_3_percent_is_seen(world) -> None:
    seen = 0
    for seed in range(60):
        base, other = world(random.Random(seed), 80)
        found = intervals.compare(base, [x * 1.03 for x in other], resamples=150)
        seen += intervals.verdict(found) == "slower"
    assert seen / 60 >= 0.9


def test_without_the_sections_memory_would_fool_the_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    def alarms() -> int:
        return sum(
            intervals.verdict(intervals.compare(*memory_of_its_own(random.Random(seed), 40), resamples=150))
            != "cannot tell"
            for seed in range(100)
        )

    guarded = alarms()
    monkeypatch.setattr(intervals, "_student_margin", lambda *_: 0.0)
    assert guarded <= 8 < alarms()


def test_the_noise_floor_withholds_a_verdict() -> None:
    interval = intervals.Ratio(1.02, 1.01, 1.03)
    assert intervals.verdict(interval) == "slower"
    assert intervals.verdict(interval, noise_floor=0.015) == "cannot tell"
    assert intervals.verdict(intervals.Ratio(0.9, 0.88, 0.92), noise_floor=0.05) == "faster"


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 1e9), min_size=1, max_size=50), st.floats(0, 1))
def test_quantiles_agree_with_the_definition(values: list[float], q: float) -> None:
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low, high = ordered[math.floor(position)], ordered[math.ceil(position)]
    found = distribution.quantile(values, q)
    assert low * (1 - 1e-12) <= found <= high * (1 + 1e-12)
    assert distribution.median(values) == pytest.approx(stdlib.median(values))


def test_the_standard_error_of_the_median_is_the_spread_of_medians() -> None:
    r = random.Random(1)
    medians, estimates = [], []
    for _ in range(400):
        values = [100 + r.gauss(0, 5) for _ in range(100)]
        medians.append(stdlib.median(values))
        estimates.append(distribution.relative_standard_error(values))
    assert stdlib.mean(estimates) == pytest.approx(stdlib.pstdev(medians) / 100, rel=0.1)
    assert distribution.relative_standard_error([1, 1]) == math.inf


def test_entropy_of_known_distributions() -> None:
    assert distribution.entropy([1.0, 2.0, 3.0, 4.0], 1.0) == 2
    assert distribution.entropy([5.0] * 10, 1.0) == 0
    r = random.Random(3)
    assert distribution.entropy_settled([r.choice([10.0, 11.0]) for _ in range(400)], resolution=0.1)
    first_one_then_the_other = [10.0] * 100 + [11.0] * 100
    assert not distribution.entropy_settled(first_one_then_the_other, resolution=0.1)
    assert not distribution.entropy_settled([10.0] * 20, resolution=0.1)


def test_autocorrelation_time_of_a_known_process() -> None:
    r = random.Random(5)
    state, series = 0.0, []
    for _ in range(20000):
        state = 0.8 * state + r.gauss(0, 1)
        series.append(state)
    assert intervals.autocorrelation_time(series) == pytest.approx((1 + 0.8) / (1 - 0.8), rel=0.15)
    assert intervals.autocorrelation_time([r.random() for _ in range(5000)]) == pytest.approx(1, abs=0.15)
    assert intervals.autocorrelation_time([3.0] * 10) == 1


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.3027), (0.975, 5, 2.5706), (0.975, 30, 2.0423), (0.95, 10, 1.8125)],
)
def test_student_t_agrees_with_the_printed_table(probability: float, freedom: int, expected: float) -> None:
    assert intervals.student_t(probability, freedom) == pytest.approx(expected, abs=2e-4)


def test_the_interval_of_a_few_rounds_covers() -> None:
    covered = 0
    for seed in range(1000):
        r = random.Random(seed)
        base = [10 * math.exp(r.gauss(0, 0.02)) for _ in range(3)]
        other = [9 * math.exp(r.gauss(0, 0.02)) for _ in range(3)]
        interval = intervals.compare_rounds(base, other)
        covered += interval.low <= 0.9 <= interval.high
    assert covered / 1000 == pytest.approx(0.95, abs=0.02)
    assert intervals.compare_rounds([2.0], [1.0]) == (0.5, 0.0, math.inf)


def test_pairs_have_the_factors_that_their_signed_ranks_do_not_reject() -> None:
    """Against the test itself, by all signs of the ranks, at factors on both sides of each end."""
    r = random.Random(4)
    base = [math.exp(r.gauss(0, 0.1)) for _ in range(9)]
    other = [1.2 * math.exp(r.gauss(0, 0.1)) for _ in range(9)]
    found = intervals.compare_pairs(base, other)

    def rejected(factor: float) -> bool:
        logs = sorted((math.log(b / a / factor) for a, b in zip(base, other, strict=True)), key=abs)
        ups = sum(rank for rank, value in enumerate(logs, 1) if value > 0)
        sums = [
            sum(rank for rank, is_up in enumerate(signs, 1) if is_up)
            for signs in itertools.product((False, True), repeat=9)
        ]
        fewer, more = sum(one <= ups for one in sums), sum(one >= ups for one in sums)
        return min(fewer, more) <= 0.025 * len(sums)

    assert [rejected(end * factor) for end in found[1:] for factor in (0.999, 1.001)] == [
        True,
        False,
        False,
        True,
    ]
    assert found.low < found.ratio < found.high


def test_fewer_than_six_pairs_have_no_interval() -> None:
    assert intervals.compare_pairs([1.0] * 5, [2.0] * 5) == (pytest.approx(2.0), 0.0, math.inf)
    assert intervals.compare_pairs([1.0] * 6, [2.0] * 6) == pytest.approx((2.0, 2.0, 2.0))


def test_thousands_of_rounds_stay_cheap_and_right() -> None:
    base, other = independent(random.Random(1), 5000)
    interval = intervals.compare(base, [x * 1.01 for x in other])
    assert interval.low <= 1.01 <= interval.high
    assert interval.high - interval.low < 0.01


def test_unpaired_or_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="paired"):
        intervals.compare([1.0] * 20, [1.0] * 19)
    with pytest.raises(ValueError, match="fewest"):
        intervals.compare([1.0] * 5, [1.0] * 5)
