"""Which device work waited for work of another stream."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import rows
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.replay.launched import launched, shortest_arrival_ns
from kinetoscope.trace.model import Trace

STREAM_WAIT = r"^(cuda|cu|hip)StreamWaitEvent"
# An end this near before a start may be what the start waited for.
RIGHT_BEFORE_NS = 10_000

DEPENDENCIES = {"row": pl.UInt32, "stream": pl.UInt32, "source": pl.UInt32}


@remembered
def dependencies(trace: Trace) -> pl.DataFrame:
    """``row`` waited for ``source`` (rows of ``launched``), which is on ``stream``, another of its device;
    null where that was given nothing before in the recording.

    A trace tells that a stream was made to wait (``cudaStreamWaitEvent``), not which one nor for what. The
    work launched next on that thread is taken to wait for what every other stream had been given last, unless
    that ended after it began. And work that started right after another stream's ended, with its own stream
    and launch long ready, is taken to have waited for that.
    """
    table = launched(trace)
    if table["stream"].n_unique() < 2:
        return pl.DataFrame(schema=DEPENDENCIES)
    found = pl.concat([_announced(trace, table), _evident(trace, table)]).unique()
    return found.select(pl.col(name).cast(dtype) for name, dtype in DEPENDENCIES.items()).sort(
        "row", "stream"
    )


def _announced(trace: Trace, table: pl.DataFrame) -> pl.DataFrame:
    host = trace.host_events
    waits = host.select("lane", at="start_ns")[rows(host, "name", STREAM_WAIT)].sort("at")
    known = table.drop_nulls("point_ns").sort("point_ns")
    work = known.select("row", "device", "stream", "lane", "point_ns", "start_ns")
    waiting = waits.join_asof(
        work, left_on="at", right_on="point_ns", by="lane", strategy="forward", check_sortedness=False
    ).drop_nulls("row")
    given = known.select("end_ns", other="stream", given_at="point_ns", source="row")
    return (
        _with_other_streams(waiting, table)
        .sort("at")
        .join_asof(given, left_on="at", right_on="given_at", by="other", check_sortedness=False)
        .filter((pl.col("end_ns") <= pl.col("start_ns")).fill_null(True))
        .select("row", "source", stream="other")
    )


def _evident(trace: Trace, table: pl.DataFrame) -> pl.DataFrame:
    arrived = pl.col("point_ns") + shortest_arrival_ns(trace) + RIGHT_BEFORE_NS
    ready = pl.max_horizontal(arrived, pl.col("reach_ns") + RIGHT_BEFORE_NS)
    idle = table.filter(pl.col("point_ns").is_not_null() & (pl.col("start_ns") > ready))
    ends = table.select("end_ns", on="device", other="stream", source="row", given_at="point_ns").sort(
        "end_ns"
    )
    work = idle.select("row", "device", "stream", "start_ns", "point_ns")
    # Of all that ended right before, not of all streams: there may be thousands.
    first = ends["end_ns"].search_sorted(work["start_ns"] - RIGHT_BEFORE_NS, "left")
    behind = ends["end_ns"].search_sorted(work["start_ns"], "right")
    pairs = work.with_columns(at=pl.int_ranges(first, behind, eager=True)).explode("at").drop_nulls("at")
    return (
        pl.concat([pairs.drop("at"), ends[pairs["at"]]], how="horizontal")
        .filter((pl.col("on") == pl.col("device")) & (pl.col("other") != pl.col("stream")))
        .group_by("row", "point_ns", "other", maintain_order=True)
        .agg(pl.col("source", "given_at").last())
        .filter((pl.col("given_at") < pl.col("point_ns")).fill_null(True))
        .select("row", "source", stream="other")
    )


def _with_other_streams(work: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    streams = table.select("device", other="stream").unique()
    return work.join(streams, on="device").filter(pl.col("other") != pl.col("stream"))
