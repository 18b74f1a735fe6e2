"""Rounds in a series of times: after every so many something else happens, and that one takes longer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from kinetoscope.statistics.distribution import mean, median

FEWEST = 3  # two whole rounds lie between three long times; with fewer nothing is known to come again
REGULAR = 0.8  # of the times that end a round, so many are long: one may be missed by chance
ENOUGH = 6  # of so many long times the mean counts, as in a clock of the program's own
CHANCE = 0.05  # rounds that chance makes of times in any order are found at most so often
MOST = 2000  # more times than that are not looked at, but the latest


class Rounds(NamedTuple):
    """Every ``size``-th time is long, from the one with the number ``first`` on."""

    size: int
    first: int
    seen: int  # so many long ones were due, and are among the times
    usual: float  # the mean of the others
    long: float  # the mean of those; of fewer than six the median: one that the machine drew out would decide
    chance: float  # how likely times in any order have rounds as clear as these, at most

    @property
    def between(self) -> float:
        """The time that comes in once a round."""
        return self.long - self.usual

    @property
    def whole(self) -> float:
        return self.size * self.usual + self.between

    @property
    def each(self) -> float:
        """The time of one in ``size``, with its share of what comes in: unlike the mean of all, it does not
        depend on how many rounds were cut off at the ends."""
        return self.whole / self.size

    def mean_of(self, numbers: Sequence[int], values: Sequence[float]) -> float:
        """The same of other figures of the same times."""
        ends = [(number - self.first) % self.size == 0 for number in numbers]
        due = [value for value, ends_round in zip(values, ends, strict=True) if ends_round]
        others = [value for value, ends_round in zip(values, ends, strict=True) if not ends_round]
        return ((self.size - 1) * mean(others) + _typical(due)) / self.size


def rounds(values: Sequence[float], numbers: Sequence[int] | None = None) -> Rounds | None:
    """The rounds that a series is made of; None where it is made of none.

    A size and a place in the round are tried by how many of the times there are above the middle between the
    median of these and that of all others, against how many of all are: if the times came in any order, the
    hypergeometric distribution says how often that many or more of them were there by chance. That is
    multiplied by the number of sizes and places that there are (Bonferroni). Nothing is assumed of how times
    are distributed, and single long ones elsewhere are let be.

    Args:
        values: times, in order.
        numbers: ascending, of the times; some may be missing. From 0 on, where none are given.
    """
    numbers = range(len(values)) if numbers is None else numbers
    series = list(zip(numbers, values, strict=True))[-MOST:]
    if len(series) <= FEWEST:
        return None
    numbers, values = [number for number, _ in series], [value for _, value in series]
    tried = [judged(numbers, values, size, first) for size, first in _candidates(numbers, values)]
    found = [one for one in tried if one is not None and one.chance <= CHANCE]
    return min(found, key=lambda one: (one.chance, one.size), default=None)


def _candidates(numbers: Sequence[int], values: Sequence[float]) -> Iterable[tuple[int, int]]:
    """Sizes and places that the longest of the times, as many as rounds of one size have, are apart by."""
    longest = sorted(range(len(values)), key=values.__getitem__, reverse=True)
    whole = {len(values) // size for size in range(2, len(values) // FEWEST + 1)}
    found = set[tuple[int, int]]()
    for count in {count for one in whole for count in (one, one + 1) if count >= FEWEST}:
        places = sorted(numbers[at] for at in longest[:count])
        size = round(median([after - before for before, after in pairwise(places)]))
        if size > 1:
            remainders = [place % size for place in places]
            first = max(set(remainders), key=remainders.count)
            found.add((size, numbers[0] + (first - numbers[0]) % size))
    return found


def judged(numbers: Sequence[int], values: Sequence[float], size: int, first: int) -> Rounds | None:
    """Rounds of this size, the first of which ends with the number ``first``; None where times are not long
    there, however likely that is."""
    due = [value for number, value in zip(numbers, values, strict=True) if number % size == first % size]
    others = [value for number, value in zip(numbers, values, strict=True) if number % size != first % size]
    if len(due) < FEWEST or len(others) < len(due) or median(due) <= median(others):
        return None
    middle = (median(due) + median(others)) / 2
    hits, longer = sum(value > middle for value in due), sum(value > middle for value in values)
    usual, long = mean(others), _typical(due)
    if hits < REGULAR * len(due) or long <= usual:
        return None
    tried = _sizes_and_places(numbers[-1] - numbers[0] + 1)
    chance = min(1.0, tried * _at_least(hits, len(due), longer, len(values)))
    return Rounds(size, first, len(due), usual, long, chance)


def _typical(values: Sequence[float]) -> float:
    return mean(values) if len(values) >= ENOUGH else median(values)


def _sizes_and_places(span: int) -> int:
    """How many ways there are to place three or more times equally far apart, at least two, in so many: the
    sum over sizes of the lesser of the size and what two rounds leave."""
    third, half = span // 3, (span - 1) // 2
    first_third = max(0, third * (third + 1) // 2 - 1)
    return first_third + (half - third) * span - (half * (half + 1) - third * (third + 1))


def _at_least(hits: int, drawn: int, marked: int, of: int) -> float:
    """The probability that of so many drawn out of all at least so many are among the marked ones."""
    every = _log_ways(of, drawn)
    most = min(drawn, marked)
    ways = (
        _log_ways(marked, k) + _log_ways(of - marked, drawn - k) - every
        for k in range(hits, most + 1)
        if drawn - k <= of - marked
    )
    return min(1.0, math.fsum(map(math.exp, ways)))


def _log_ways(of: int, drawn: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(drawn + 1) - math.lgamma(of - drawn + 1)
