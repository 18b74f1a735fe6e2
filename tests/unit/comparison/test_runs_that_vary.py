"""Two runs of one program, each as slow as chance will have it: seldom is one called faster or slower."""

from __future__ import annotations

import random

from kinetoscope.comparison.step_change import A_RUN, BETWEEN_RUNS, SAME, of_one_run_each
from kinetoscope.statistics.intervals import stands


def run(chance: random.Random) -> list[float]:
    """The steps of a run (µs): all by one factor, each by a third as much on its own."""
    factor = chance.gauss(1, A_RUN)
    return [1000 * factor * chance.gauss(1, A_RUN / 3) for _ in range(40)]


def test_one_run_a_side_is_wrong_one_time_in_twenty() -> None:
    verdicts = []
    for seed in range(200):
        chance = random.Random(seed)
        ratio, _ = of_one_run_each(run(chance), run(chance))
        verdicts.append(stands(ratio, SAME + BETWEEN_RUNS))
    wrong = sum(verdict in ("faster", "slower") for verdict in verdicts)
    assert wrong <= 10
    slower = of_one_run_each([1000.0 + step for step in range(40)], [1300.0 + step for step in range(40)])[0]
    assert stands(slower, SAME + BETWEEN_RUNS) == "slower"
