"""What makes ranks late for collectives, as a change of the recorded steps.

A rank that computed longer computes less, and one whose host took longer launches sooner (see
``ranks.lateness``): as much of its computing and of its idle time in each segment goes away.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kinetoscope.analysis.idle.gaps import gaps
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.ranks.comparison import comparison
from kinetoscope.analysis.ranks.lateness import COMPUTE, Usual, lower_median, mean, with_lateness
from kinetoscope.analysis.replay.change import NOTHING, Change, shorten, without_idle
from kinetoscope.analysis.run import Run
from kinetoscope.trace.model import Trace

Changes = Mapping[int, Change]  # by rank


@remembered
def punctual(run: Run) -> Changes:
    """No rank takes longer for its own work than the lower median of the ranks that it meets."""
    return _no_longer(run, lower_median)


@remembered
def evened(run: Run) -> Changes:
    """None takes longer than the mean of all ranks, as if all had as much to do."""
    return _no_longer(run, mean)


def _no_longer(run: Run, usual: Usual) -> Changes:
    table = with_lateness(comparison(run).recorded, usual).filter(
        ~pl.col("before"), pl.col("instance").is_not_null()
    )
    longer = pl.col("longer_ns").clip(0)
    computing = pl.min_horizontal(pl.col(f"{COMPUTE}_longer").clip(0), longer)
    idle = pl.col("segment_ns") - pl.col(f"{COMPUTE}_all")
    begun = {trace.rank: trace.steps["start_ns"].min() for trace in run.traces}
    came = pl.col("rank").replace_strict(begun, return_dtype=pl.Int64)
    since = pl.col("start_ns").shift(1).over("rank", "device")
    shares = table.select(
        "rank",
        "device",
        "start_ns",
        pl.coalesce(since, came).alias("since_ns"),
        pl.int_range(pl.len()).over("rank", "device", "step").alias("place"),
        (computing / pl.col(f"{COMPUTE}_all")).fill_nan(0).clip(0, 1).alias("computing"),
        ((longer - computing) / idle).fill_nan(0).clip(0, 1).alias("idling"),
    )
    # By how much longer a rank took until a recording's first collectives is not known: as much as in its
    # other steps.
    places = ["rank", "device", "place"]
    shares = shares.with_columns(
        pl.coalesce(name, pl.col(name).mean().over(places), 0.0) for name in ("computing", "idling")
    ).sort("since_ns")
    return {trace.rank: _shorter(run, trace, shares.filter(rank=trace.rank)) for trace in run.traces}


def _shorter(run: Run, trace: Trace, shares: pl.DataFrame) -> Change:
    """The shares ``computing`` and ``idling`` of what a rank did before each collective go away."""
    if shares.is_empty():
        return NOTHING
    computed = _before(shares, work(trace).filter(pl.col("part") != "communication"))
    idle = _before(shares, gaps(run).filter(rank=trace.rank))
    shorter = shorten(computed["id"], computed["duration_ns"] * computed["computing"])
    return shorter | without_idle(trace, idle.with_columns(share="idling"))


def _before(shares: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """The rows that begin between the start of a collective and that of the next, with its shares."""
    of_next = shares.select("device", "since_ns", "computing", "idling", until="start_ns")
    found = table.sort("start_ns").join_asof(
        of_next, left_on="start_ns", right_on="since_ns", by="device", check_sortedness=False
    )
    return found.filter(pl.col("start_ns") < pl.col("until"))
