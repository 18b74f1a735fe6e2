"""Host threads as the program's threads of work: those that hand over to one another are one thread.

Autograd runs a backward in a thread of its own while the thread that called it waits: no two of their ops
overlap, and what delays the one delays the other. Threads whose ops do overlap (a prefetcher) run on their
own.
"""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.time import intervals
from kinetoscope.trace.model import Trace

OPS = r"(?i)^(cpu_op|operator|runtime|[a-z0-9]+_(runtime|driver))$"
# Of the smaller thread's ops, that run while the other's do: marks of a hand-over overlap a little.
OVERLAP = 0.02


@remembered
def logical_threads(trace: Trace) -> pl.DataFrame:
    """``lane`` and ``thread`` (dense, the one with most launches first) of the threads that launch work;
    where none does, of the one that runs most ops."""
    host = trace.host_events
    lanes = host["lane"].gather(trace.device_events["launch"].drop_nulls())
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


def is_op(trace: Trace) -> pl.Series:
    """Which host events are ops or calls; older versions record the marks of steps as ops."""
    host = trace.host_events
    return matching(host, "category", OPS) & ~host["id"].is_in(trace.steps["host_event"].implode())


def _busy(trace: Trace, lanes: pl.Series) -> pl.DataFrame:
    host = trace.host_events
    own = is_op(trace) & host["lane"].is_in(lanes.implode())
    spans = host.filter(own).select("lane", "start_ns", end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    return intervals.union(spans, ["lane"])


def _hands_over(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    smaller = min(intervals.total(one), intervals.total(other))
    return intervals.total(intervals.intersect(one, other)) <= OVERLAP * smaller
