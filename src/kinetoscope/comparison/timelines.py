"""One step of each run as it lies on the device, to be drawn one above the other."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.time.periods import periods
from kinetoscope.analysis.time.phases import leading_of
from kinetoscope.comparison.account import Account

MOST = 1500  # pieces of a step that a page draws: the longest

Lanes = list[tuple[str, str, float, float, int]]


def timelines(base: Account, new: Account) -> tuple[Lanes, Lanes]:
    """(name, category, start, duration, lane) of the work in the middle step of each, µs from its begin."""
    return _timeline(base), _timeline(new)


def _timeline(account: Account) -> Lanes:
    trace = account.trace
    table = work(trace)
    begin_ns = table["start_ns"].min()
    if len(trace.steps):
        own = leading_of(trace).sort("duration_ns")["step"]
        step = own[(len(own) - 1) // 2]
        table = table.filter(pl.col("step") == step)
        begin_ns = periods(trace).filter(pl.col("step") == step)["start_ns"][0]
    if not isinstance(begin_ns, int):
        return []
    rows = (
        table.sort("duration_ns", descending=True)
        .head(MOST)
        .sort("start_ns")
        .select(
            pl.col("name").cast(pl.String),
            pl.col("category").cast(pl.String),
            (pl.col("start_ns") - begin_ns) / 1000,
            pl.col("duration_ns") / 1000,
            pl.struct("device", "stream").rank("dense").cast(pl.Int64) - 1,
        )
    )
    return list(rows.iter_rows())
