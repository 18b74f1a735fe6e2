"""How often one of several equal ranks is taken for a straggler, and when a slow one is told from them."""

from __future__ import annotations

import random

import polars as pl
import pytest

from kinetoscope.analysis.ranks.comparison import CHANCE, loses_in_each_step, lost_by_step, stands_out

STEP_NS = 10_000_000


def lengths(ranks: int, steps: int) -> pl.DataFrame:
    rows = [(rank, str(step), STEP_NS) for rank in range(ranks) for step in range(steps)]
    return pl.DataFrame(rows, schema=["rank", "name", "length_ns"], orient="row")


def losses(rows: list[tuple[str, int, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"step": pl.String, "last": pl.Int32, "lost_ns": pl.Int64}, orient="row")


def test_what_others_lose_counts_against_a_rank() -> None:
    late = losses([("0", 1, 500), ("0", 1, 300), ("0", 0, 200), ("1", 0, 400), ("2", 1, -50)])
    steps = lengths(3, 3)
    assert lost_by_step(late, steps, 1, after_cold=False) == [600, -400, 0]
    assert lost_by_step(late, steps, None, after_cold=False) == [1000, 400, 0]
    assert lost_by_step(late, steps, 1, after_cold=True) == [-400, 0]


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
        stalls = [[round(drawn.expovariate(1 / 400_000)) for _ in range(ranks)] for _ in range(count)]
        rows = [
            (str(number), own.index(max(own)), max(own) - sorted(own)[(ranks - 1) // 2])
            for number, own in enumerate(stalls)
        ]
        late = losses(rows)
        top = late.group_by("last").agg(pl.col("lost_ns").sum()).sort("lost_ns", "last")["last"][-1]
        lost = lost_by_step(late, steps, top, after_cold=False)
        named += loses_in_each_step(lost, steps) or stands_out(lost, steps, CHANCE, is_one=True)
    assert named <= 4
