"""How often one of several equal ranks is taken for a straggler, and when a slow one is told from them."""

from __future__ import annotations

import random

import polars as pl
import pytest

from kinetoscope.analysis.ranks.verdict import CHANCE, loses_in_each_step, lost_by_step, stands_out

STEP_NS = 10_000_000


def lengths(ranks: int, steps: int) -> pl.DataFrame:
    rows = [(rank, str(step), STEP_NS) for rank in range(ranks) for step in range(steps)]
    return pl.DataFrame(rows, schema=["rank", "name", "length_ns"], orient="row")


def test_what_others_lose_counts_against_a_rank() -> None:
    each = {"0": {0: 200.0, 1: 800.0, 2: 0.0}, "1": {0: 400.0, 1: 0.0}, "2": {0: -50.0, 1: 10.0}}
    assert lost_by_step(each, [1]) == [600, -400, 10]
    assert lost_by_step(each, [0, 1]) == [500, 200, -20]
    assert lost_by_step({"": {0: 1.0}}, [0]) == []


def test_the_same_loss_in_three_steps_is_no_chance_and_in_two_is_not_known() -> None:
    assert loses_in_each_step([400_000, 430_000, 410_000], lengths(2, 3))
    assert not loses_in_each_step([400_000, 430_000], lengths(2, 2))
    assert not loses_in_each_step([100_000, 900_000, 200_000], lengths(2, 3))
    assert not loses_in_each_step([40_000, 43_000, 41_000], lengths(2, 3))


@pytest.mark.parametrize(("ranks", "count"), [(2, 3), (2, 10), (4, 4), (8, 6)])
def test_of_a_hundred_equal_jobs_two_at_most_have_a_straggler(ranks: int, count: int) -> None:
    """Each rank stalls in each step for an exponential time; the rank that lost most is judged."""
    drawn, steps, named = random.Random(5), lengths(ranks, count), 0
    for _ in range(200):
        each = {
            str(number): {rank: drawn.expovariate(1 / 400_000) for rank in range(ranks)}
            for number in range(count)
        }
        for own in each.values():
            usual = sorted(own.values())[(ranks - 1) // 2]
            own |= {rank: ns - usual for rank, ns in own.items()}
        top = max(range(ranks), key=lambda rank: sum(own[rank] for own in each.values()))
        lost = lost_by_step(each, [top])
        named += loses_in_each_step(lost, steps) or stands_out(lost, steps, CHANCE)
    assert named <= 4
