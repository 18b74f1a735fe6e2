"""Launches of one step matched with those of another: by op and place, then by shape, then by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.passes.match import MOST_PAIRS, aligned

# Columns that have to be equal, the strictest first; between rows that match, the next is tried.
LEVELS = (("op_name", "name", "shape"), ("op_name", "name"), ("name",))
# Last, launches of one op match the launches that are there now: other kernels for the same work.
OP = ("op_name",)


class Pair(NamedTuple):
    """A launch of the base and the one that it is now, as rows of both accounts' ``launches``."""

    base: int
    new: int


class Unmatched(NamedTuple):
    """Neighbours without a match: launches that were there, and those that are now; either may be empty."""

    base: tuple[int, ...]
    new: tuple[int, ...]


def match(base: pl.DataFrame, new: pl.DataFrame) -> tuple[list[Pair], list[Unmatched]]:
    """Every row of both tables is in exactly one pair or in one of the unmatched."""
    codes = [_coded(base, new, level) for level in (*LEVELS, OP)]
    pairs: list[Pair] = []
    blocks: list[Unmatched] = []
    _refine(codes, 0, range(len(base)), range(len(new)), pairs, blocks)
    return _moved(codes[0], pairs, blocks)


Codes = tuple[Sequence[int], Sequence[int]]


def _coded(base: pl.DataFrame, new: pl.DataFrame, level: tuple[str, ...]) -> Codes:
    """A number for each row, which is the same for equal rows of both."""
    both = pl.concat([base.select(level), new.select(level)])
    codes = both.select(pl.struct(level).rank("dense")).to_series().to_list()
    return codes[: len(base)], codes[len(base) :]


def _refine(
    codes: list[Codes], level: int, ours: range, theirs: range, pairs: list[Pair], blocks: list[Unmatched]
) -> None:
    """Match two intervals at a level, and what lies between the matches at the next."""
    if not ours and not theirs:
        return
    if not ours or not theirs:
        blocks.append(Unmatched(tuple(ours), tuple(theirs)))
        return
    if level == len(codes) - 1:
        blocks.extend(_of_ops(codes[level], ours, theirs))
        return
    left, right = codes[level]
    found = _same([left[i] for i in ours], [right[j] for j in theirs])
    anchors = [(-1, -1), *found, (len(ours), len(theirs))]
    for (i, j), (next_i, next_j) in pairwise(anchors):
        _refine(codes, level + 1, ours[i + 1 : next_i], theirs[j + 1 : next_j], pairs, blocks)
        if next_i < len(ours):
            pairs.append(Pair(ours[next_i], theirs[next_j]))


def _of_ops(codes: Codes, ours: range, theirs: range) -> Iterable[Unmatched]:
    """Consecutive launches of one op, each with those that the same op launches there now."""
    runs = [  # neighbours of one code: the code and their rows
        [(code, list(group)) for code, group in groupby(rows, key=side.__getitem__)]
        for side, rows in zip(codes, (ours, theirs), strict=True)
    ]
    found = _same(*([code for code, _ in side] for side in runs))
    anchors = [(-1, -1), *found, (len(runs[0]), len(runs[1]))]
    for (i, j), (next_i, next_j) in pairwise(anchors):
        between = Unmatched(_rows(runs[0][i + 1 : next_i]), _rows(runs[1][j + 1 : next_j]))
        if between.base or between.new:
            yield between
        if next_i < len(runs[0]):
            yield Unmatched(_rows(runs[0][next_i : next_i + 1]), _rows(runs[1][next_j : next_j + 1]))


def _rows(runs: Sequence[tuple[int, list[int]]]) -> tuple[int, ...]:
    return tuple(row for _, rows in runs for row in rows)


def _same(ours: Sequence[int], theirs: Sequence[int]) -> list[tuple[int, int]]:
    """Places with the same code, in order; in very long intervals the n-th of a kind is the n-th."""
    if len(ours) * len(theirs) <= MOST_PAIRS:
        return aligned(tuple(ours), tuple(theirs))
    places: dict[int, list[int]] = defaultdict(list)
    for place in range(len(theirs) - 1, -1, -1):
        places[theirs[place]].append(place)
    found: list[tuple[int, int]] = []
    for place, code in enumerate(ours):
        while places[code] and found and places[code][-1] <= found[-1][1]:
            places[code].pop()
        if places[code]:
            found.append((place, places[code].pop()))
    return found


def _moved(codes: Codes, pairs: list[Pair], blocks: list[Unmatched]) -> tuple[list[Pair], list[Unmatched]]:
    """Match what is gone from one place and new at another, equal in all columns."""
    gone: dict[int, list[int]] = defaultdict(list)
    for block in blocks:
        if not block.new:
            for row in reversed(block.base):
                gone[codes[0][row]].append(row)
    moved: dict[int, int] = {}
    for block in blocks:
        if not block.base:
            for row in block.new:
                if gone[codes[1][row]]:
                    moved[row] = gone[codes[1][row]].pop()
    left = set(moved.values())
    kept = (
        Unmatched(
            tuple(row for row in base if row not in left), tuple(row for row in new if row not in moved)
        )
        for base, new in blocks
    )
    pairs = pairs + [Pair(base, new) for new, base in moved.items()]
    return pairs, [block for block in kept if block.base or block.new]
