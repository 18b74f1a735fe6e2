"""The distribution of one series of numbers: mean, variance, quantiles, and whether it was sampled enough."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

NORMAL = 1.4826  # a normal distribution's standard deviation, in median absolute deviations


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """The unbiased variance of a sample of two or more."""
    centre = mean(values)
    return sum((value - centre) ** 2 for value in values) / (len(values) - 1)


def quantile(values: Sequence[float], q: float) -> float:
    """The ``q`` quantile (0 to 1), linear between neighbours, as numpy's and Polars' default does it."""
    return quantile_of_sorted(sorted(values), q)


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of both middle ones."""
    return quantile(values, 0.5)


def quantile_of_sorted(ordered: Sequence[float], q: float) -> float:
    """The ``q`` quantile of values that are in ascending order already."""
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def relative_standard_error(values: Sequence[float]) -> float:
    """Standard error of the median over the median, from order statistics (no distribution is assumed).

    The binomial interval of the median at two standard errors spans the order statistics n/2 ± √n; a quarter
    of its length is one standard error.
    """
    ordered = sorted(values)
    n = len(ordered)
    if n < 5:
        return math.inf
    half = math.sqrt(n)
    low = ordered[max(0, math.floor(n / 2 - half))]
    high = ordered[min(n - 1, math.ceil(n / 2 + half))]
    centre = quantile_of_sorted(ordered, 0.5)
    return (high - low) / 4 / centre if centre else math.inf


def entropy(values: Sequence[float], resolution: float) -> float:
    """Shannon entropy in bits of the values rounded to ``resolution``."""
    counts = Counter(round(value / resolution) for value in values)
    total = len(values)
    return -sum(n / total * math.log2(n / total) for n in counts.values())


def entropy_settled(values: Sequence[float], *, resolution: float) -> bool:
    """True once more samples no longer change what the distribution looks like.

    The criterion of NVBench: the entropy of the first half, of three quarters and of all samples agree within
    2 %, so the shape (several clock states, a long tail) has been seen whole.
    """
    if len(values) < 60:
        return False
    seen = [entropy(values[: len(values) * k // 4], resolution) for k in (2, 3, 4)]
    return max(seen) - min(seen) <= 0.02 * max(seen[-1], 1.0)
