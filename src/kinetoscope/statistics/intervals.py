"""The ratio of two series of timings, with a confidence interval.

Timings are skewed, come in clock states and are correlated in time, so everything here is built on medians
and on resampling blocks of consecutive samples. There is one function for each way of measuring two series:

- ``compare``: in rounds, each of which times both once, so that sample *i* of both shares whatever the
  machine was doing then; resampling rounds keeps that.
- ``compare_rounds``: in few rounds, each a process of its own.
- ``compare_pairs``: in pairs of processes, of which a coin decided which ran first.
- ``compare_apart``: one after the other, many samples of one process each.
- ``compare_groups``: in several processes each, one number a process.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

from kinetoscope.statistics.distribution import mean, median, quantile_of_sorted, variance

Verdict = Literal["faster", "slower", "cannot tell"]
Stands = Literal["faster", "slower", "same", "cannot tell"]

CONFIDENCE = 0.95
TAIL = (1 - CONFIDENCE) / 2
RESAMPLES = 400
SECTIONS = 6  # consecutive sections of rounds whose own ratios must agree (see `compare`)
# Above this, neighbouring rounds are averaged before resampling, which bounds the cost and keeps the width.
MOST_ROUNDS = 400


class Ratio(NamedTuple):
    """How much time a subject takes relative to its base (below 1: faster), with its confidence interval."""

    ratio: float
    low: float
    high: float

    def widened(self, margin: float) -> Ratio:
        """The interval with a further, independent error: the margins (of logarithms) add as squares."""

        def side(bound: float) -> float:
            own = math.inf if bound in (0.0, math.inf) else abs(math.log(bound / self.ratio))
            return math.hypot(own, margin)

        return _around(self.ratio, side(self.low), side(self.high))


def verdict(interval: Ratio, *, noise_floor: float = 0.0) -> Verdict:
    """Whether the whole interval lies beyond the noise floor (how far apart two identical subjects, measured
    together, were: ``0.004`` = 0.4 %), and on which side."""
    if interval.high < 1 - noise_floor:
        return "faster"
    if interval.low > 1 + noise_floor:
        return "slower"
    return "cannot tell"


def stands(interval: Ratio, near: float) -> Stands:
    """The verdict on two versions: ``same`` where the interval has 1 and is nearer to it than ``near``."""
    known = verdict(interval)
    is_near = 1 - near <= interval.low and interval.high <= 1 + near
    return "same" if known == "cannot tell" and is_near else known


def compare(
    # base, other: sample *i* of both is from round *i* (same length, in the order measured)
    base: Sequence[float],
    other: Sequence[float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Ratio:
    """Ratio of the medians, ``other`` over ``base``, with an interval that keeps the rounds paired.

    The interval is the percentile interval of a block bootstrap, widened where needed until it contains
    Student's interval of the ratios of six consecutive sections: a bootstrap of correlated timings is too
    narrow (up to 19 % of identical subjects come out different, see the tests), and sections see slow memory.

    Raises:
        ValueError: the samples are not paired, or fewer than two rounds for each section.

    Source: circular block bootstrap (Politis and Romano 1992), block length from the data; batch means
    (Schmeiser 1982).
    """
    if len(base) != len(other):
        raise ValueError("paired samples must have the same length")
    if len(base) < 2 * SECTIONS:
        raise ValueError(f"{len(base)} rounds cannot be compared: {2 * SECTIONS} are the fewest")
    a, b = _thin(base), _thin(other)
    sections = zip(_section_logs(a), _section_logs(b), strict=True)
    margin = _student_margin([of_other - of_base for of_base, of_other in sections])
    centre_a, centre_b = median(a), median(b)
    # Which side of its median each sample of a round fell: noise that both share cancels, as in the ratio.
    influence = [
        (y > centre_b) - (y < centre_b) - (x > centre_a) + (x < centre_a) for x, y in zip(a, b, strict=True)
    ]
    medians = _resampled_medians((a, b), influence, resamples, random.Random(seed))
    return _bootstrapped(median(other) / median(base), [y / x for x, y in medians], margin)


def compare_rounds(base: Sequence[float], other: Sequence[float]) -> Ratio:
    """Ratio of two settings from one number a round (each round ran both, in processes of their own).

    A few rounds cannot be resampled; the logarithms of the per-round ratios get Student's interval,
    which is wide when there are few. One round has no interval: it is then 0 to infinity.
    """
    logs = [math.log(b / a) for a, b in zip(base, other, strict=True)]
    margin = _student_margin(logs) if len(logs) > 1 else math.inf
    return _around(math.exp(sum(logs) / len(logs)), margin, margin)


def compare_pairs(base: Sequence[float], other: Sequence[float], *, tail: float = TAIL) -> Ratio:
    """Ratio of two programs from pairs of runs, of which a fair coin decided which ran first.

    If the programs are the same, each pair's difference is as likely to have the other sign, whatever the
    machine did meanwhile: nothing is assumed of the noise, which may drift, burst or return. The interval
    has the factors that the signed ranks of the pairs do not reject; one of so few pairs that none could be
    rejected is 0 to infinity (six are the fewest at 95 %).

    Args:
        tail: the share of the signs that may reject a factor, on each side.

    Source: Fisher 1935 (The Design of Experiments, 21: the coin justifies the test); Wilcoxon 1945; Hodges
    and Lehmann 1963 (the estimate, and the interval of the means of all two pairs).
    """
    logs = [math.log(b / a) for a, b in zip(base, other, strict=True)]
    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(logs, 2))
    ratio = math.exp(median(means))
    # Sums of positive ranks, from 0 up, that have together no more than ``tail`` of all signs.
    outside = sum(together <= tail for together in itertools.accumulate(_rank_sums(len(logs))))
    if not outside:
        return Ratio(ratio, 0.0, math.inf)
    return Ratio(ratio, math.exp(means[outside - 1]), math.exp(means[-outside]))


def compare_apart(base: Sequence[float], other: Sequence[float]) -> Ratio:
    """Ratio of the medians of two series that were measured one after the other, in processes of their own.

    Nothing pairs their samples: each is resampled by itself, in blocks as long as its correlation. The
    interval is widened, as in ``compare``, to that of six consecutive sections of each (Welch's interval of
    their medians). With fewer than two samples a section, Welch's interval of the samples alone stands. How
    processes differ from each other is not in it: see ``between_runs_noise`` and ``compare_groups``.
    """
    ratio = median(other) / median(base)
    if min(len(base), len(other)) < 2 * SECTIONS:
        margin = welch_margin([math.log(x) for x in base], [math.log(x) for x in other])
        return _around(ratio, margin, margin)
    a, b = _thin(base), _thin(other)
    margin = welch_margin(_section_logs(a), _section_logs(b))
    draw = random.Random(0)
    resampled: list[list[float]] = []
    for values in (a, b):
        centre = median(values)
        influence = [(value > centre) - (value < centre) for value in values]
        resampled.append([one for (one,) in _resampled_medians((values,), influence, RESAMPLES, draw)])
    return _bootstrapped(ratio, [y / x for x, y in zip(*resampled, strict=True)], margin)


def compare_groups(base: Sequence[float], other: Sequence[float]) -> Ratio:
    """Ratio of two programs from one number a run, each run a process of its own: Welch's interval of the
    logarithms, so that how runs differ is in it. A single run is taken to vary as those of the other."""
    logs_a, logs_b = ([math.log(value) for value in values] for values in (base, other))
    centre = sum(logs_b) / len(logs_b) - sum(logs_a) / len(logs_a)
    margin = welch_margin(logs_a, logs_b)
    return _around(math.exp(centre), margin, margin)


def between_runs_noise(base: Sequence[float], other: Sequence[float]) -> float:
    """The difference of two runs that drift alone explains: half of the interval (of the logarithm) of their
    difference; 0 with fewer than two samples a section.

    A run differs from the next by more than its own sections do: with noise that is a random walk, the means
    of two runs of length T, the one right after the other, differ by a variance of 2T/3, one section of
    either by T/3.
    """
    if min(len(base), len(other)) < 2 * SECTIONS:
        return 0.0
    squares = sum(variance(_section_logs(_thin(values))) for values in (base, other))
    return _two_sided(2 * (SECTIONS - 1)) * math.sqrt(2 * squares)


def welch_margin(base: Sequence[float], other: Sequence[float]) -> float:
    """Half of the interval of the difference of two means whose variances may differ; infinite of one value
    each.

    Source: Welch 1947, with Satterthwaite's freedom, rounded down.
    """
    if len(base) < 2 and len(other) < 2:
        return math.inf
    # A single value is as uncertain as one of the others.
    errors = [variance(base if len(base) > 1 else other) / len(base)]
    errors += [variance(other if len(other) > 1 else base) / len(other)]
    together = sum(errors)
    if together == 0:
        return 0.0
    freedom = [max(len(values), 2) - 1 for values in (base, other) if len(values) > 1]
    parts = [error**2 / f for error, f in zip(errors, freedom, strict=False)]
    degrees = together**2 / sum(parts) if len(freedom) == 2 and sum(parts) > 0 else min(freedom)
    return _two_sided(max(1, math.floor(degrees))) * math.sqrt(together)


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


def autocorrelation_time(series: Sequence[float]) -> float:
    """Integrated autocorrelation time in samples (1 for independent samples), with Sokal's window of 5."""
    n, centre = len(series), mean(series)
    centred = [x - centre for x in series]
    squares = sum(x * x for x in centred)
    if squares <= 0:
        return 1.0
    total = 1.0
    for lag in range(1, n // 2):
        total += 2 * sum(a * b for a, b in zip(centred, centred[lag:], strict=False)) / squares
        if lag >= 5 * total:
            break
    return max(1.0, total)


def _around(ratio: float, margin_low: float, margin_high: float) -> Ratio:
    """A ratio with its margins, which are of its logarithm."""
    return Ratio(ratio, ratio * math.exp(-margin_low), ratio * math.exp(margin_high))


def _bootstrapped(ratio: float, resampled: Sequence[float], margin: float) -> Ratio:
    """The percentile interval of resampled ratios, at least as wide as ``margin`` on both sides."""
    ordered = sorted(resampled)
    least = _around(ratio, margin, margin)
    return Ratio(
        ratio,
        min(least.low, quantile_of_sorted(ordered, TAIL)),
        max(least.high, quantile_of_sorted(ordered, 1 - TAIL)),
    )


def _resampled_medians(
    series: tuple[list[float], ...], influence: Sequence[float], resamples: int, draw: random.Random
) -> list[tuple[float, ...]]:
    """The medians of series that are resampled together, in blocks of consecutive rounds that are as long as
    the memory of ``influence``: that of each round on what is estimated."""
    n = len(influence)
    time = autocorrelation_time(influence)
    block = 1 if time < 1.5 else max(2, min(n // 6, math.ceil(3 * time)))
    circular = [[*values, *values[:block]] for values in series]
    medians: list[tuple[float, ...]] = []
    for _ in range(resamples):
        samples: list[list[float]] = [[] for _ in series]
        for _ in range(-(-n // block)):
            start = int(draw.random() * n)
            for sample, values in zip(samples, circular, strict=True):
                sample += values[start : start + block]
        medians.append(tuple(median(sample[:n]) for sample in samples))
    return medians


def _thin(values: Sequence[float]) -> list[float]:
    group = -(-len(values) // MOST_ROUNDS)
    if group == 1:
        return list(values)
    return [sum(values[i : i + group]) / group for i in range(0, len(values) - group + 1, group)]


def _section_logs(values: Sequence[float]) -> list[float]:
    edges = [len(values) * k // SECTIONS for k in range(SECTIONS + 1)]
    return [math.log(median(values[i:j])) for i, j in itertools.pairwise(edges)]


def _student_margin(values: Sequence[float]) -> float:
    return _two_sided(len(values) - 1) * math.sqrt(variance(values) / len(values))


def _two_sided(freedom: int) -> float:
    return student_t(1 - TAIL, freedom)


@functools.cache
def _rank_sums(pairs: int) -> Sequence[float]:
    """The share of all signs of the ranks 1 to ``pairs`` with which the positive ones sum to 0, 1, 2 …"""
    if pairs == 0:
        return (1.0,)
    without = _rank_sums(pairs - 1)
    padding = (0.0,) * pairs
    return tuple(
        (absent + present) / 2
        for absent, present in zip((*without, *padding), (*padding, *without), strict=True)
    )
