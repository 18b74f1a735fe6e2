"""Host threads as the program's threads of work: those that hand over to one another are one thread.

Autograd runs a backward in a thread of its own while the thread that called it waits: no two of their ops
overlap, and what delays the one delays the other. Threads whose ops do overlap (a prefetcher) run on their
own.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl
from msgspec.structs import replace

from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.events.torch_names import (
    COPY,
    DATA_LOADER_OF_WORKERS,
    DEVICE_WAIT,
    LAUNCH,
    PAGEABLE_COPY,
    SYNCHRONIZATION,
)
from kinetoscope.analysis.memo import kept, remembered
from kinetoscope.analysis.passes.loader import READY
from kinetoscope.analysis.replay.device_work import DELAYED, launched
from kinetoscope.analysis.replay.spans import Spans
from kinetoscope.analysis.time import intervals
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed

OPS = r"(?i)^(cpu_op|operator|runtime|[a-z0-9]+_(runtime|driver))$"
# Of the smaller thread's ops, that run while the other's do: marks of a hand-over overlap a little.
OVERLAP = 0.02


@kept
def logical_threads(trace: Trace) -> pl.DataFrame:
    """``lane`` and ``thread`` of the threads that launch work, the busiest first; else of the one with most
    ops."""
    host = trace.host_events
    lanes = host["lane"][trace.device_events["launch"].drop_nulls()]
    if lanes.is_empty():
        lanes = host["lane"].filter(is_op(trace)).mode().sort().head(1)
    by_launches = lanes.value_counts(sort=True).sort("count", "lane", descending=[True, False])["lane"]
    groups: list[list[int]] = []
    if len(by_launches) == 1:
        groups = [by_launches.to_list()]
    elif len(by_launches):
        busy = _busy(trace, by_launches)
        covers: list[pl.DataFrame] = []
        for lane in by_launches:
            own = busy.filter(pl.col("lane") == lane).drop("lane")
            joined = next((n for n, cover in enumerate(covers) if _hands_over(own, cover)), None)
            if joined is None:
                groups.append([lane])
                covers.append(own)
            else:
                groups[joined].append(lane)
                covers[joined] = intervals.union(pl.concat([covers[joined], own]))
    pairs = [(lane, thread) for thread, group in enumerate(groups) for lane in group]
    return pl.DataFrame(pairs, schema={"lane": pl.UInt32, "thread": pl.UInt32}, orient="row")


@remembered
def is_op(trace: Trace) -> pl.Series:
    """Which host events are ops or calls; older versions record the marks of steps as ops."""
    host = trace.host_events
    return matching(host, "category", OPS) & ~host["id"].is_in(trace.steps["host_event"].implode())


def _busy(trace: Trace, lanes: pl.Series) -> pl.DataFrame:
    host = trace.host_events
    own = is_op(trace) & host["lane"].is_in(lanes.implode())
    spans = host.select("lane", "start_ns", END).filter(own)
    return intervals.union(spans, ["lane"])


def _hands_over(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    smaller = min(intervals.total(one), intervals.total(other))
    return intervals.total(intervals.intersect(one, other)) <= OVERLAP * smaller


FREE = r"^(cuda|hip)(Host)?Free$"
STREAM_WAIT = r"^(cuda|cu|hip)StreamSynchronize"
# Clocks of host and device agree to about this.
CLOCKS_NS = 2_000
# The driver lets a program run about a thousand launches ahead; then a launch waits for one to be done.
QUEUE = 500
DELAYED_NS = 50_000
# A profiler takes some microseconds for each event: of so long without one it takes next to nothing.
QUIET_NS = 100_000

WAITS = {
    "call": pl.UInt32,
    "thread": pl.UInt32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "stream": pl.UInt32,
    "row": pl.UInt32,
    "done_ns": pl.Int64,
}


@kept
def waits(trace: Trace) -> pl.DataFrame:
    """One row per waiting call and piece of work that it waited for: ``call`` (row of ``host_events``),
    ``thread``, ``start_ns`` and ``end_ns`` of the call, ``stream``, ``row`` (of ``launched``) of the work and
    ``done_ns``, when that was done; both null where the recording begins with the call.

    Which stream or event a call names is not recorded: a stream is taken to be the one that was launched on
    last, an event that which happened latest before the call returned; a device is all its streams. Of nested
    calls the outermost counts.
    """
    work = launched(trace)
    calls = _calls(trace)
    if calls.is_empty() or work.is_empty():
        return pl.DataFrame(schema=WAITS)
    # What has no launch was launched with the work before it, or before the recording.
    work = work.with_columns(pl.col("point_ns").forward_fill().over("stream").fill_null(0))
    ways = ((_own, ["itself"]), (_queued, ["device", "stream", "free"]), (_latest, ["event", "room"]))
    each = ((way, calls.filter(pl.col("of").is_in(sorts))) for way, sorts in ways)
    found = pl.concat(way(own, work) for way, own in each if len(own))
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
    delayed = launch & (host["duration_ns"] > max(DELAYED * float(str(usual or 0)), DELAYED_NS))
    sorts = {
        "itself": own,
        "device": matching(host, "name", DEVICE_WAIT),
        "stream": matching(host, "name", STREAM_WAIT),
        "free": matching(host, "name", FREE),
        "event": matching(host, "name", SYNCHRONIZATION),
        "room": delayed,
    }
    found = [
        host.select("lane", "start_ns", "duration_ns", call="id", of=pl.lit(of)).filter(wanted)
        for of, wanted in sorts.items()
        if wanted.any()
    ]
    if not found:
        return pl.DataFrame(schema=WAITS)
    calls = pl.concat(found).unique("call", keep="first", maintain_order=True)
    calls = calls.join(logical_threads(trace), on="lane").with_columns(END)
    calls = intervals.outermost(calls, ["thread"])
    return calls.select("call", "thread", "start_ns", "end_ns", "of")


def _own(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Blocking copies: what they copied."""
    copies = work.filter(pl.col("launch").is_not_null()).select(
        "row", "stream", call="launch", done_ns="end_ns"
    )
    return _returned(calls.join(copies, on="call"))


