"""Join what the compiler made with what the device ran.

A launch belongs to the graph whose call encloses it on the host: Inductor announces every call of a graph as
``## Call CompiledFxGraph HASH ##``, and HASH is the graph's key in the compile log. Inside a graph a
generated kernel is found by its name, and a library's kernel by the op that launched it, the n-th of its kind
being the n-th call in the generated module. Where a trace announces no calls, a kernel belongs to the compile
id of the region around it, or else to the one graph that has a kernel of that name. Whatever remains is said
to be unmatched.
"""

from __future__ import annotations

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from kinetoscope.analysis.compiled import sums as compiled_rows
from kinetoscope.analysis.compiled.break_costs import break_costs
from kinetoscope.analysis.compiled.regions import call_around, graph_calls, region_around
from kinetoscope.analysis.compiled.speed import with_speed
from kinetoscope.analysis.events.enclosing import caller, nearest
from kinetoscope.analysis.events.rows import END, matching, rows
from kinetoscope.analysis.events.torch_names import CALL, GRAPH_LAUNCH, REGION
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.time.busy import busy
from kinetoscope.analysis.time.window import window
from kinetoscope.compilation.model import CompiledProgram, LineTime
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

# Triton before 3.0 appended the specialisation of each argument to the kernel's name.
SPECIALISED = r"_\d[\dcdei]*$"


class Joined(Struct, frozen=True):
    """A compilation with its device columns filled in: ``coverage`` (shares of device time), ``matched`` (on
    what ground kernels were found, and how much device time of generated kernels no graph claims),
    ``source_lines`` by device time."""

    compilation: CompiledProgram
    coverage: compiled_rows.Coverage
    source_lines: tuple[LineTime, ...]
    matched: compiled_rows.Matched


@remembered
def join(run: LoadedRun) -> Joined | None:
    """The run's compilation joined with its traces; None where there is no compile log."""
    compilation = run.compilation
    if compilation is None:
        return None
    events = pl.concat([launched(trace) for trace in run.traces])
    owned = _own(events, compilation)
    window_ns = int(busy(run)["window_ns"].sum())
    filled = compiled_rows.fill(compilation, owned, window_ns)
    filled = replace(filled, graph_breaks=break_costs(run.traces, filled))
    filled, lines = with_speed(filled, compiled_rows.source_lines(filled, owned, window_ns), owned, run)
    return Joined(filled, compiled_rows.coverage(owned), lines, compiled_rows.matched(owned, filled))


def source_of(run: LoadedRun) -> dict[str, str]:
    """``file:line`` of the first line that each generated kernel computes, by its name in the trace.

    Graphs may have kernels of one name: the one with the most device time speaks for it.
    """
    joined = join(run)
    kernels = joined.compilation.kernels if joined else ()
    return {
        name: f"{kernel.source[0].file}:{kernel.source[0].line}"
        for kernel in sorted(kernels, key=lambda k: k.device_time_us or 0.0)
        if kernel.source
        for name in (kernel.symbol, kernel.name)
    }


def compiled_speeds(run: LoadedRun) -> dict[str, float]:
    """The share of the device's peak that each generated kernel reaches by its compile log, where that is
    known, by its name in the trace; of kernels of one name the first's."""
    joined = join(run)
    found: dict[str, float] = {}
    for kernel in joined.compilation.kernels if joined else ():
        if kernel.speed_of_light is not None:
            for name in (kernel.symbol, kernel.name):
                found.setdefault(name, kernel.speed_of_light)
    return found


@remembered
def launched(trace: Trace) -> pl.DataFrame:
    """Every piece of device work with the compiled graph that launched it.

    ``rank``, ``device``, ``kind``, ``name``, ``duration_ns``, ``inside_ns`` (the part inside the window),
    ``registers``, ``shared_memory_bytes``, ``call`` (row of the graph's call in ``host_events``), ``hash``,
    ``compile_id`` (both null outside of compiled graphs), ``region`` (compile id of the region around the
    launch), ``op`` and ``nth``: the op that the graph called to launch it, and which of its like in that call
    it is (from 0), ``cudagraph``.
    """
    host = trace.host_events
    under_call = host["parent"].is_in(rows(host, "name", CALL).implode()).fill_null(False)
    launch = caller(trace.device_events)
    names = host["name"]
    of_call = graph_calls(trace).select(pl.col("id").alias("call"), "hash", "compile_id")
    end, within = END, window(trace)
    inside = pl.min_horizontal(end, within.end_ns) - pl.max_horizontal("start_ns", within.start_ns)
    table = trace.device_events.select(
        pl.lit(trace.rank, pl.Int32).alias("rank"),
        "device",
        pl.col("kind").cast(pl.String),
        pl.col("name").cast(pl.String),
        "duration_ns",
        inside.clip(0).alias("inside_ns"),
        "registers",
        "shared_memory_bytes",
        call=call_around(trace).gather(launch),
        region=names.gather(region_around(trace).gather(launch)).cast(pl.String).str.extract(REGION),
        child=nearest(host, under_call).gather(launch),
        cudagraph=matching(host, "name", GRAPH_LAUNCH).gather(launch).fill_null(False),
    )
    children = host.filter(under_call).sort("start_ns")
    children = children.select(call="parent", child="id", op=pl.col("name").cast(pl.String))
    children = children.with_columns(nth=pl.int_range(pl.len(), dtype=pl.Int64).over("call", "op"))
    return table.join(of_call, on="call", how="left", maintain_order="left").join(
        children, on=["call", "child"], how="left", maintain_order="left"
    )


