"""The light pass' device work and the full one's, matched: each kernel of the one is the kernel of the other
that stands at its place, or where the passes differ what stands in both in the same order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from difflib import SequenceMatcher
from functools import lru_cache

import polars as pl
from msgspec import Struct

from kinetoscope.analysis.kernels.work import work
from kinetoscope.trace.model import Trace

SIMILAR = 0.5  # of a step's kernels: a step of another kind shares less, and is left out
# Kernels of the one times kernels of the other, besides what they begin and end with: more take too long.
MOST_PAIRS = 4_000_000

LIKE = ("name", "grid", "block")

Codes = tuple[int, ...]


class Match(Struct, frozen=True):
    """``rows``: which row of the full pass' ``device_events`` each of the light one's is (``light``,
    ``full``). ``share`` is of the device work that the light pass' steps launched."""

    rows: pl.DataFrame
    share: float


def match(light: Trace, full: Trace) -> Match:
    """Match two passes of one rank, in launch order by name, grid and block."""
    ours, theirs = _coded(_launched(light), _launched(full))
    theirs_by_step = _by_step(theirs)
    pairs: list[tuple[int, int]] = []
    for ids, codes in _by_step(ours).values():
        like = _like(codes, theirs_by_step)
        if like is not None:
            others, their_codes = theirs_by_step[like]
            pairs += [(ids[i], others[j]) for i, j in aligned(codes, their_codes)]
    rows = pl.DataFrame(pairs, {"light": pl.UInt32, "full": pl.UInt32}, orient="row")
    return Match(rows, len(rows) / len(ours) if len(ours) else 0.0)


def _launched(trace: Trace) -> pl.DataFrame:
    """Work launched in the steps, in launch order: (id, step, name, grid, block)."""
    table = work(trace).filter(pl.col("step").is_not_null())
    launched = trace.host_events["start_ns"].gather(table["launch"])
    return (
        table.with_columns(launched_ns=pl.coalesce(launched, "start_ns"))
        .sort("step", "launched_ns", "start_ns", "id")
        .select("id", "step", *(pl.col(name).cast(pl.String).fill_null("") for name in LIKE))
    )


def _coded(ours: pl.DataFrame, theirs: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add a ``code`` to both that is the same for the same name, grid and block."""
    codes = pl.concat([ours, theirs]).select(LIKE).unique(maintain_order=True).with_row_index("code")
    first, second = (table.join(codes, on=LIKE, maintain_order="left") for table in (ours, theirs))
    return first, second


def _by_step(table: pl.DataFrame) -> dict[int, tuple[list[int], Codes]]:
    grouped = table.group_by("step", maintain_order=True).agg("id", "code")
    return {step: (ids, tuple(codes)) for step, ids, codes in grouped.iter_rows()}


def _like(codes: Codes, steps: Mapping[int, tuple[list[int], Codes]]) -> int | None:
    """The step that shares most with this one, as a share of the longer of both."""
    counted, best, most = Counter(codes), None, SIMILAR
    for step, (_, others) in steps.items():
        if codes == others:
            return step
        common = (counted & Counter(others)).total() / max(len(codes), len(others))
        if common > most or (best is None and common == most):
            best, most = step, common
    return best


@lru_cache(maxsize=8)  # steps of a kind are the same: one alignment serves them all
def aligned(ours: tuple[Hashable, ...], theirs: tuple[Hashable, ...]) -> list[tuple[int, int]]:
    """Places in both that hold the same, in order."""
    shorter = min(len(ours), len(theirs))
    begin = next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)
    rest = shorter - begin
    end = next((i for i in range(rest) if ours[-1 - i] != theirs[-1 - i]), rest)
    pairs = [(i, i) for i in range(begin)]
    middle, other = ours[begin : len(ours) - end], theirs[begin : len(theirs) - end]
    if middle and other and len(middle) * len(other) <= MOST_PAIRS:
        for block in SequenceMatcher(None, middle, other, autojunk=False).get_matching_blocks():
            pairs += [(begin + block.a + i, begin + block.b + i) for i in range(block.size)]
    return pairs + [(len(ours) - i, len(theirs) - i) for i in range(end, 0, -1)]
