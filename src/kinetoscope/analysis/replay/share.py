"""One rank's device work, cut into the blocks that a program goes through."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.replay.device_work import delays, dependencies
from kinetoscope.analysis.replay.segments import BEFORE
from kinetoscope.analysis.replay.spans import Spans
from kinetoscope.analysis.replay.threads import logical_threads
from kinetoscope.analysis.replay.waits import waits
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed

ROWS = {
    "row": pl.Int64,
    "id": pl.UInt32,
    "stream": pl.UInt32,
    "segment": pl.Int64,
    "point_ns": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "latency_ns": pl.Int64,
    "pause_ns": pl.Int64,
    "work_ns": pl.Int64,
    "duration_ns": pl.Int64,
    "lost_ns": pl.Int64,
}


def inside(within: Spans) -> pl.Expr:
    """Whether work (rows of ``delays``) was launched inside the spans; what lost its launch, whether it began
    there. What its stream still had to do when the recording began is the work of steps before."""
    if not within.steps:
        return pl.lit(True)
    at = pl.coalesce("point_ns", "start_ns")
    known = pl.col("point_ns").is_not_null()
    left_over = ~known.cum_max().over("stream") & known.any()
    return pl.any_horizontal(at.is_between(start, end, "left") for start, end in within.bounds) & ~left_over


def blocks(trace: Trace, within: Spans, segments: pl.DataFrame, met: pl.Series) -> pl.DataFrame:
    """Device work inside the spans, columns as in ``ROWS``, with

    - ``segment``: from which it was launched; null where no launch was recorded,
    - ``block``: work of one stream and one segment that nothing outside waits for, nor waits for anything,
      but at its ends,
    - ``meets``: whether it is one of the collectives ``met``, each a block of its own,
    - ``key``: where its place in the program is, by the recording's clock.

    Every stream begins with a row without work: what it was given before.
    """
    table = (
        delays(trace).drop("name").join(logical_threads(trace), on="lane", how="left", maintain_order="left")
    )
    table = _launching(table.filter(inside(within)), segments)
    # What begins a recording has nothing to pause after; what was launched before it, no launch either.
    left_over = pl.when(pl.col("point_ns").is_null() & (not within.steps)).then(
        pl.col("start_ns") - within.bounds[0][0]
    )
    pause = pl.when(pl.col("before_ns").is_null()).then(left_over.fill_null(0)).otherwise("pause_ns")
    table = _opened(trace, table.with_columns(pause.alias("pause_ns"))).with_columns(
        pl.col("id").is_in(met.implode()).fill_null(False).alias("meets")
    )
    before = pl.col("row").is_in(dependencies(trace)["row"].implode())
    ends = pl.concat([dependencies(trace)["source"], waits(trace)["row"]]).drop_nulls().unique()
    after = pl.col("row").is_in(ends.implode()) | (pl.col("row") == BEFORE) | pl.col("meets")
    changes = (pl.col(name).ne_missing(pl.col(name).shift(1)) for name in ("stream", "segment"))
    cut = pl.any_horizontal(*changes, before, pl.col("meets"), after.shift(1, fill_value=True))
    key = pl.max_horizontal(
        pl.when("meets").then("start_ns").otherwise("end_ns"),
        segments["passed_ns"].gather(table["segment"]),
    )
    return table.with_columns(cut.cum_sum().alias("block") - 1, key.alias("key")).with_columns(
        pl.col("key").cum_max().over("stream")
    )


def _opened(trace: Trace, table: pl.DataFrame) -> pl.DataFrame:
    streams = delays(trace)["stream"].unique()
    zeros = [pl.lit(0, ROWS[name]).alias(name) for name in ("latency_ns", "pause_ns", "work_ns", "lost_ns")]
    long_ago = pl.lit(0, pl.Int64)
    openings = streams.to_frame().select(
        pl.lit(BEFORE, pl.Int64).alias("row"),
        "stream",
        long_ago.alias("start_ns"),
        long_ago.alias("end_ns"),
        *zeros,
        pl.lit(1, pl.Int64).alias("duration_ns"),
    )
    rows = table.select(typed(ROWS))
    both = pl.concat([openings.cast({"stream": pl.UInt32}), rows], how="diagonal")
    return both.sort("stream", "row", maintain_order=True).select(list(ROWS))


def _launching(table: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """Adds ``segment``. A launch inside a call that waited came when the call returned."""
    begun = segments.with_row_index("segment").select("segment", "thread", opened="start_ns", closed="end_ns")
    # A launch at the instant of a sync came before it, as a copy's that the sync waits for.
    begun = begun.unique(["thread", "opened"], keep="first", maintain_order=True)
    points = table.select("point_ns", "thread").with_row_index("order").sort("point_ns")
    from_these = points.join_asof(
        begun.sort("opened"), left_on="point_ns", right_on="opened", by="thread", check_sortedness=False
    ).sort("order")
    found = table.with_columns(from_these["segment"], from_these["closed"])
    late = (pl.col("point_ns") > pl.col("closed")) & (pl.col("segment") + 1 < len(segments))
    found = found.with_columns((pl.col("segment") + late.cast(pl.UInt32)).alias("segment"))
    opens = segments["start_ns"].gather(found["segment"])
    later = pl.max_horizontal("point_ns", opens) - pl.col("point_ns")
    return found.with_columns(
        (pl.col("latency_ns") - later).clip(lower_bound=0).alias("latency_ns"),
        (pl.col("point_ns") + later).alias("point_ns"),
        # Without a launch it goes with the work before it.
        pl.col("segment").forward_fill().over("stream").alias("segment"),
    )


def ends_with(work: pl.DataFrame, targets: pl.DataFrame) -> pl.Series:
    """The block that ends with each target (``stream`` and ``row``, see ``Passed``): its own, or that of the
    last work of its stream before it that is replayed."""
    rows = work.select("stream", "row", "block").sort("row")
    wanted = targets.select(pl.col("stream").cast(pl.UInt32), pl.col("row").cast(pl.Int64))
    found = wanted.with_row_index("order").sort("row")
    return found.join_asof(rows, on="row", by="stream", check_sortedness=False).sort("order")["block"]


def sources(trace: Trace, work: pl.DataFrame) -> dict[int, list[int]]:
    """By block, the blocks of other streams that end before it begins."""
    linked = dependencies(trace).with_columns(pl.col("row").cast(pl.Int64))
    linked = linked.join(work.select("row", "block"), on="row")
    before = pl.col("source").cast(pl.Int64).fill_null(BEFORE)
    ends = ends_with(work, linked.select("stream", row=before)).alias("source")
    return dict(linked.select("block", ends).group_by("block").agg("source").iter_rows())
