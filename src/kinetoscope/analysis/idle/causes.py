"""The causes of idle time: what keeps host threads from launching work, interval by interval."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events import torch_names
from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.events.torch_names import COMPUTES_NOTHING, OP, OPS
from kinetoscope.analysis.idle.launches import launches, launching_lanes
from kinetoscope.analysis.memo import kept, remembered
from kinetoscope.analysis.time.intervals import outermost, overlay
from kinetoscope.analysis.time.window import window
from kinetoscope.trace.model import Trace

CALL = r"(?i)(^|_)(runtime|driver)$"


@kept
def computing(trace: Trace) -> pl.DataFrame:
    """One row per op of a launching thread that does its work on the CPU, the outermost of nested ones:
    ``lane``, ``start_ns``, ``end_ns`` and ``host_event`` (row of ``host_events``). It calls no runtime, is
    not one that only describes memory, and takes longer itself than an op that launches (their median)."""
    host = trace.host_events
    is_op = matching(host, "category", OPS)
    launching = nearest(host, is_op).fill_null(host["id"])[launches(trace)["launch"]].unique().sort()
    if launching.is_empty():
        return host.clear().select("lane", "start_ns", end_ns="duration_ns", host_event="id")
    at = host.select("lane", touched="start_ns")
    touches = pl.concat([at.filter(matching(host, "category", CALL)), at[launching]]).sort("touched")
    named = is_op & matching(host, "name", OP) & ~matching(host, "name", COMPUTES_NOTHING)
    longer = host["self_ns"] > host["duration_ns"].gather(launching).median()
    ops = (
        host.select("id", "lane", "start_ns", "duration_ns")
        .filter(named & longer & host["lane"].is_in(launching_lanes(trace).implode()))
        .select("lane", "start_ns", END, host_event="id")
        .sort("start_ns")
    )
    ops = ops.join_asof(
        touches, left_on="start_ns", right_on="touched", by="lane", strategy="forward", check_sortedness=False
    )
    ops = ops.filter((pl.col("touched") >= pl.col("end_ns")).fill_null(True)).drop("touched")
    return outermost(ops, ["lane"])


CAUSES = [
    "launch-bound",
    "synchronization",
    "data-loading",
    "garbage-collection",
    "host-op",
    "allocator",
    "compilation",
    "waiting-for-rank",
    "start-or-end",
    "between-kernels",
    "unexplained",
]
CAUSE = pl.Enum(CAUSES)

# What a host event's name says, most telling first: a cudaMalloc inside a compilation is the compilation's.
NAMED = {
    "compilation": torch_names.COMPILATION,
    "garbage-collection": torch_names.GARBAGE_COLLECTION,
    "data-loading": f"{torch_names.DATA_LOADER}|{torch_names.DATA_LOADER_FRAME}",
    "allocator": torch_names.ALLOCATION,
    "waiting-for-rank": torch_names.BARRIER,
    "synchronization": torch_names.SYNCHRONIZATION,
}

# Which cause names an interval that several fit. The profiler's overhead comes before a long op around it.
PRIORITY = [*NAMED, "overhead", "host-op", "unexplained"]

# A thread that is on its way to a launch records something every few hundred microseconds at the least:
# between two ops of the recordings that this was written on, eager Python takes 5 to 200 µs. A longer silence
# has another cause.
SILENCE_NS = 1_000_000


@remembered
def host_causes(trace: Trace) -> pl.DataFrame:
    """For each thread that launches device work, the intervals in which something keeps it from launching:
    ``lane``, ``start_ns``, ``end_ns``, ``cause`` and ``host_event`` (row of ``host_events``; null where
    nothing was recorded), disjoint per lane and sorted.

    ``host-op``: an op that computes on the CPU (see ``computing``), an event's own time, ``SILENCE_NS`` or
    more without anything recorded inside it, or the profiler's own overhead. ``unexplained``: a silence with
    no event, or only a step's annotation, around it.
    """
    host = trace.host_events.select("id", "name", "lane", "start_ns", END)
    lanes = launching_lanes(trace)
    overhead = host.filter(matching(trace.host_events, "category", "^overhead$"))
    host = host.filter(pl.col("lane").is_in(lanes.implode()))
    found = pl.concat(
        [
            _named(host),
            overhead.drop("lane")
            .join(lanes.to_frame("lane"), how="cross")
            .select("lane", "start_ns", "end_ns", cause=pl.lit("overhead"), host_event="id"),
            computing(trace).select(
                "lane", "start_ns", "end_ns", pl.lit("host-op").alias("cause"), "host_event"
            ),
            _silences(host, trace),
        ]
    )
    # One cause's events may nest (phases of a compilation): the outermost stands for them.
    found = outermost(found, ["lane", "cause"]).with_row_index("row")
    seen = found["cause"].unique().to_list()
    here = [cause for cause in PRIORITY if cause in seen] or PRIORITY[:1]
    cut = overlay({cause: found.filter(pl.col("cause") == cause) for cause in here}, ["lane"])
    row = cut.select(pl.coalesce(here)).to_series()
    return cut.select("lane", "start_ns", "end_ns").with_columns(
        found["cause"].replace("overhead", "host-op")[row].cast(CAUSE), found["host_event"][row]
    )


def _named(host: pl.DataFrame) -> pl.DataFrame:
    names = host.select(pl.col("name").unique())
    text = pl.col("name").cast(pl.String)
    causes = pl.coalesce(
        pl.when(text.str.contains(pattern)).then(pl.lit(cause)) for cause, pattern in NAMED.items()
    )
    known = names.with_columns(cause=causes).drop_nulls("cause")
    few = host.filter(pl.col("name").is_in(known["name"].implode()))
    return few.join(known, on="name").select("lane", "start_ns", "end_ns", "cause", host_event="id")


def _silences(host: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Intervals of ``SILENCE_NS`` or more without a start or end on the thread, with what is around them."""
    within = window(trace)
    silence = pl.col("end_ns") - pl.col("start_ns") >= SILENCE_NS
    goes_on = pl.col("lane").shift(-1) == pl.col("lane")
    following = pl.when(goes_on).then(pl.col("start_ns").shift(-1)).otherwise(within.end_ns)
    # From each event's start to the next one's: few are long, and only in those do ends have to be looked at.
    quiet = pl.concat(
        [
            host.select("lane", "start_ns", end_ns=following, event="id").filter(silence),
            host.group_by("lane")
            .agg(
                start_ns=pl.lit(within.start_ns, pl.Int64),
                end_ns=pl.col("start_ns").min(),
                event=pl.lit(None, pl.UInt32),
            )
            .filter(silence),
        ]
    ).with_row_index("quiet")
    opened = _around(trace.host_events, quiet.select("quiet", "event"))
    ends = opened.join(quiet.drop("event"), on="quiet").filter(
        pl.col("until").is_between("start_ns", "end_ns", "left")
    )
    intervals = (
        pl.concat(
            [quiet.drop("event"), ends.select("quiet", "lane", pl.col("until").alias("start_ns"), "end_ns")]
        )
        .sort("quiet", "start_ns")
        .with_columns(end_ns=pl.col("start_ns").shift(-1).over("quiet").fill_null(pl.col("end_ns")))
        .filter(silence)
        .with_row_index("interval")
    )
    still_open = (
        intervals.join(opened, on="quiet")
        .filter(pl.col("until") > pl.col("start_ns"))
        .sort("interval", "level")
        .unique("interval", keep="first")
        .select("interval", host_event="event")
    )
    nameless = pl.col("host_event").is_null() | pl.col("host_event").is_in(
        trace.steps["host_event"].implode()
    )
    return intervals.join(still_open, on="interval", how="left").select(
        "lane",
        "start_ns",
        "end_ns",
        pl.when(nameless).then(pl.lit("unexplained")).otherwise(pl.lit("host-op")).alias("cause"),
        "host_event",
    )


def _around(host: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """For each row's ``event``, itself (``level`` 0) and all around it, with when each ends (``until``)."""
    tree = host.select("parent", until=END)
    found = [pl.DataFrame(schema={**rows.schema, "until": pl.Int64, "level": pl.Int32})]
    while len(rows := rows.drop_nulls("event")):
        rows = rows.hstack(tree[rows["event"]])
        found.append(rows.select(found[0].columns[:-1], level=pl.lit(len(found) - 1, pl.Int32)))
        rows = rows.select(found[0].columns[0], event="parent")
    return pl.concat(found)
