"""Statistics of timings: pure functions on plain numbers, nothing assumed about their distribution.

Timings are skewed, come in clock states and remember the past, so everything here is built on medians and on
resampling blocks of consecutive rounds. A *round* times every subject once, in random order; sample *i* of
two subjects therefore shares whatever the machine was doing then, and resampling rounds keeps that.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

Verdict = Literal["faster", "slower", "cannot tell"]

CONFIDENCE = 0.95
RESAMPLES = 400
# Consecutive stretches of rounds whose own ratios must agree (see `compare`).
SECTIONS = 6
# Above this, neighbouring rounds are averaged before resampling, which bounds the cost and keeps the width.
MOST_ROUNDS = 400


class Ratio(NamedTuple):
    """How much time a subject takes relative to its base (below 1: faster), with its confidence interval."""

    ratio: float
    low: float
    high: float


def quantile(values: Sequence[float], q: float) -> float:
    """The ``q`` quantile (0 to 1), linear between neighbours, as numpy's and Polars' default does it."""
    return _quantile_of_sorted(sorted(values), q)


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def _quantile_of_sorted(ordered: Sequence[float], q: float) -> float:
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
    centre = _quantile_of_sorted(ordered, 0.5)
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


def autocorrelation_time(series: Sequence[float]) -> float:
    """Integrated autocorrelation time in samples (1 for independent samples), with Sokal's window of 5."""
    n = len(series)
    mean = sum(series) / n
    centred = [x - mean for x in series]
    variance = sum(x * x for x in centred)
    if variance <= 0:
        return 1.0
    total = 1.0
    for lag in range(1, n // 2):
        total += 2 * sum(a * b for a, b in zip(centred, centred[lag:], strict=False)) / variance
        if lag >= 5 * total:
            break
    return max(1.0, total)


def block_length(base: Sequence[float], other: Sequence[float]) -> int:
    """How many consecutive rounds to resample together, from the data.

    What matters is the memory of each round's influence on the ratio of the medians: which side of its median
    each of the two samples fell. Noise that both share cancels here, as it does in the ratio.
    """
    centre_base, centre_other = median(base), median(other)
    influence = [
        (b > centre_other) - (b < centre_other) - (a > centre_base) + (a < centre_base)
        for a, b in zip(base, other, strict=True)
    ]
    time = autocorrelation_time(influence)
    if time < 1.5:
        return 1
    return max(2, min(len(base) // 6, math.ceil(3 * time)))


def compare(
    base: Sequence[float],
    other: Sequence[float],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Ratio:
    """Ratio of the medians, ``other`` over ``base``, with an interval that keeps the rounds paired.

    The interval is the percentile interval of a block bootstrap, widened where needed until it holds
    Student's interval of the ratios of six consecutive sections: a bootstrap of correlated timings is too
    narrow (up to 19 % of identical subjects come out different, see the tests), and sections see slow memory.

    Args:
        base, other: sample *i* of both is from round *i* (same length, in the order measured).

    Raises:
        ValueError: the samples are not paired, or fewer than two rounds for each section.

    Source: circular block bootstrap (Politis and Romano 1992), block length from the data; batch means
    (Schmeiser 1982).
    """
    if len(base) != len(other):
        raise ValueError("paired samples must have the same length")
    if len(base) < 2 * SECTIONS:
        raise ValueError(f"{len(base)} rounds cannot be compared: {2 * SECTIONS} are the fewest")
    ratio = median(other) / median(base)
    a, b = _thin(base), _thin(other)
    n = len(a)
    margin = _section_margin(a, b, confidence)
    block = block_length(a, b)
    draw = random.Random(seed)
    circular_a, circular_b = [*a, *a[:block]], [*b, *b[:block]]
    blocks = -(-n // block)
    ratios: list[float] = []
    for _ in range(resamples):
        sample_a: list[float] = []
        sample_b: list[float] = []
        for _ in range(blocks):
            start = int(draw.random() * n)
            sample_a += circular_a[start : start + block]
            sample_b += circular_b[start : start + block]
        del sample_a[n:], sample_b[n:]
        sample_a.sort()
        sample_b.sort()
        ratios.append(_quantile_of_sorted(sample_b, 0.5) / _quantile_of_sorted(sample_a, 0.5))
    ratios.sort()
    tail = (1 - confidence) / 2
    return Ratio(
        ratio,
        min(ratio * math.exp(-margin), _quantile_of_sorted(ratios, tail)),
        max(ratio * math.exp(margin), _quantile_of_sorted(ratios, 1 - tail)),
    )


def _section_margin(base: Sequence[float], other: Sequence[float], confidence: float) -> float:
    pairs = zip(_section_logs(base), _section_logs(other), strict=True)
    return _student_margin([of_other - of_base for of_base, of_other in pairs], confidence)


def _student_margin(values: Sequence[float], confidence: float) -> float:
    n = len(values)
    mean = sum(values) / n
    error = math.sqrt(sum((x - mean) ** 2 for x in values) / (n - 1) / n)
    return student_t(1 - (1 - confidence) / 2, n - 1) * error


def _thin(values: Sequence[float]) -> list[float]:
    group = -(-len(values) // MOST_ROUNDS)
    if group == 1:
        return list(values)
    return [sum(values[i : i + group]) / group for i in range(0, len(values) - group + 1, group)]


def verdict(interval: Ratio, *, noise_floor: float = 0.0) -> Verdict:
    """What may be said: the whole interval must lie beyond the noise floor.

    Args:
        noise_floor: how far apart two identical subjects, measured together, were (``0.004`` = 0.4 %).
    """
    if interval.high < 1 - noise_floor:
        return "faster"
    if interval.low > 1 + noise_floor:
        return "slower"
    return "cannot tell"


Stands = Literal["faster", "slower", "same", "cannot tell"]


def stands(interval: Ratio, alike: float) -> Stands:
    """What may be said of two versions.

    Args:
        alike: a fraction; where the whole interval holds 1 and lies nearer to it, they are the same.
    """
    if interval.high < 1:
        return "faster"
    if interval.low > 1:
        return "slower"
    return "same" if 1 - alike <= interval.low and interval.high <= 1 + alike else "cannot tell"


@functools.cache
def student_t(probability: float, freedom: int) -> float:
    """The quantile of Student's t (``student_t(0.975, 2)`` is 4.303), by Simpson's rule and bisection."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def below(t: float) -> float:
        steps = 2000
        width = t / steps
        total = 0.0
        for i in range(steps + 1):
            weight = 1 if i in (0, steps) else 4 if i % 2 else 2
            total += weight * (1 + (i * width) ** 2 / freedom) ** (-(freedom + 1) / 2)
        return 0.5 + scale * total * width / 3

    low, high = 0.0, 1.0
    while below(high) < probability:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < probability else (low, middle)
    return (low + high) / 2


def compare_rounds(base: Sequence[float], other: Sequence[float]) -> Ratio:
    """Ratio of two settings from one number a round (each round ran both, in processes of their own).

    A few rounds cannot be resampled honestly; the logarithms of the per-round ratios get Student's interval,
    which is wide when there are few. One round has no interval: it is then 0 to infinity.
    """
    logs = [math.log(b / a) for a, b in zip(base, other, strict=True)]
    n = len(logs)
    mean = sum(logs) / n
    if n == 1:
        return Ratio(math.exp(mean), 0.0, math.inf)
    margin = _student_margin(logs, CONFIDENCE)
    return Ratio(math.exp(mean), math.exp(mean - margin), math.exp(mean + margin))


def compare_apart(base: Sequence[float], other: Sequence[float], *, seed: int = 0) -> Ratio:
    """Ratio of the medians of two series that were measured one after the other, in processes of their own.

    Nothing pairs their samples: each is resampled by itself, in blocks as long as it remembers. The interval
    is widened, as in ``compare``, to what six consecutive sections of each say (Welch's interval of their
    medians). Of fewer than two samples a section, Welch's interval of the samples alone stands. How processes
    differ from each other is not in it: see ``widened`` and ``compare_groups``.
    """
    ratio = median(other) / median(base)
    if min(len(base), len(other)) < 2 * SECTIONS:
        margin = welch_margin([math.log(x) for x in base], [math.log(x) for x in other])
        return Ratio(ratio, ratio * math.exp(-margin), ratio * math.exp(margin))
    a, b = _thin(base), _thin(other)
    margin = welch_margin(_section_logs(a), _section_logs(b))
    draw = random.Random(seed)
    medians_a, medians_b = _resampled_medians(a, draw), _resampled_medians(b, draw)
    ratios = sorted(y / x for x, y in zip(medians_a, medians_b, strict=True))
    tail = (1 - CONFIDENCE) / 2
    return Ratio(
        ratio,
        min(ratio * math.exp(-margin), _quantile_of_sorted(ratios, tail)),
        max(ratio * math.exp(margin), _quantile_of_sorted(ratios, 1 - tail)),
    )


def wandering(base: Sequence[float], other: Sequence[float]) -> float:
    """How far apart two runs may be for no other reason than that each wanders: half of the interval (of the
    logarithm) of their difference; 0 of fewer than two samples a section.

    A run differs from the next by more than its own sections do: of noise that walks, the means of two runs
    of length T, the one right after the other, differ by a variance of 2T/3, one section of either by T/3.
    """
    if min(len(base), len(other)) < 2 * SECTIONS:
        return 0.0
    squares = 0.0
    for values in (base, other):
        logs = _section_logs(_thin(values))
        mean = sum(logs) / SECTIONS
        squares += sum((x - mean) ** 2 for x in logs) / (SECTIONS - 1)
    return student_t(1 - (1 - CONFIDENCE) / 2, 2 * (SECTIONS - 1)) * math.sqrt(2 * squares)


def compare_groups(base: Sequence[float], other: Sequence[float]) -> Ratio:
    """Ratio of two programs from one number a run, each run a process of its own: Welch's interval of the
    logarithms, so that how runs differ is in it. A single run is taken to vary as those of the other."""
    logs_a, logs_b = ([math.log(value) for value in values] for values in (base, other))
    centre = sum(logs_b) / len(logs_b) - sum(logs_a) / len(logs_a)
    margin = welch_margin(logs_a, logs_b)
    if math.isinf(margin):
        return Ratio(math.exp(centre), 0.0, math.inf)
    return Ratio(math.exp(centre), math.exp(centre - margin), math.exp(centre + margin))


def widened(ratio: Ratio, margin: float) -> Ratio:
    """The interval with an error beside its own, independent of it: both margins (of logarithms) add as
    squares."""

    def side(bound: float) -> float:
        own = math.inf if bound in (0.0, math.inf) else abs(math.log(bound / ratio.ratio))
        return math.hypot(own, margin)

    low, high = side(ratio.low), side(ratio.high)
    return Ratio(ratio.ratio, ratio.ratio * math.exp(-low), ratio.ratio * math.exp(high))


def welch_margin(base: Sequence[float], other: Sequence[float]) -> float:
    """Half of the interval of the difference of two means whose variances may differ; infinite of one value
    each.

    Source: Welch 1947, with Satterthwaite's freedom, rounded down.
    """
    if len(base) < 2 and len(other) < 2:
        return math.inf
    errors = [_squared_error(base, other), _squared_error(other, base)]
    together = sum(errors)
    if together == 0:
        return 0.0
    freedom = [max(len(values), 2) - 1 for values in (base, other) if len(values) > 1]
    parts = [error**2 / f for error, f in zip(errors, freedom, strict=False)]
    degrees = together**2 / sum(parts) if len(freedom) == 2 and sum(parts) > 0 else min(freedom)
    return student_t(1 - (1 - CONFIDENCE) / 2, max(1, math.floor(degrees))) * math.sqrt(together)


def _squared_error(values: Sequence[float], others: Sequence[float]) -> float:
    """Of the mean; a single value is as uncertain as one of the others."""
    of = values if len(values) > 1 else others
    mean = sum(of) / len(of)
    return sum((x - mean) ** 2 for x in of) / (len(of) - 1) / len(values)


def _section_logs(values: Sequence[float]) -> list[float]:
    edges = [len(values) * k // SECTIONS for k in range(SECTIONS + 1)]
    return [math.log(median(values[i:j])) for i, j in itertools.pairwise(edges)]


def _resampled_medians(values: list[float], draw: random.Random) -> list[float]:
    n = len(values)
    centre = median(values)
    time = autocorrelation_time([(value > centre) - (value < centre) for value in values])
    block = 1 if time < 1.5 else max(2, min(n // 6, math.ceil(3 * time)))
    circular = [*values, *values[:block]]
    medians: list[float] = []
    for _ in range(RESAMPLES):
        sample: list[float] = []
        for _ in range(-(-n // block)):
            start = int(draw.random() * n)
            sample += circular[start : start + block]
        medians.append(median(sample[:n]))
    return medians
