"""Device memory by the events of a trace: the allocator's bytes over time, its peaks, its calls into the
driver, the ops that allocated."""

from __future__ import annotations

import re
from pathlib import PurePath

import polars as pl

from kinetoscope.analysis.events.enclosing import nearest, running
from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.events.torch_names import ALLOCATION, BASE, LIBRARY_FRAME
from kinetoscope.analysis.memo import kept, remembered
from kinetoscope.analysis.origins.attribution import origins
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed

CPU = 0  # as c10::DeviceType numbers it

TIMELINE = {
    "device": pl.Int32,
    "start_ns": pl.Int64,
    "lane": pl.UInt32,
    "address": pl.UInt64,
    "bytes": pl.Int64,
    "allocated": pl.Int64,
    "reserved": pl.Int64,
}
CALLED = {
    "rank": pl.Int32,
    "name": pl.Categorical,
    "calls": pl.UInt32,
    "host_ns": pl.Int64,
    "calls_in_window": pl.UInt32,
    "host_ns_in_window": pl.Int64,
}


@remembered
def memory_timeline(trace: Trace) -> pl.DataFrame:
    """Every allocation and release on a device, in order of time; empty without ``profile_memory``:
    ``device``, ``start_ns``, ``lane``, ``address``, ``bytes`` (negative when released), ``allocated`` and
    ``reserved`` (bytes after it). PyTorch before 1.11 recorded no totals: then ``allocated`` is the sum since
    the recording began, and ``reserved`` null."""
    since = pl.col("bytes").cum_sum().over("device")
    return (
        trace.memory.filter(pl.col("device_type") != CPU)
        .sort("device", "start_ns", maintain_order=True)
        .select(
            "device",
            "start_ns",
            "lane",
            "address",
            "bytes",
            allocated=pl.coalesce("total_allocated", since),
            reserved="total_reserved",
        )
    )


