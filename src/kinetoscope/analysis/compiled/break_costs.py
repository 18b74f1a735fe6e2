"""The cost of graph breaks, where the trace shows the function entered again behind them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import polars as pl

from kinetoscope.analysis.compiled.regions import call_around, region_around, regions
from kinetoscope.analysis.compiled.sums import silent_frames
from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.events.torch_names import (
    CALL,
    COMPILED_BACKWARD,
    COMPILED_FORWARD,
    GRAPH_LAUNCH,
    REGION,
    SYNCHRONIZATION,
)
from kinetoscope.analysis.time import intervals
from kinetoscope.compilation.breaks import RESUMED
from kinetoscope.compilation.model import CompiledProgram, GraphBreak
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed, whole

# What Inductor's scheduler could have fused; templates (matmuls) take no neighbour in from behind.
FUSABLE = r"^triton_(poi|per|red|for|spl)_"

CROSSINGS = {
    "compile_id": pl.String,
    "before": pl.String,
    "idle_ns": pl.Int64,
    "eager": pl.Int64,
    "graphs": pl.Int64,
    "fusable": pl.Int64,
    "in_step": pl.Boolean,
}


def break_costs(traces: Iterable[Trace], compilation: CompiledProgram) -> tuple[GraphBreak, ...]:
    """``graph_breaks`` with what their crossings cost.

    A crossing is one entry into the rest of a function, which Dynamo names after the line that it broke at.
    Breaks whose rest never ran in the traces, and frames skipped whole, keep their nulls.

    - ``idle_us``: the device's idle time before the first work of the rest.
    - ``eager_launches``: device work that Python launched between the compiled piece before the break and the
      rest; null where the piece before announces no calls (backends other than Inductor), so that its own
      work cannot be distinguished from Python's.
    - ``graph_launches``: where both sides replay CUDA graphs, the rest's own launch and its copies into the
      graph's inputs: whole, one graph would hold both sides.
    - ``fusable_launches``: crossings, not between CUDA graphs, with generated kernels as the last work before
      and the first after: candidates for one kernel. What else might have been fused is not known.
    - ``extra_launches``: the three together. Of the backward pass nothing is counted.
    """
    resumed = _resumed(compilation)
    if not resumed:
        return compilation.graph_breaks
    traces = tuple(traces)
    steps = sum(len(trace.steps) for trace in traces)
    ids = sorted({id_ for ids in resumed.values() for id_ in ids})
    crossings = pl.concat([pl.DataFrame(schema=CROSSINGS), *(_crossings(trace, ids) for trace in traces)])
    silent = {frame.compile_id for frame in silent_frames(compilation)}
    rows = list(compilation.graph_breaks)
    for index, compile_ids in resumed.items():
        table = crossings.filter(pl.col("compile_id").is_in(compile_ids))
        if not table.is_empty():
            rows[index] = _with_costs(rows[index], table, silent, steps)
    return tuple(rows)


def _with_costs(row: GraphBreak, crossings: pl.DataFrame, silent: set[str], steps: int) -> GraphBreak:
    known = silent.isdisjoint(crossings["before"].drop_nulls())
    extra = pl.col("graphs") + pl.col("fusable") + (pl.col("eager") if known else 0)
    sums = crossings.select(
        pl.len().alias("crossings"),
        pl.col("idle_ns", "eager", "graphs", "fusable").sum(),
        extra=extra.sum(),
        extra_in_steps=extra.filter("in_step").sum(),
    ).row(0, named=True)
    return msgspec.structs.replace(
        row,
        crossings=sums["crossings"],
        idle_us=sums["idle_ns"] / 1000,
        eager_launches=sums["eager"] if known else None,
        graph_launches=sums["graphs"],
        fusable_launches=sums["fusable"],
        extra_launches=sums["extra"],
        extra_launches_per_step=sums["extra_in_steps"] / steps if steps else None,
    )


def _resumed(compilation: CompiledProgram) -> dict[int, set[str]]:
    """Compile ids of what follows each break, by row of ``graph_breaks``."""
    after: dict[tuple[str | None, int], set[str]] = {}
    for frame in compilation.frames:
        if frame.function and (match := RESUMED.match(frame.function)):
            after.setdefault((frame.file, int(match["line"])), set()).add(frame.compile_id)
    return {
        i: after[row.file, row.line]
        for i, row in enumerate(compilation.graph_breaks)
        if row.line is not None and (row.file, row.line) in after
    }


def _crossings(trace: Trace, compile_ids: list[str]) -> pl.DataFrame:
    """One row per crossing into one of ``compile_ids``: ``CROSSINGS``, with the compile id ``before`` it."""
    host = trace.host_events
    around = region_around(trace)
    pieces = host.select(
        pl.col("id").alias("piece"),
        "start_ns",
        region=around.gather(host["parent"]),  # the region strictly around it
        compile_id=host["name"].cast(pl.String).str.extract(REGION),
    ).filter(matching(host, "name", f"{CALL}|{REGION}"))
    of_region = pieces.select(region="piece", before="compile_id", before_ns="start_ns")
    entries = pieces.filter(pl.col("compile_id").is_in(compile_ids)).join(of_region, on="region")
    work = _work(trace, around, call_around(trace))
    # What runs in a region outside of its graphs and before another piece of it: Python's own on the way.
    own = work.filter(pl.col("call").is_null() & pl.col("region").is_not_null()).sort("launched_ns")
    own = own.join_asof(
        pieces.sort("start_ns"), left_on="launched_ns", right_on="start_ns", by="region",
        strategy="forward", check_sortedness=False,
    )  # fmt: skip
    eager = own.group_by("piece").agg(eager=pl.len().cast(pl.Int64))
    first_replay = pl.col("replayed").arg_max()
    last = pl.col("last_replayed", "last_generated", "last_launched_ns").first()
    rest = (
        work.filter(pl.col("region").is_in(entries["piece"].implode()))
        .group_by(pl.col("region").alias("piece"), maintain_order=True)
        .agg(
            pl.col("idle_ns").first(),
            pl.col("replayed").any(),
            first_replay.alias("copies"),
            pl.col("generated").get(first_replay),
            last,
        )
    )
    within = (pl.col("last_launched_ns") >= pl.col("before_ns")).fill_null(False)
    replays = within & pl.col("replayed") & pl.col("last_replayed")
    fusable = within & pl.col("generated") & pl.col("last_generated") & ~replays
    begin, end = whole(trace.steps["start_ns"].min()), whole(trace.steps.select(END.max()).item())
    return (
        entries.join(rest, on="piece")
        .join(eager, on="piece", how="left")
        .with_columns(
            pl.col("eager").fill_null(0),
            graphs=pl.when(replays).then(1 + pl.col("copies")).otherwise(0),
            fusable=fusable,
            in_step=pl.col("start_ns").is_between(begin, end, closed="left"),
        )
        .select(typed(CROSSINGS))
    )


def _work(trace: Trace, region: pl.Series, call: pl.Series) -> pl.DataFrame:
    """Device work in the order in which each thread launched it: ``lane``, ``launched_ns``, ``region`` and
    ``call`` around the launch, ``idle_ns`` of its device before it, ``generated`` (by a graph, and fusable),
    ``replayed``; and of the last work of a graph before it ``last_generated``, ``last_replayed``,
    ``last_launched_ns``."""
    host = trace.host_events
    device = trace.device_events.filter(pl.col("launch").is_not_null()).sort("device", "start_ns")
    launch = device["launch"]
    of_graph = pl.col("call").is_not_null() | pl.col("replayed")
    last = pl.when(of_graph).then(pl.col("generated", "replayed", "launched_ns"))
    return (
        device.with_columns(busy_until=END.cum_max().shift(1).over("device"))
        .select(
            host["lane"].gather(launch).alias("lane"),
            host["start_ns"].gather(launch).alias("launched_ns"),
            region.gather(launch).alias("region"),
            call.gather(launch).alias("call"),
            (pl.col("start_ns") - pl.col("busy_until")).clip(0).fill_null(0).alias("idle_ns"),
            (matching(device, "name", FUSABLE) & call.gather(launch).is_not_null()).alias("generated"),
            matching(host, "name", GRAPH_LAUNCH).gather(launch).alias("replayed"),
            "start_ns",
        )
        .sort("lane", "launched_ns", "start_ns")
        .drop("start_ns")
        .with_columns(last.forward_fill().shift(1).over("lane").name.prefix("last_"))
    )


class Crossing(NamedTuple):
    """The host's time on the way into pieces of a function, which it does not need where that is whole."""

    host: pl.DataFrame  # ``lane``, ``start_ns``, ``duration_ns`` and the ``share`` of it
    waits: pl.Series  # rows of ``host_events``: synchronising calls on the way


