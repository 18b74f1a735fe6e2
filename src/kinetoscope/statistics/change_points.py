"""Changes of the level in a series of measurements."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from kinetoscope.statistics.intervals import CONFIDENCE, Ratio, compare_groups

PERMUTATIONS = 999
FEWEST = 6
NO_ERROR = 1e-18  # a sum of squares that is none but for rounding


class ChangePoint(NamedTuple):
    """A change of level before the value at ``at``; ``ratio``: the values from there on to those before."""

    at: int
    ratio: Ratio


class Changes(NamedTuple):
    """How a series changes: at ``points``; or by about the same with each value, which ``drift`` then is: the
    ratio of a value to the one before."""

    points: list[ChangePoint]
    drift: float | None = None


def change_points(values: Sequence[float]) -> Changes:
    """The changes of level in a series of medians of runs, in order, or its drift.

    A series is cut where the means of the logarithms on both sides differ most for their number, if no more
    than 5 % of its shuffled orders have a cut as good; then each side in the same way. A series of
    fewer than six is never cut: it has too few orders. Where one straight line explains the series better
    than its levels do, there are none.

    Source: binary segmentation (Scott and Knott 1974), permutation test of the largest statistic; the line
    or the levels by the Bayesian information criterion (Schwarz 1978).
    """
    logs = [math.log(value) for value in values]
    cuts = sorted(_cuts(logs, 0, random.Random(0)))
    edges = [0, *cuts, len(values)]
    if cuts:
        slope, start = statistics.linear_regression(range(len(logs)), logs)
        line = [start + slope * place for place in range(len(logs))]
        levels = [fmean(logs[i:j]) for i, j in pairwise(edges) for _ in range(i, j)]
        # A line has two parameters; of levels each is one, and so is each place between them.
        if _information(logs, line, 2) < _information(logs, levels, 2 * len(cuts) + 1):
            return Changes([], math.exp(slope))
    return Changes(
        [
            ChangePoint(at, compare_groups(values[before:at], values[at:after]))
            for before, at, after in zip(edges, cuts, edges[2:], strict=False)
        ]
    )


def _information(values: Sequence[float], fitted: Sequence[float], parameters: int) -> float:
    """The Bayesian information criterion of a fit: the lower, the better."""
    squares = sum((value - own) ** 2 for value, own in zip(values, fitted, strict=True))
    return len(values) * math.log(max(squares, NO_ERROR)) + parameters * math.log(len(values))


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