def memory_over_time(trace: Trace, points: int) -> pl.DataFrame:
    """The most bytes of each device, in ``points`` equal intervals from first to last allocation: ``device``,
    ``start_ns`` (of the interval), ``allocated`` and ``reserved`` (bytes); intervals in which nothing changed
    are left out: the values of the last one before still hold."""
    table = memory_timeline(trace)
    if table.is_empty():
        return table.select("device", "start_ns", "allocated", "reserved")
    first, last = pl.col("start_ns").min(), pl.col("start_ns").max()
    width = pl.max_horizontal((last - first) // points + 1, 1)
    interval = (pl.col("start_ns") - first) // width * width + first
    return (
        table.with_columns(start_ns=interval)
        .group_by("device", "start_ns")
        .agg(pl.col("allocated").max(), pl.col("reserved").max())
        .sort("device", "start_ns")
    )


@remembered
def memory_statistics(run: LoadedRun) -> pl.DataFrame:
    """One row per rank and device whose memory was recorded: ``peak_allocated`` and ``peak_reserved``
    (bytes), ``peak_ns`` (when the first was reached) and ``peak_op`` (the innermost op running then),
    ``first_allocated`` and ``last_allocated``, ``allocations``, ``releases`` and ``allocated_bytes`` (the sum
    of all allocations)."""
    table = pl.concat(
        [pl.DataFrame(schema={"rank": pl.Int32, **TIMELINE})]
        + [memory_timeline(t).select(pl.lit(t.rank, pl.Int32).alias("rank"), *TIMELINE) for t in run.traces]
    )
    at_peak = pl.col("allocated").arg_max()
    table = table.group_by("rank", "device", maintain_order=True).agg(
        pl.col("allocated").max().alias("peak_allocated"),
        pl.col("reserved").max().alias("peak_reserved"),
        pl.col("start_ns").get(at_peak).alias("peak_ns"),
        pl.col("lane").get(at_peak),
        first_allocated=pl.col("allocated").first(),
        last_allocated=pl.col("allocated").last(),
        allocations=(pl.col("bytes") > 0).sum(),
        releases=(pl.col("bytes") < 0).sum(),
        allocated_bytes=pl.col("bytes").filter(pl.col("bytes") > 0).sum(),
    )
    traces = {trace.rank: trace for trace in run.traces}
    peaks = table.select("rank", "lane", "peak_ns").iter_rows()
    ops = [_op_at(traces[rank], lane, at) for rank, lane, at in peaks]
    return table.drop("lane").with_columns(pl.Series("peak_op", ops, pl.String))


def _op_at(trace: Trace, lane: int, at: int) -> str | None:
    """The name of the innermost op that runs on a thread at an instant."""
    host = trace.host_events
    running = host.filter(
        pl.col("lane") == lane,
        pl.col("start_ns") <= at,
        at < END,
        pl.col("category").cast(pl.String) == "cpu_op",
    )
    return None if running.is_empty() else running.sort("depth")["name"].cast(pl.String)[-1]


@remembered
def allocator_calls(run: LoadedRun) -> pl.DataFrame:
    """The driver's allocation calls by rank and name (cudaMalloc, hipFree, …), most host time first:
    ``rank``, ``name``, ``calls``, ``host_ns``, ``calls_in_window``, ``host_ns_in_window``."""
    found = [pl.DataFrame(schema=CALLED)]
    for trace in run.traces:
        within, host = window(trace), trace.host_events
        inside = pl.col("start_ns").is_between(within.start_ns, within.end_ns)
        found.append(
            host.filter(matching(host, "name", ALLOCATION))
            .group_by("name")
            .agg(
                rank=pl.lit(trace.rank, pl.Int32),
                calls=pl.len(),
                host_ns=pl.col("duration_ns").sum(),
                calls_in_window=inside.sum(),
                host_ns_in_window=pl.col("duration_ns").filter(inside).sum(),
            )
            .select(typed(CALLED))
        )
    return pl.concat(found).sort("host_ns", descending=True)


EMPTY = r"^aten::(new_)?(empty|resize)"  # they allocate for the op that calls them


@kept
def held_at_peak(trace: Trace) -> pl.DataFrame:
    """Memory that was allocated at each device's peak, but for what was before the recording, by what had
    allocated it; the most bytes first: ``device``, ``op`` (the innermost that computes), ``module`` (of
    backward work its forward op's), ``line`` (the innermost Python frame of your own: ``file.py(12):
    function``), each null where not recorded; ``bytes`` and ``allocations``."""
    row, block = pl.int_range(pl.len()), ["device", "address"]
    living = (
        memory_timeline(trace)
        .with_columns(row=row.over("device"))
        .with_columns(
            peak=pl.col("allocated").arg_max().over("device"), next=pl.col("row").shift(-1).over(block)
        )
        .filter(pl.col("bytes") > 0, pl.col("row") <= pl.col("peak"))
        .filter((pl.col("next") > pl.col("peak")).fill_null(True))
    )
    host = trace.host_events if len(living) else trace.host_events.clear()  # most recordings are without
    at = running(host, living)
    is_own = matching(host, "category", "^python_function$") & ~matching(host, "name", LIBRARY_FRAME)
    return (
        living.with_columns(
            **dict(zip(("op", "module"), _made_in(trace, at), strict=True)),
            line=host["name"][nearest(host, is_own)[at]].cast(pl.String),
        )
        .group_by("device", "op", "module", "line")
        .agg(pl.col("bytes").sum(), allocations=pl.len())
        .sort("device", "bytes", "op", "module", "line", descending=[False, True, False, False, False])
    )


def _made_in(trace: Trace, at: pl.Series) -> tuple[pl.Series, pl.Series]:
    """The op that computes around each of ``host_events``, and the module (backward: the forward op's)."""
    host = trace.host_events
    is_op = matching(host, "category", "^cpu_op$") & ~matching(host, "name", EMPTY)
    op = host["name"][nearest(host, is_op)[at]]
    return op.cast(pl.String), origins(trace, at)["module_name"].cast(pl.String)


APART = 1_000_000  # ns that the two clocks may differ by
COLUMNS = {"allocation": pl.UInt32, "op": pl.String, "ran_module": pl.String}


def unseen(known: pl.DataFrame) -> pl.DataFrame:
    return pl.DataFrame(schema=COLUMNS)


def ops(trace: Trace, known: pl.DataFrame) -> pl.DataFrame:
    """The ops of allocations that are in the trace: ``allocation``, ``op`` (the innermost that computes) and
    ``ran_module`` (of backward work its forward op's; null where modules were not recorded)."""
    base = trace.metadata.get(BASE)
    made = trace.memory.filter(pl.col("device_type") != CPU, pl.col("bytes") > 0)
    if not isinstance(base, int) or made.is_empty():
        return pl.DataFrame(schema=COLUMNS)
    made = made.select(
        "device", "lane", "start_ns", pl.col("address").cast(pl.Int64), wall_ns=pl.col("start_ns") + base
    )
    begun = known.filter(pl.col("start_us").is_not_null())
    begun = begun.select("allocation", "device", "address", wall_ns=pl.col("start_us") * 1000)
    found = begun.sort("wall_ns").join_asof(
        made.sort("wall_ns"),
        on="wall_ns",
        by=["device", "address"],
        strategy="nearest",
        tolerance=APART,
        check_sortedness=False,
    )
    found = found.filter(pl.col("lane").is_not_null())
    host = trace.host_events
    at = running(host, found)
    return found.select("allocation", **dict(zip(("op", "ran_module"), _made_in(trace, at), strict=True)))


BUFFER = re.compile(r"^\s*(?P<name>\w+) = (?:empty_strided\w*|torch\.empty\w*|\w*\.empty_strided\w*)\(")
EXTERN = re.compile(r"^\s*(?P<name>\w+) = (?P<callee>[\w.]+)\(")
SCHEMA = {"graph": pl.String, "graph_line": pl.Int32, "buffer": pl.String}


def buffers(run: LoadedRun) -> pl.DataFrame:
    """Buffers that lines of generated modules allocate, by the name of the module's file: ``graph``,
    ``graph_line``, ``buffer``: ``0/0 forward: buf3``, or with the library's function that returns it. Modules
    that no compile log lists have no rows."""
    rows: list[tuple[str, int, str]] = []
    if run.compilation is not None:
        for graph in run.compilation.graphs:
            text = run.compilation.modules.get(graph.index)
            if graph.module is None or text is None:
                continue
            stem, label = PurePath(graph.module).stem, f"{graph.compile_id} {graph.direction}"
            for number, line in enumerate(text.read().splitlines(), 1):
                if made := BUFFER.match(line):
                    rows.append((stem, number, f"{label}: {made['name']}"))
                elif made := EXTERN.match(line):
                    rows.append((stem, number, f"{label}: {made['name']} of {made['callee']}"))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").unique(["graph", "graph_line"], keep="first")
