"""The host's calls that wait for the device, and for which of its work."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import COPY, LAUNCH, PAGEABLE_COPY, SYNCHRONIZATION
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.replay.device_work import HELD_UP, launched
from kinetoscope.analysis.replay.threads import logical_threads
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed

DEVICE_WAIT = r"^(cuda|cu|hip)(Device|Ctx)Synchronize"
FREE = r"^(cuda|hip)(Host)?Free$"
STREAM_WAIT = r"^(cuda|cu|hip)StreamSynchronize"
# Clocks of host and device agree to about this.
CLOCKS_NS = 2_000
# The driver lets a program run about a thousand launches ahead; then a launch waits for one to be done.
QUEUE = 500
HELD_UP_NS = 50_000

WAITS = {
    "call": pl.UInt32,
    "thread": pl.UInt32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "stream": pl.UInt32,
    "row": pl.UInt32,
    "done_ns": pl.Int64,
}


@remembered
def waits(trace: Trace) -> pl.DataFrame:
    """One row a waiting call and piece of work that it waited for.

    ``call`` (row of ``host_events``), ``thread``, ``start_ns`` and ``end_ns`` of the call, ``stream``,
    ``row`` (of ``launched``) of the work and ``done_ns``, when that was done; both null where the recording
    begins with the call: it waits for what the step before gave the stream.

    Which stream or event a call names is not recorded. A stream is taken to be the one that was launched on
    last, an event that which happened latest before the call returned; a device is all its streams. Work that
    ended after the call had returned was not waited for. Calls of one thread do not overlap: of nested ones
    the outermost counts.
    """
    work = launched(trace)
    calls = _calls(trace)
    if calls.is_empty() or work.is_empty():
        return pl.DataFrame(schema=WAITS)
    # What has no launch was launched with the work before it, or before the recording.
    work = work.with_columns(pl.col("point_ns").forward_fill().over("stream").fill_null(0))
    found = pl.concat([_own(calls, work), _queued(calls, work), _latest(calls, work)])
    return found.unique(["call", "stream", "row"]).sort("start_ns", "call", "row").select(
        typed(WAITS)
    )  # fmt: skip


def _calls(trace: Trace) -> pl.DataFrame:
    """Calls that may wait: ``call``, ``thread``, ``start_ns``, ``end_ns`` and what they wait for (``of``)."""
    host = trace.host_events
    pageable = trace.device_events["launch"].filter(matching(trace.device_events, "name", PAGEABLE_COPY))
    own = (host["id"].is_in(pageable.drop_nulls().implode())) | (
        matching(host, "name", SYNCHRONIZATION) & matching(host, "name", COPY)
    )
    launch = matching(host, "name", LAUNCH)
    usual = host["duration_ns"].filter(launch).median()
    held_up = launch & (host["duration_ns"] > max(HELD_UP * float(str(usual or 0)), HELD_UP_NS))
    sorts = {
        "itself": own,
        "device": matching(host, "name", DEVICE_WAIT),
        "stream": matching(host, "name", STREAM_WAIT),
        "free": matching(host, "name", FREE),
        "event": matching(host, "name", SYNCHRONIZATION),
        "room": held_up,
    }
    found = [
        host.filter(wanted).select("lane", "start_ns", "duration_ns", call="id", of=pl.lit(of))
        for of, wanted in sorts.items()
    ]
    calls = pl.concat(found).unique("call", keep="first", maintain_order=True)
    calls = calls.join(logical_threads(trace), on="lane").with_columns(
        end_ns=pl.col("start_ns") + pl.col("duration_ns")
    )
    inside = pl.col("end_ns").cum_max().shift(1).over("thread") > pl.col("start_ns")
    calls = calls.sort("thread", "start_ns", -pl.col("end_ns")).filter(~inside.fill_null(False))
    return calls.select("call", "thread", "start_ns", "end_ns", "of")


def _own(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Blocking copies: what they copied."""
    copies = work.filter(pl.col("launch").is_not_null()).select(
        "row", "stream", call="launch", done_ns="end_ns"
    )
    return _returned(calls.filter(pl.col("of") == "itself").join(copies, on="call"))


def _queued(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Waits for streams: what each had been given last. Freeing memory waits only where it did."""
    last = work.sort("point_ns").select("stream", "row", done_ns="end_ns", at="point_ns")
    streams = work.select("stream").unique()
    found = (
        calls.filter(pl.col("of").is_in(["device", "stream", "free"]))
        .join(streams, how="cross")
        .sort("start_ns")
        .join_asof(last, left_on="start_ns", right_on="at", by="stream", check_sortedness=False)
    )
    # The only stream is the one, even if nothing was recorded on it before.
    newest = (pl.col("at") == pl.col("at").max().over("call")) | (pl.lit(len(streams)) == 1)
    waited = pl.col("done_ns") > pl.col("start_ns")
    wanted = {"device": True, "stream": newest, "free": waited}
    meant = pl.any_horizontal((pl.col("of") == of) & rows for of, rows in wanted.items())
    return _returned(found.filter(meant))


def _latest(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Waits for an event, or for room in the queue: the work that was done last when the call returned."""
    ends = work.sort("end_ns").select("row", "stream", "point_ns", done_ns="end_ns")
    made, ended = ends["point_ns"].sort(), ends["done_ns"]
    found = calls.filter(pl.col("of").is_in(["event", "room"])).sort("end_ns")
    ahead = made.search_sorted(found["start_ns"], side="right").cast(pl.Int64) - ended.search_sorted(
        found["start_ns"], side="right"
    ).cast(pl.Int64)
    found = found.filter((pl.col("of") == "event") | (ahead >= QUEUE))
    found = found.with_columns(until=pl.col("end_ns") + CLOCKS_NS).join_asof(
        ends, left_on="until", right_on="done_ns", coalesce=False, check_sortedness=False
    )
    waited = (pl.col("done_ns") > pl.col("start_ns")) & (pl.col("point_ns") <= pl.col("start_ns"))
    return _returned(found.filter(waited))


def _returned(found: pl.DataFrame) -> pl.DataFrame:
    """Those that were done when the call returned."""
    done = (pl.col("done_ns") <= pl.col("end_ns") + CLOCKS_NS).fill_null(True)
    return found.filter(done).select(list(WAITS))