def _own(events: pl.DataFrame, compilation: CompiledProgram) -> pl.DataFrame:
    """``events`` with ``graph`` and ``kernel`` (row numbers of the compilation, or null) and ``basis``."""
    events = _graph_of(events, compilation)
    rows = [
        (i, k.graph, k.compile_id, name)
        for i, k in enumerate(compilation.kernels)
        for name in dict.fromkeys((k.name, k.symbol))
    ]
    columns = {"kernel": pl.UInt32, "graph": pl.UInt32, "compile_id": pl.String, "base": pl.String}
    kernels = pl.DataFrame(rows, columns, orient="row")
    name = pl.col("name")
    events = events.with_columns(
        base=pl.when(name.is_in(kernels["base"].unique().implode()))
        .then(name)
        .otherwise(name.str.replace(SPECIALISED, ""))
    )
    in_graph = kernels.unique(["graph", "base"], keep="first", maintain_order=True).drop("compile_id")
    in_frame = _single(kernels, ["compile_id", "base"], "frame").rename({"compile_id": "region"})
    anywhere = _single(kernels, ["base"], "name")
    # What an announced graph launched belongs to that graph or to none.
    known = pl.col("hash").is_not_null()
    return (
        events.join(in_graph, on=["graph", "base"], how="left")
        .join(in_frame, on=["region", "base"], how="left")
        .join(anywhere, on="base", how="left")
        .with_columns(
            basis=pl.when(pl.col("graph").is_not_null())
            .then(pl.lit("graph hash"))
            .when(known)
            .then(None)
            .when(pl.col("frame_kernel").is_not_null())
            .then(pl.lit("compile id and name"))
            .when(pl.col("name_kernel").is_not_null())
            .then(pl.lit("name")),
            kernel=pl.when(known).then("kernel").otherwise(pl.coalesce("frame_kernel", "name_kernel")),
            graph=pl.when(known).then("graph").otherwise(pl.coalesce("frame_graph", "name_graph")),
        )
        .drop("frame_kernel", "frame_graph", "name_kernel", "name_graph", "base")
    )


def _graph_of(events: pl.DataFrame, compilation: CompiledProgram) -> pl.DataFrame:
    """The graph of that key; where compilations share one (a cache hit), the one of that compile id."""
    found = (graph for graph in compilation.graphs if graph.key)
    rows = [(g.key, g.compile_id, compilation.frames[g.frame].rank, g.index) for g in found]
    columns = {"hash": pl.String, "compile_id": pl.String, "rank": pl.Int32, "graph": pl.UInt32}
    graphs = pl.DataFrame(rows, columns, orient="row")
    keys = ["hash", "rank"]
    if graphs["rank"].n_unique() <= 1:
        # One log and several traces: the same program ran on every rank.
        graphs, keys = graphs.drop("rank"), ["hash"]
    exact = graphs.unique([*keys, "compile_id"], keep="first", maintain_order=True)
    any_id = graphs.drop("compile_id").unique(keys, keep="first", maintain_order=True)
    return (
        events.join(exact, on=[*keys, "compile_id"], how="left")
        .join(any_id.rename({"graph": "any_graph"}), on=keys, how="left")
        .with_columns(graph=pl.coalesce("graph", "any_graph"))
        .drop("any_graph")
    )


def _single(kernels: pl.DataFrame, keys: list[str], prefix: str) -> pl.DataFrame:
    """The kernels that ``keys`` tell apart from all others; what is ambiguous is left out."""
    return (
        kernels.group_by(keys)
        .agg(pl.col("kernel").n_unique().alias("count"), pl.col("kernel").first(), pl.col("graph").first())
        .filter(pl.col("count") == 1)
        .select(*keys, pl.col("kernel").alias(f"{prefix}_kernel"), pl.col("graph").alias(f"{prefix}_graph"))
    )
