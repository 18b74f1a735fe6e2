"""Device work in the order of its streams: when its launch left the host, and what it waited for.

A start is explained by the latest of its stream's work before it, the work of another stream that it waits
for, and its launch. What remains is the device's own doing and varies without a cause that a trace shows: the
replay takes the mean for every piece of one sort. A longer delay has a cause, but none was recorded: it is
kept as it is, and counted as unexplained.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from kinetoscope.analysis.events.rows import END, matching, rows
from kinetoscope.analysis.events.torch_names import GRAPH_LAUNCH, PAGEABLE_COPY, SYNCHRONIZATION
from kinetoscope.analysis.idle.launches import arrival_ns
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.time.intervals import apart, within
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed, whole

# A call of this many times the usual length was delayed before it launched: loading a module, a full queue.
DELAYED = 10
# What a launch takes to arrive at an idle device: 5 to 14 µs on V100, A100, H100, H200, MI250 and MI300X.
# Where every launch had to queue, none shows it.
LONGEST_ARRIVAL_NS = 15_000


@remembered
def launched(trace: Trace) -> pl.DataFrame:
    """Device work by device, stream and start, one row per device event that took time: ``row`` (its number
    here), ``id`` (row of ``device_events``), ``device``, ``stream`` (dense over the trace), ``kind``,
    ``start_ns``, ``duration_ns``, ``reach_ns`` (when everything before it on its stream had ended; null for
    the first), ``end_ns`` (the same with itself), ``work_ns`` (by how much it moved that), ``launch``,
    ``lane`` (of the launch), ``step`` and ``point_ns`` (when its launch left the host; null where none was
    recorded)."""
    host = trace.host_events
    table = trace.device_events.select(
        "id", "device", "stream", "kind", "name", "start_ns", "duration_ns", "launch", "step"
    ).filter(pl.col("duration_ns") > 0)
    table = table.sort("device", "stream", "start_ns", maintain_order=True).with_columns(
        stream=pl.struct("device", "stream").rle_id()
    )
    keys = apart(table, ["stream"])
    end = within(END.cum_max(), keys)
    reach = within(pl.col("end_ns").shift(1), keys)
    return (
        table.with_columns(
            _points(trace, table),
            lane=host["lane"][table["launch"]],
            end_ns=end,
            row=pl.int_range(pl.len(), dtype=pl.UInt32),
        )
        .with_columns(reach_ns=reach)
        .with_columns(
            work_ns=(pl.col("end_ns") - pl.max_horizontal("start_ns", "reach_ns")).clip(lower_bound=0),
            point_ns=pl.col("point_ns").clip(upper_bound=pl.col("start_ns")),
        )
    )


def _points(trace: Trace, work: pl.DataFrame) -> pl.Series:
    host = trace.host_events
    calls = host.select("start_ns", "duration_ns")[work["launch"]]
    usual = whole(calls["duration_ns"].median())
    blocks = matching(host, "name", SYNCHRONIZATION)[work["launch"]] | matching(work, "name", PAGEABLE_COPY)
    delayed = (pl.col("duration_ns") > DELAYED * usual) & ~blocks
    late = pl.when(delayed).then(pl.col("duration_ns") - usual).otherwise(0)
    return calls.select(point_ns=pl.col("start_ns") + late).to_series()


def shortest_arrival_ns(trace: Trace) -> int:
    """The time that a launch takes to arrive at an idle device, ns."""
    return min(arrival_ns(trace), LONGEST_ARRIVAL_NS)


STREAM_WAIT = r"^(cuda|cu|hip)StreamWaitEvent"
# An end this near before a start may be what the start waited for.
RIGHT_BEFORE_NS = 10_000

DEPENDENCIES = {"row": pl.UInt32, "stream": pl.UInt32, "source": pl.UInt32}


def of_several_streams(trace: Trace, bounds: Sequence[tuple[int, int]]) -> pl.DataFrame:
    """The kernels of several streams (``id``, ``device``, ``start_ns``, ``end_ns``) that compute, launched by
    the host between these bounds; none where one stream of a device computes. Side by side they share the
    device: that more of them would run so than were recorded is no saving."""
    table = work(trace).select("id", "device", "stream", "start_ns", "end_ns", "part")
    found = table.filter(part="compute").drop("part")
    if found.select("device", "stream").n_unique() <= found["device"].n_unique():
        return found.clear()
    points = launched(trace).select("id", "point_ns").drop_nulls()
    inside = pl.any_horizontal(pl.col("point_ns").is_between(start, end) for start, end in bounds)
    return found.drop("stream").join(points.filter(inside), on="id", how="semi")


@remembered
def dependencies(trace: Trace) -> pl.DataFrame:
    """``row`` waited for ``source`` (rows of ``launched``), which is on ``stream``, another of its device;
    null where that was given nothing before in the recording.

    A trace tells that a stream was made to wait (``cudaStreamWaitEvent``), not for what: the work launched
    next on that thread is taken to wait for what every other stream had been given last, unless that ended
    after it began. So is work that started right after another stream's ended, with its own stream and launch
    long ready.
    """
    table = launched(trace)
    if table["stream"].n_unique() < 2:
        return pl.DataFrame(schema=DEPENDENCIES)
    found = pl.concat([_announced(trace, table), _evident(trace, table)]).unique()
    return found.select(typed(DEPENDENCIES)).sort("row", "stream")


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
        waiting.join(table.select("device", other="stream").unique(), on="device")
        .filter(pl.col("other") != pl.col("stream"))
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


# Back to back, a device pauses 0.5 to 3 µs between kernels; at a dependency between streams up to 8. A launch
# that takes this much longer than the quickest to arrive was delayed as well.
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
    ends = work["end_ns"][sources["source"]].alias("source_ns")
    latest = sources.select("row", ends).group_by("row").agg(pl.col("source_ns").max())
    arrival = shortest_arrival_ns(trace)
    graph = matching(trace.host_events, "name", GRAPH_LAUNCH)[work["launch"]].fill_null(False)
    table = work.join(latest, on="row", how="left", maintain_order="left").with_columns(
        before_ns=pl.max_horizontal("reach_ns", "source_ns"),
        # Where no launch was recorded, nothing says that the work could have come earlier than it did.
        arrived_ns=(pl.col("point_ns") + arrival).clip(upper_bound=pl.col("start_ns")),
        sort=pl.struct(graph.alias("graph"), "kind", pl.col("source_ns").is_null()),
    )
    late = (pl.col("arrived_ns") >= pl.col("before_ns")).fill_null(pl.col("before_ns").is_null())
    slack = pl.col("start_ns") - pl.max_horizontal("arrived_ns", "before_ns")
    table = table.with_columns(late=late, slack_ns=slack.clip(lower_bound=0).fill_null(0)).with_columns(
        usual=pl.col("slack_ns") <= USUAL_NS
    )
    kept = pl.when(~pl.col("usual")).then("slack_ns")
    table = table.with_columns(arriving_ns=_mean(pl.col("late")), pausing_ns=_mean(~pl.col("late")))
    own = pl.when("late").then("arriving_ns").otherwise("pausing_ns")
    since_launch, since_before = (pl.col("start_ns") - pl.col(name) for name in ("point_ns", "before_ns"))
    arriving = pl.min_horizontal(arrival + pl.col("arriving_ns"), since_launch)
    pausing = pl.min_horizontal("pausing_ns", since_before)
    to_launch = pl.col("arrived_ns") - pl.col("point_ns")
    pause = pl.when("late").then(pausing).otherwise(pl.coalesce(kept, "pausing_ns"))
    return table.select(
        *work.columns,
        "before_ns",
        latency_ns=pl.when("late").then(to_launch + pl.coalesce(kept, "arriving_ns")).otherwise(arriving),
        pause_ns=pause.fill_null(0).clip(lower_bound=0),
        lost_ns=(kept - own).fill_null(0),
    )


def _mean(rows: pl.Expr) -> pl.Expr:
    """The mean of the usual delays among ``rows``, of each sort of work."""
    mean = pl.col("slack_ns").filter(pl.col("usual") & rows).mean()
    return mean.over("sort").fill_null(0).round().cast(pl.Int64)