def crossing(trace: Trace, entered: pl.DataFrame) -> Crossing:
    """The host's time that it takes to go on in these ``pieces`` of functions.

    In the forward pass, from the last launch before a piece to the first in it, less what lies between two
    launches of one graph, and what Python launches on the way but for what it reads from the device. In the
    backward pass, the piece's own node before its first launch and after its last.
    """
    host = trace.host_events
    launches = trace.device_events["launch"].drop_nulls().unique().sort()
    around = call_around(trace).gather(launches)
    calls = host[launches].select("id", "lane", "start_ns", END, around.alias("call"))
    waiting = matching(host, "name", SYNCHRONIZATION)
    reads = host["parent"].filter(waiting).drop_nulls().unique()
    whole = intervals.outermost(regions(trace).with_columns(END), ["lane"]).with_row_index("function")
    # The piece that is entered before its function launches anything is the one that remains.
    within = intervals.beginning_in(
        calls.filter(~host["parent"].gather(calls["id"]).is_in(reads.implode()).fill_null(False)),
        whole.select("lane", "start_ns", "end_ns", "function"),
        ["lane"],
    ).sort("lane", "start_ns")
    ways = within.select(
        "lane",
        start_ns="end_ns",
        end_ns=pl.col("start_ns").shift(-1).over("function"),
        same=(pl.col("call") == pl.col("call").shift(-1)).over("function"),
    ).drop_nulls("end_ns")
    length = pl.col("end_ns") - pl.col("start_ns")
    usual_ns = ways.filter("same").select(length.median()).item() or 0.0
    ways = ways.with_row_index("way").with_columns(duration_ns=length)
    taken = intervals.beginning_in(
        entered.select("id", "lane", "start_ns"), ways.select("way", "lane", "start_ns", "end_ns"), ["lane"]
    )
    ways = ways[taken["way"].unique().sort()]
    waits = intervals.beginning_in(host.filter(waiting), ways.select("lane", "start_ns", "end_ns"), ["lane"])
    forward = ways.with_columns(share=(1 - usual_ns / pl.col("duration_ns")).clip(0, 1))
    columns = ["lane", "start_ns", "duration_ns", "share"]
    return Crossing(pl.concat([forward.select(columns), _backward(trace, taken["id"], calls)]), waits["id"])


