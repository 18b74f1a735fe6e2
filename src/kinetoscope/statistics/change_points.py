"""Changes of the level in a series of measurements."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from kinetoscope.statistics.intervals import CONFIDENCE, Ratio, compare_groups

PERMUTATIONS = 999
FEWEST = 6


class ChangePoint(NamedTuple):
    """A change of level before the value at ``at``; ``ratio`` is of the values from there on to those
    before."""

    at: int
    ratio: Ratio


def change_points(values: Sequence[float], *, seed: int = 0) -> list[ChangePoint]:
    """The changes of level in a series of medians of runs, in order.

    A series is cut where the means of the logarithms on both sides differ most for their number, if no more
    than 5 % of its shuffled orders have a cut as good; then each side in the same way. A series of
    fewer than six is never cut: it has too few orders.

    Source: binary segmentation (Scott and Knott 1974), permutation test of the largest statistic.
    """
    cuts = sorted(_cuts([math.log(value) for value in values], 0, random.Random(seed)))
    edges = [0, *cuts, len(values)]
    return [
        ChangePoint(at, compare_groups(values[before:at], values[at:after]))
        for before, at, after in zip(edges, cuts, edges[2:], strict=False)
    ]


def _cuts(logs: list[float], offset: int, draw: random.Random) -> list[int]:
    if len(logs) < FEWEST:
        return []
    at, best = _best_cut(logs)
    shuffled = list(logs)
    better = 0
    for _ in range(PERMUTATIONS):
        draw.shuffle(shuffled)
        better += _best_cut(shuffled)[1] >= best * (1 - 1e-12)
    if best <= 0 or (better + 1) / (PERMUTATIONS + 1) > 1 - CONFIDENCE:
        return []
    return [*_cuts(logs[:at], offset, draw), offset + at, *_cuts(logs[at:], offset + at, draw)]


def _best_cut(logs: Sequence[float]) -> tuple[int, float]:
    """The place where the sum of squares between both sides is largest, and that sum."""
    n, whole = len(logs), sum(logs)
    mean, left, best = whole / n, 0.0, (0, 0.0)
    for at in range(1, n):
        left += logs[at - 1]
        between = (left - at * mean) ** 2 * n / (at * (n - at))
        if between > best[1]:
            best = at, between
    return best
