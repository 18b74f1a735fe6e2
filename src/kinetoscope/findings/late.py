"""What makes ranks late for collectives, as a change: what their ways into them take longer than others'.

A way is what a device does from the end of one collective to the start of the next. It computes longer, or it
is idle longer as its host took longer from launch to launch (see ``ranks.blame``): as much of its computing
and its idle time goes away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from kinetoscope.analysis.compared.comparison import COMPUTE, SYNC, comparison
from kinetoscope.analysis.idle.gaps import gaps
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.replay.change import NOTHING, Change, shorten, without_idle
from kinetoscope.sources.run import Run
from kinetoscope.trace.model import Trace

Changes = Mapping[int, Change]  # by rank


@remembered
def punctual(run: Run) -> Changes:
    """None of a rank's ways takes longer than the median of all ranks' (the lower one)."""
    return _no_longer(run, lambda name: pl.col(name).quantile(0.5, "lower"))


@remembered
def evened(run: Run) -> Changes:
    """None takes longer than the mean of all ranks', as if all had as much to do."""
    return _no_longer(run, lambda name: pl.col(name).mean())


def _no_longer(run: Run, than: Callable[[str], pl.Expr]) -> Changes:
    ways = comparison(run).table.filter(~pl.col("before"), pl.col("meeting").is_not_null())
    parts = ("own_ns", "host_ns", COMPUTE, SYNC)
    untold = pl.any_horizontal(pl.col(name).is_null().any().over("meeting") for name in parts)
    longer = {name: (pl.col(name) - than(name).over("meeting")).clip(0) for name in parts}
    # A host that was late once is so at every launch after: what its own time explains counts, and no more.
    excess = pl.min_horizontal(longer["own_ns"], longer["host_ns"] + longer[COMPUTE] + longer[SYNC])
    computing = pl.min_horizontal(longer[COMPUTE], excess)
    idling = (excess - computing) / (pl.col("own_ns") - pl.col(COMPUTE))
    begun = {trace.rank: trace.steps["start_ns"].min() for trace in run.traces}
    came = pl.col("rank").replace_strict(begun, return_dtype=pl.Int64)
    shares = ways.select(
        "rank",
        "device",
        "start_ns",
        pl.coalesce(pl.col("start_ns") - pl.col("own_ns"), came).alias("way_ns"),
        pl.int_range(pl.len()).over("rank", "device", "step").alias("place"),
        *(
            pl.when(~untold).then(share.fill_nan(0).clip(0, 1)).alias(name)
            for name, share in (("computing", computing / pl.col(COMPUTE)), ("idling", idling))
        ),
    )
    # By how much a recording's first ways were longer is not known: as much as in its other steps.
    places = ["rank", "device", "place"]
    shares = shares.with_columns(
        pl.coalesce(name, pl.col(name).mean().over(places), 0.0) for name in ("computing", "idling")
    ).sort("way_ns")
    return {trace.rank: _shorter(run, trace, shares.filter(rank=trace.rank)) for trace in run.traces}


def _shorter(run: Run, trace: Trace, ways: pl.DataFrame) -> Change:
    """The shares ``computing`` and ``idling`` of what lies in each way go away."""
    if ways.is_empty():
        return NOTHING
    computed = _in(ways, work(trace).filter(pl.col("part") != "communication"))
    idle = _in(ways, gaps(run).filter(rank=trace.rank))
    shorter = shorten(computed["id"], computed["duration_ns"] * computed["computing"])
    return shorter | without_idle(trace, idle.with_columns(share="idling"))


def _in(ways: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """The rows that begin in a way, with its shares."""
    shares = ways.select("device", "way_ns", "computing", "idling", until="start_ns")
    found = table.sort("start_ns").join_asof(
        shares, left_on="start_ns", right_on="way_ns", by="device", check_sortedness=False
    )
    return found.filter(pl.col("start_ns") < pl.col("until"))