def _backward(trace: Trace, entered: pl.Series, calls: pl.DataFrame) -> pl.DataFrame:
    """The time of the backward nodes of these pieces before their first launch and after their last."""
    host = trace.host_events
    forward = matching(host, "name", COMPILED_FORWARD) & region_around(trace).is_in(entered.implode())
    of_pieces = host["sequence"].is_in(host["sequence"].filter(forward).drop_nulls().implode())
    nodes = host.filter(matching(host, "name", COMPILED_BACKWARD) & of_pieces).with_columns(END)
    nodes = intervals.outermost(nodes, ["lane"])
    around = nearest(host, host["id"].is_in(nodes["id"].implode())).gather(calls["id"])
    launched = calls.with_columns(around.alias("node")).drop_nulls("node").group_by("node")
    times = nodes.join(
        launched.agg(first_ns=pl.min("start_ns"), last_ns=pl.max("end_ns")), left_on="id", right_on="node"
    )
    columns = pl.col("lane"), pl.lit(1.0).alias("share")
    before = times.select(*columns, "start_ns", duration_ns=pl.col("first_ns") - pl.col("start_ns"))
    after = times.select(*columns, start_ns="last_ns", duration_ns=pl.col("end_ns") - pl.col("last_ns"))
    return pl.concat([before, after]).select("lane", "start_ns", "duration_ns", "share")
