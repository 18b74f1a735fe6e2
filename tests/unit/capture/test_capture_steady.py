from __future__ import annotations

import pytest

from kinetoscope.capture.steps.ledgers import Prefetch, Waited
from kinetoscope.capture.steps.timing import (
    Moment,
    StepTime,
    calm,
    recorded_steps,
    recovered,
    settled,
    timed_steps,
    waiting,
)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([], False),
        ([1.0], False),
        ([1.0, 1.04], True),
        ([1.0, 1.06], False),
        ([1.0, 1.1, 1.05], True),
        ([1.2, 1.1, 1.0], False),
        ([9.0, 1.0, 1.0], True),
        ([1.0, 2.0, 1.0, 2.0, 1.0, 2.0], False),
        ([1.0, 1.5, 1.1, 1.0, 1.5, 1.2], True),
        ([64.0, 32.0, 16.0, 8.0, 4.0, 2.0], False),
        ([0.0, 0.0], False),
    ],
)
def test_times_of_steps_are_judged_settled_or_not(seconds: list[float], expected: bool):
    assert settled(seconds) is expected


def times(seconds: float, *waited_s: float) -> list[StepTime]:
    """Steps of so many seconds, each of which waits for its loader so long."""
    return [
        StepTime(
            Moment(0.0, Waited(0, 0, 0), None), Moment(seconds, Waited(round(w * 1e9), 0, 0), None), False
        )
        for w in waited_s
    ]


def test_long_steps_are_timed_less_often():
    steps = [timed_steps(times(s, 0.0), Prefetch()) for s in (0.0, 0.0001, 0.15, 0.9, 60.0)]
    assert steps == [20, 20, 14, 3, 3]
    assert timed_steps([], Prefetch()) == 20
    assert timed_steps(times(0.5, 0.4), Prefetch(8, 16)) == 8


def test_bursts_are_calm_where_their_rounds_are():
    bursts = [step for _ in range(3) for step in (*times(0.4, 0.39), *times(0.01, 0.0, 0.0, 0.0))]
    assert calm(bursts, Prefetch(4, 8))
    assert not calm(bursts[:4], Prefetch(4, 8))
    assert not calm([*times(0.8, 0.7), *bursts[1:8]], Prefetch(4, 8))


def test_short_steps_are_recorded_more_often():
    assert [recorded_steps(times(s, 0.0), Prefetch()) for s in (2.5, 1.0, 0.002, 0.00001, 0.0)] == [
        2,
        3,
        5,
        10,
        10,
    ]
    assert recorded_steps([], Prefetch()) == 3


def test_steps_that_wait_for_a_loader_are_recorded_in_rounds_of_its_workers():
    assert recorded_steps(times(1.0, 0.5), Prefetch(4, 8)) == 4
    assert recorded_steps(times(1.0, 0.0), Prefetch(4, 8)) == 3


def test_waiting_is_a_mean_since_batches_come_in_bursts():
    assert waiting(times(0.1, 0.08, 0.0, 0.0, 0.0)) == pytest.approx(0.02)
    assert waiting(times(0.1, 0.004, 0.004)) is None
    assert waiting([]) is None


@pytest.mark.parametrize(
    ("waited_s", "expected"),
    [
        ((0.0, 0.0, 0.0, 0.0), False),
        ((0.0, 0.0, 0.04, 0.0), False),
        ((0.08, 0.0, 0.0, 0.0), True),
        ((0.0, 0.0, 0.073, 0.0), True),
    ],
)
def test_a_loop_has_recovered_when_it_waits_for_its_loader_as_before(
    waited_s: tuple[float, ...], expected: bool
):
    assert recovered(times(0.1, *waited_s, *waited_s), 0.02, Prefetch(4, 8)) is expected


def test_less_than_four_steps_do_not_show_what_is_waited_for():
    assert not recovered(times(0.1, 0.02, 0.02, 0.02), 0.02, Prefetch(1, 2))
    assert recovered(times(0.1, 0.02, 0.02, 0.02, 0.02), 0.02, Prefetch(1, 2))
    assert recovered(times(0.1, 0.0, 0.0), None, Prefetch(1, 2))
    assert recovered(
        times(0.1, 0.0, 0.0), 0.02, Prefetch()
    )  # nothing is loaded ahead that could have to drain