def _queued(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Waits for streams: what each had been given last. Freeing memory waits only where it did."""
    last = work.sort("point_ns").select("stream", "row", done_ns="end_ns", at="point_ns")
    streams = work.select("stream").unique()
    found = (
        calls.join(streams, how="cross")
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
    found = calls.sort("end_ns")
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
    """Keep the work that was done when the call returned."""
    done = (pl.col("done_ns") <= pl.col("end_ns") + CLOCKS_NS).fill_null(True)
    return found.filter(done).select(list(WAITS))


def quiet(trace: Trace) -> dict[tuple[int, int], pl.DataFrame]:
    """When nothing begins or ends on a thread for ``QUIET_NS`` or longer, by rank and thread: a long call of
    the driver, an op that computes, Python, but not the time in which one of its threads wakes another. As
    ``numbers.shares``: 1 in it, 0 elsewhere."""
    events = trace.host_events.select("lane", "start_ns", END).join(logical_threads(trace), on="lane")
    found: dict[tuple[int, int], pl.DataFrame] = {}
    for thread in logical_threads(trace)["thread"].unique():
        own = events.filter(pl.col("thread") == thread)
        marks = pl.concat([own.select("lane", at_ns=at) for at in ("start_ns", "end_ns")]).sort("at_ns")
        long = (marks["at_ns"].diff() >= QUIET_NS) & (marks["lane"] == marks["lane"].shift())
        long = long.fill_null(False)
        begins, ends = marks.filter(long.shift(-1, fill_value=False)), marks.filter(long)
        # Where one ends and another begins the last counts.
        steps = [each.select("at_ns", share=pl.lit(share)) for each, share in ((ends, 0.0), (begins, 1.0))]
        found[trace.rank, thread] = pl.concat(steps).sort("at_ns", maintain_order=True)
    return found


SEGMENTS = {
    "rank": pl.Int32,
    "thread": pl.UInt32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "passed_ns": pl.Int64,
}
# A profiler makes taking a batch over up to three times as long; what takes longer waited.
LATE = 3
BEFORE = -1  # instead of a row: what a stream had been given before the recording


class Passed(NamedTuple):
    """A sync: after which segment (the next one follows), when it was passed, the call that waited (if it is
    one), for which work of which streams, and how long it took once that was done; ``batch_ns``: how long it
    waited for a data loader's workers."""

    segment: int
    at_ns: int
    call: int | None = None
    targets: tuple[tuple[int, int], ...] = ()  # stream, row of launched
    tail_ns: int = 0
    batch_ns: int = 0


class HostSegments(NamedTuple):
    """A rank's host time: ``table`` (columns: ``SEGMENTS``, ``passed_ns`` when the sync before it was
    passed), the syncs, and each thread's first and last segment. The last is empty: it is the thread's
    end."""

    table: pl.DataFrame
    syncs: list[Passed]
    ends: list[tuple[int, int]]


class _WaitingCall(NamedTuple):
    call: int
    start_ns: int
    end_ns: int
    streams: list[int]
    rows: list[int | None]
    done_ns: int | None


def segments(trace: Trace, within: Spans, handover_ns: float | None = None) -> HostSegments:
    """The threads' time inside the spans. ``handover_ns``: the host's own time in calls that take a batch
    from a data loader's workers; the rest is waiting. None: all of it is the host's own."""
    calls = (
        waits(trace)
        .group_by("thread", "call", maintain_order=True)
        .agg(pl.col("start_ns", "end_ns").first(), "stream", "row", pl.col("done_ns").max())
    )
    if handover_ns is not None:
        calls = pl.concat([calls, _late_batches(trace, round(handover_ns), within)], how="diagonal")
        calls = intervals.outermost(calls, ["thread"])
    calls = calls.sort("start_ns")
    rows: list[tuple[int, int, int, int, int]] = []
    syncs: list[Passed] = []
    ends: list[tuple[int, int]] = []
    for thread, until in _until(trace).iter_rows():
        own = calls.filter(pl.col("thread") == thread).drop("thread")
        first = len(rows)
        pending = [_WaitingCall(*row) for row in own.iter_rows()]
        for passed, start, end in _of_thread(pending, _within(within, until), first, syncs):
            rows.append((trace.rank, thread, start, end, passed))
        end = rows[-1][3]
        rows.append((trace.rank, thread, end, end, end))
        ends.append((first, len(rows) - 1))
    return HostSegments(pl.DataFrame(rows, schema=SEGMENTS, orient="row"), syncs, ends)


def _late_batches(trace: Trace, handover_ns: int, within: Spans) -> pl.DataFrame:
    """Waits for a data loader's workers, until the batch is there: calls that wait for no stream."""
    usual_ns = max(LATE * handover_ns, READY * 1000 * within.mean_us)
    host = trace.host_events
    calls = host.filter(matching(host, "name", DATA_LOADER_OF_WORKERS))
    calls = calls.join(logical_threads(trace), on="lane")
    late = calls.filter(pl.col("duration_ns") > usual_ns).with_columns(end_ns=END - handover_ns)
    none = (pl.lit([], pl.List(pl.UInt32)).alias(name) for name in ("stream", "row"))
    return late.select("thread", "start_ns", "end_ns", *none, call="id")


def _until(trace: Trace) -> pl.DataFrame:
    """``thread``, and when its threads' last event ended; where nothing was launched, the last of any."""
    end = END.max()
    if trace.device_events.is_empty():
        return logical_threads(trace).select("thread").join(trace.host_events.select(end), how="cross")
    by_lane = trace.host_events.group_by("lane").agg(end)
    by_thread = by_lane.join(logical_threads(trace), on="lane").group_by("thread")
    return by_thread.agg(pl.col("end_ns").max()).sort("thread")


def _within(within: Spans, until: int) -> Spans:
    """Without steps a thread ends with its last event, not with the recording."""
    if within.steps:
        return within
    return replace(within, bounds=tuple((start, max(start, min(end, until))) for start, end in within.bounds))


def _of_thread(
    calls: list[_WaitingCall], within: Spans, number: int, syncs: list[Passed]
) -> list[tuple[int, int, int]]:
    """(passed, start, end) of a thread's segments, of which the first is ``number``; adds their syncs."""
    found: list[tuple[int, int, int]] = []
    for start, end in within.bounds:
        passed = start
        for call in calls:
            if not start <= call.start_ns < end:
                continue
            if within.steps and call.end_ns > end:
                end = call.start_ns  # what crosses the last mark is not the step's
                break
            found.append((passed, start, call.start_ns))
            tail = max(0, call.end_ns - max(call.start_ns, call.done_ns or 0))
            passed, start = max(call.end_ns, call.done_ns or 0), call.end_ns
            targets = tuple(
                (stream, BEFORE if row is None else row)
                for stream, row in zip(call.streams, call.rows, strict=True)
            )
            tail_ns, batch_ns = (tail, 0) if targets else (0, tail)
            syncs.append(Passed(number + len(found) - 1, passed, call.call, targets, tail_ns, batch_ns))
        found.append((passed, start, max(start, end)))
        syncs.append(Passed(number + len(found) - 1, max(passed, end)))
    return found
