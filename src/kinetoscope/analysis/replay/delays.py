"""How long device work takes to begin once it may: what a launch needs to arrive, what the device pauses.

A start is explained by the latest of its stream's work before it, the work of another stream that it waits
for, and its launch. What remains is the device's own doing and varies without a cause that a trace shows: the
replay takes the mean for every piece of one sort. A longer delay has a cause, but none was recorded: it is
kept as it is, and counted as unexplained.
"""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import GRAPH_LAUNCH
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.replay.dependencies import dependencies
from kinetoscope.analysis.replay.launched import launched, shortest_arrival_ns
from kinetoscope.trace.model import Trace

# Back to back, a device pauses 0.5 to 3 µs between kernels; at a dependency between streams up to 8. A launch
# that takes this much longer than the quickest to arrive was held up as well.
USUAL_NS = 10_000


@remembered
def delays(trace: Trace) -> pl.DataFrame:
    """``launched``, with

    - ``before_ns``: when all that it had to wait for on the device had ended; null for a stream's first,
    - ``latency_ns``: from ``point_ns`` to the start of work that finds its stream idle,
    - ``pause_ns``: from ``before_ns`` to the start of work that was launched in time,
    - ``lost_ns``: how much of the delay that it began with is beyond what is usual.
    """
    work = launched(trace)
    sources = dependencies(trace).drop_nulls("source")
    ends = work["end_ns"].gather(sources["source"]).alias("source_ns")
    latest = sources.select("row", ends).group_by("row").agg(pl.col("source_ns").max())
    arrival = shortest_arrival_ns(trace)
    graph = matching(trace.host_events, "name", GRAPH_LAUNCH).gather(work["launch"]).fill_null(False)
    table = (
        work.join(latest, on="row", how="left", maintain_order="left")
        .with_columns(
            pl.max_horizontal("reach_ns", "source_ns").alias("before_ns"),
            pl.min_horizontal(pl.col("point_ns") + arrival, "start_ns").alias("arrived_ns"),
            pl.struct(graph.alias("graph"), "kind", pl.col("source_ns").is_null()).alias("sort"),
        )
        # Where no launch was recorded, nothing says that the work could have come earlier than it did.
        .with_columns(pl.when(pl.col("point_ns").is_not_null()).then("arrived_ns"))
    )
    late = (pl.col("arrived_ns") >= pl.col("before_ns")).fill_null(pl.col("before_ns").is_null())
    slack = pl.col("start_ns") - pl.max_horizontal("arrived_ns", "before_ns")
    table = table.with_columns(
        late.alias("late"), slack.clip(lower_bound=0).fill_null(0).alias("slack_ns")
    ).with_columns((pl.col("slack_ns") <= USUAL_NS).alias("usual"))
    kept = pl.when(~pl.col("usual")).then("slack_ns")
    table = table.with_columns(_mean("late").alias("arriving_ns"), _mean(~pl.col("late")).alias("pausing_ns"))
    own = pl.when("late").then("arriving_ns").otherwise("pausing_ns")
    since_launch, since_before = (pl.col("start_ns") - pl.col(name) for name in ("point_ns", "before_ns"))
    arriving = pl.min_horizontal(arrival + pl.col("arriving_ns"), since_launch)
    pausing = pl.min_horizontal("pausing_ns", since_before)
    to_launch = pl.col("arrived_ns") - pl.col("point_ns")
    return table.select(
        *work.columns,
        "before_ns",
        pl.when("late")
        .then(to_launch + pl.coalesce(kept, "arriving_ns"))
        .otherwise(arriving)
        .alias("latency_ns"),
        pl.when("late")
        .then(pausing)
        .otherwise(pl.coalesce(kept, "pausing_ns"))
        .fill_null(0)
        .clip(lower_bound=0)
        .alias("pause_ns"),
        (kept - own).fill_null(0).alias("lost_ns"),
    )


def _mean(rows: pl.Expr | str) -> pl.Expr:
    """The mean of the usual delays among ``rows``, of each sort of work."""
    rows = pl.col(rows) if isinstance(rows, str) else rows
    mean = pl.col("slack_ns").filter(pl.col("usual") & rows).mean()
    return mean.over("sort").fill_null(0).round().cast(pl.Int64)
