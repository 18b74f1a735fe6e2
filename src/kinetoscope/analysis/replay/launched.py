"""Device work in the order of its streams, with when its launch left the host."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import PAGEABLE_COPY, SYNCHRONIZATION
from kinetoscope.analysis.idle.launches import arrival_ns
from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import whole

# A call of this many times the usual length was held up before it launched: loading a module, a full queue.
HELD_UP = 10
# What a launch takes to arrive at an idle device: 5 to 14 µs on V100, A100, H100, H200, MI250 and MI300X.
# Where every launch had to queue, none shows it.
LONGEST_ARRIVAL_NS = 15_000


@remembered
def launched(trace: Trace) -> pl.DataFrame:
    """Device work by device, stream and start, one row a device event that took time.

    ``row`` (its number here), ``id`` (row of ``device_events``), ``device``, ``stream`` (dense over the
    trace), ``kind``, ``start_ns``, ``duration_ns``, ``reach_ns`` (when everything before it on its stream had
    ended; null for the first), ``end_ns`` (the same with itself), ``work_ns`` (by how much it moved that),
    ``launch``, ``lane`` (of the launch), ``step`` and ``point_ns`` (when its launch left the host: the call's
    start, later in a call that was held up; null where no launch was recorded).
    """
    host = trace.host_events
    table = trace.device_events.select(
        "id", "device", "stream", "kind", "name", "start_ns", "duration_ns", "launch", "step"
    ).filter(pl.col("duration_ns") > 0)
    table = table.sort("device", "stream", "start_ns", maintain_order=True).with_columns(
        pl.struct("device", "stream").rle_id().alias("stream")
    )
    end = (pl.col("start_ns") + pl.col("duration_ns")).cum_max().over("stream")
    reach = pl.col("end_ns").shift(1).over("stream")
    return (
        table.with_columns(
            _points(trace, table),
            host["lane"].gather(table["launch"]).alias("lane"),
            end.alias("end_ns"),
            pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"),
        )
        .with_columns(reach.alias("reach_ns"))
        .with_columns(
            (pl.col("end_ns") - pl.max_horizontal("start_ns", "reach_ns"))
            .clip(lower_bound=0)
            .alias("work_ns"),
            pl.when(pl.col("point_ns").is_not_null())
            .then(pl.min_horizontal("point_ns", "start_ns"))
            .alias("point_ns"),
        )
    )


def _points(trace: Trace, work: pl.DataFrame) -> pl.Series:
    host = trace.host_events
    calls = host.select("start_ns", "duration_ns")[work["launch"]]
    usual = whole(calls["duration_ns"].median())
    blocks = matching(host, "name", SYNCHRONIZATION).gather(work["launch"]) | matching(
        work, "name", PAGEABLE_COPY
    )
    held_up = (pl.col("duration_ns") > HELD_UP * usual) & ~blocks
    late = pl.when(held_up).then(pl.col("duration_ns") - usual).otherwise(0)
    return calls.select((pl.col("start_ns") + late).alias("point_ns")).to_series()


def shortest_arrival_ns(trace: Trace) -> int:
    """What a launch takes to arrive at an idle device."""
    return min(arrival_ns(trace), LONGEST_ARRIVAL_NS)
