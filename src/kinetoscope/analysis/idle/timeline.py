"""What a step would gain if some of its work were shorter: the design's what-if, computed.

A device's work is a chain: each piece starts when the one before has ended and its launch has arrived.
Replaying the chain with shorter pieces (or earlier launches) says how much sooner it ends. That is less than
what was taken out wherever the device then waits for a launch: time that is not on the critical path.

Where the host waited for the device (``cudaStreamSynchronize``, a blocking copy), it could not launch ahead;
the chain is cut there, and the parts are replayed each for itself: what a part gains, everything after it
gains.
"""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.aggregates import whole
from kinetoscope.analysis.events.rows import matching, rows
from kinetoscope.analysis.events.torch_names import PAGEABLE_COPY, SYNCHRONIZATION
from kinetoscope.analysis.idle.launches import arrival_ns
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace


@remembered
def chain(trace: Trace) -> pl.DataFrame:
    """Device work of one trace as a chain, one row a device event that did something, by device and start.

    ``id`` (row of ``device_events``), ``device``, ``end_ns`` (when everything up to here had ended),
    ``adds_ns`` (by how much it moved that end), ``gap_ns`` (the device's own pause before it, launch long
    arrived), ``ready_ns`` (when it could start at the earliest, had nothing been before it) and ``part``
    (number of host waits before its launch). Ends and readiness count from the first start: a double holds no
    nanoseconds of an epoch's.
    """
    table = work(trace).select("id", "device", "start_ns", "duration_ns", "end_ns", "launch")
    table = table.filter(pl.col("duration_ns") > 0)
    launched = trace.host_events["start_ns"].gather(table["launch"])
    table = table.select(
        "id",
        "device",
        "start_ns",
        "duration_ns",
        pl.col("end_ns").alias("own_end_ns"),
        pl.Series("launched", launched),
    ).with_columns(pl.col("own_end_ns").cum_max().over("device").alias("end_ns"))
    before = pl.col("end_ns").shift(1).over("device").fill_null(pl.col("start_ns"))
    table = table.with_columns(
        (pl.col("end_ns") - pl.max_horizontal("start_ns", before)).clip(lower_bound=0).alias("adds_ns"),
        (pl.col("start_ns") - before).clip(lower_bound=0).alias("idle_ns"),
        (pl.col("launched") + arrival_ns(trace)).clip(upper_bound=pl.col("start_ns")).alias("arrived"),
        before.alias("before"),
    )
    queued = pl.col("arrived") <= pl.col("before")
    table = table.with_columns(
        pl.when(queued).then("idle_ns").otherwise(0).alias("gap_ns"),
        # Without a recorded launch nothing says that it could have come earlier than it did.
        pl.when(queued.fill_null(False)).then("arrived").otherwise("start_ns").alias("ready_ns"),
        # What has no launch was launched before the recording, or with the work before it.
        pl.col("launched").forward_fill().over("device").fill_null(0).alias("at"),
    ).drop("launched", "arrived", "before", "idle_ns", "own_end_ns")
    part = waits_of(trace)["at"].search_sorted(table["at"], side="right").cast(pl.UInt32)
    # A part's first piece cannot move by what happens inside the part.
    first = pl.int_range(0, pl.len()).over("device", "part") == 0
    return (
        table.with_columns(part.alias("part"))
        .with_columns(
            pl.when(first).then("start_ns").otherwise("ready_ns").alias("ready_ns"),
            pl.when(first).then(0).otherwise("gap_ns").alias("gap_ns"),
        )
        .with_columns(pl.col("end_ns", "ready_ns") - pl.col("start_ns").min())
        .select("id", "device", "end_ns", "duration_ns", "adds_ns", "gap_ns", "ready_ns", "at", "part")
    )


@remembered
def waits_of(trace: Trace) -> pl.DataFrame:
    """The host's waits for the device: when each ended (``at``), in order, and how long it was
    (``waited_ns``). A copy from or to pageable memory holds the host until it is done."""
    host = trace.host_events
    pageable = trace.device_events["launch"].filter(matching(trace.device_events, "name", PAGEABLE_COPY))
    return (
        host[pl.concat([rows(host, "name", SYNCHRONIZATION), pageable.drop_nulls()]).unique().sort()]
        .select((pl.col("start_ns") + pl.col("duration_ns")).alias("at"), waited_ns="duration_ns")
        .sort("at")
    )


def sooner(trace: Trace, shorter: pl.DataFrame) -> int:
    """How many nanoseconds sooner the recording's device work would end.

    Args:
        trace: one rank.
        shorter: ``id`` of device events and ``saved_ns``, what each is shortened by.
    """
    table = chain(trace)
    if table.is_empty() or shorter.is_empty():
        return 0
    saved = shorter.group_by("id").agg(pl.col("saved_ns").sum())
    # What an event saves of its own duration, the chain saves of what the event added to it.
    left = (1 - (pl.col("saved_ns").fill_null(0) / pl.col("duration_ns"))).clip(0, 1)
    table = table.join(saved, on="id", how="left", maintain_order="left").with_columns(
        (pl.col("adds_ns") * left).alias("adds"), pl.col("ready_ns").cast(pl.Float64).alias("ready")
    )
    parts = _parts(table)
    # A wait gets shorter by no more than it lasted; the last part has no wait behind it.
    until = pl.col("part").shift(-1).over("device")
    waited = waits_of(trace)["waited_ns"].cum_sum().extend_constant(0, 1)  # of the first n waits, at n - 1
    before = waited.gather(parts["part"].cast(pl.Int64) - 1)
    lasted = waited.gather(parts.select(until.cast(pl.Int64) - 1).to_series()) - before
    capped = parts.with_columns(
        pl.min_horizontal("gain", pl.coalesce(pl.Series("lasted", lasted), "gain")).alias("gain")
    )
    return _of_all_parts(capped)


def sooner_launched(trace: Trace, earlier: pl.DataFrame) -> int:
    """The same, if host work were shorter: ``at`` (host time, ns) and ``saved_ns``, spared before everything
    that is launched later in the same part. Never more than is spared: where threads take turns, what one
    waits for may have come from another, and parts overlap."""
    table = chain(trace)
    if table.is_empty() or earlier.is_empty():
        return 0
    spared = earlier.sort("at").select("at", pl.col("saved_ns").cum_sum().alias("spared"))
    # Each part begins anew: what was spared before its wait has already been counted.
    begins = (
        waits_of(trace)
        .select("at", pl.int_range(1, pl.len() + 1, dtype=pl.UInt32).alias("part"))
        .join_asof(spared, on="at")
        .select("part", pl.col("spared").alias("counted"))
    )
    table = (
        table.sort("at")
        .join_asof(spared, on="at")
        .join(begins, on="part", how="left", maintain_order="left")
        .sort("device", "end_ns", "id")
        .with_columns(
            pl.col("adds_ns").cast(pl.Float64).alias("adds"),
            (pl.col("ready_ns") - pl.col("spared").fill_null(0) + pl.col("counted").fill_null(0))
            .cast(pl.Float64)
            .alias("ready"),
        )
    )
    return min(_of_all_parts(_parts(table)), int(earlier["saved_ns"].sum()))


def _parts(table: pl.DataFrame) -> pl.DataFrame:
    """(device, part, gain): how much sooner each part ends with ``adds`` and ``ready`` as they are now."""
    key = ["device", "part"]
    return (
        table.with_columns((pl.col("gap_ns") + pl.col("adds")).cum_sum().over(key).alias("cost"))
        .with_columns((pl.col("ready") + pl.col("adds") - pl.col("cost")).cum_max().over(key).alias("lead"))
        .group_by(key)
        .agg((pl.col("end_ns") - pl.col("lead") - pl.col("cost")).last().clip(lower_bound=0).alias("gain"))
        .sort(key)
    )


def _of_all_parts(gains: pl.DataFrame) -> int:
    """The gain of the device that gains most."""
    return whole(gains.group_by("device").agg(pl.col("gain").sum().round())["gain"].max())
