"""Compiled regions and the calls of compiled graphs in them, as the trace alone shows them."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events import torch_names
from kinetoscope.analysis.events.enclosing import caller, nearest
from kinetoscope.analysis.events.rows import END, constant, matching, rows
from kinetoscope.analysis.events.torch_names import (
    CALL,
    COMPILED_BACKWARD,
    COMPILED_FORWARD,
    COMPILER_PHASE,
    GRAPH_RECORDING,
    REGION,
)
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.time import intervals
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

COMPILED = f"{REGION}|{COMPILED_BACKWARD}|{CALL}"


def region_around(trace: Trace) -> pl.Series:
    """The innermost compiled region around each row of ``host_events``, itself included; else null."""
    return nearest(trace.host_events, matching(trace.host_events, "name", REGION))


@remembered
def regions(trace: Trace) -> pl.DataFrame:
    """``host_events`` of every entry into a compiled function."""
    return trace.host_events[rows(trace.host_events, "name", REGION)]


@remembered
def compiled(trace: Trace) -> pl.Series:
    """Rows of ``host_events`` that are launches inside compiled code, forward or backward."""
    host = trace.host_events
    launches = trace.device_events["launch"].drop_nulls().unique().sort()
    around = nearest(host, matching(host, "name", COMPILED))
    return launches.filter(around[launches].is_not_null())


@remembered
def continued(trace: Trace) -> pl.Series:
    """Launches (rows of ``host_events``) of a compiled graph's call after its first."""
    launches, host = compiled(trace), trace.host_events
    around = nearest(host, matching(host, "name", COMPILED))
    calls = host.select("id", "lane", "start_ns", around.alias("call"))[launches].sort("lane", "start_ns")
    return calls.filter(pl.col("call") == pl.col("call").shift(1).over("lane"))["id"]


@remembered
def region_of_work(trace: Trace) -> pl.Series:
    """For each row of ``device_events`` the compiled region it was launched in (row of ``host_events``)."""
    return region_around(trace)[trace.device_events["launch"]]


@remembered
def replaying(trace: Trace) -> frozenset[str]:
    """The compile ids of the functions whose calls launch a CUDA graph."""
    host = trace.host_events
    replays = rows(host, "name", torch_names.GRAPH_LAUNCH)
    if replays.is_empty():
        return frozenset()
    around = region_around(trace).gather(replays).drop_nulls().unique()
    return frozenset(_compile_ids(host["name"].gather(around)).drop_nulls().to_list())


@remembered
def pieces(trace: Trace) -> pl.DataFrame:
    """``regions`` that others enter, as the pieces of a function that broke are: ``compile_id``, and the
    region ``around`` each (row of ``host_events``)."""
    host, entered = trace.host_events, regions(trace)
    around = region_around(trace).gather(host["parent"].gather(entered["id"]))
    return entered.with_columns(around.alias("around"), compile_id=_compile_ids(entered["name"])).filter(
        pl.col("around").is_not_null()
    )


def _compile_ids(names: pl.Series) -> pl.Series:
    return names.cast(pl.String).str.extract(REGION)


def compiler_phases(trace: Trace, start_ns: int, end_ns: int) -> pl.DataFrame:
    """``host_events`` of the phases of Dynamo, AOTAutograd and Inductor that begin between two instants.

    The recording of CUDA graphs is none of them: it runs the program.
    """
    host = trace.host_events
    is_phase = matching(host, "name", COMPILER_PHASE) & ~matching(host, "name", GRAPH_RECORDING)
    return host.filter(is_phase & host["start_ns"].is_between(start_ns, end_ns))


def compiling(trace: Trace, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Merged intervals (start_ns, end_ns) of those phases."""
    return intervals.union(compiler_phases(trace, start_ns, end_ns).with_columns(END))


DIRECTIONS = pl.Enum(["forward", "backward", "inference"])
GRAPH = ["graph", "hash", "compile_id", "direction"]
GRAPH_CALLS = {
    "id": pl.UInt32,
    "graph": pl.Categorical,
    "hash": pl.String,
    "compile_id": pl.String,
    "direction": DIRECTIONS,
    "start_ns": pl.Int64,
    "duration_ns": pl.Int64,
}


def call_around(trace: Trace) -> pl.Series:
    """The call of a compiled graph around each row of ``host_events``, itself included; else null."""
    return nearest(trace.host_events, matching(trace.host_events, "name", CALL))


@remembered
def graph_calls(trace: Trace) -> pl.DataFrame:
    """One row per call of a compiled graph: ``id`` (row of ``host_events``), ``hash``, ``direction``
    (backward, forward or inference), ``compile_id`` ("0/0", from the compiled region around the call; of a
    backward, from the forward call of the same autograd sequence number; null if neither was recorded),
    ``graph`` (the three in one text), ``start_ns``, ``duration_ns``."""
    host = trace.host_events
    calls = host[["id", "start_ns", "duration_ns", "name"]][rows(host, "name", CALL)]
    if calls.is_empty():
        return pl.DataFrame(schema=GRAPH_CALLS)
    calls = calls.with_columns(pl.col("name").cast(pl.String))
    regions = region_around(trace)[calls["id"]]
    backward, forward = (
        nearest(host, matching(host, "name", node))[calls["id"]]
        for node in (COMPILED_BACKWARD, COMPILED_FORWARD)
    )
    names = host["name"][regions].cast(pl.String)
    table = calls.select(
        "id",
        "start_ns",
        "duration_ns",
        hash=pl.col("name").str.extract(CALL),
        direction=pl.when(backward.is_not_null())
        .then(pl.lit("backward"))
        .when(forward.is_not_null())
        .then(pl.lit("forward"))
        .otherwise(pl.lit("inference"))
        .cast(DIRECTIONS),
        compile_id=names.str.extract(REGION),
        sequence=host["sequence"][pl.select(pl.coalesce(backward, forward)).to_series()],
    )
    of_forward = (
        table.filter((pl.col("direction") == "forward") & pl.col("compile_id").is_not_null())
        .unique("sequence", keep="first")
        .select("sequence", of_forward="compile_id")
        .drop_nulls("sequence")
    )
    return (
        table.join(of_forward, on="sequence", how="left", maintain_order="left")
        .with_columns(compile_id=pl.coalesce("compile_id", "of_forward"))
        .with_columns(
            graph=pl.concat_str(
                "compile_id", pl.col("direction").cast(pl.String), "hash", separator=" ", ignore_nulls=True
            ).cast(pl.Categorical)
        )
        .select("id", *GRAPH, "start_ns", "duration_ns")
    )


@remembered
def graph_of_work(trace: Trace) -> pl.Series:
    """The ``graph`` that launched each device event, in their order; null outside of compiled graphs.

    A CUDA-graph replay is launched from inside the call, so all its kernels are the graph's.
    """
    graphs = graph_calls(trace).select("id", "graph")
    if graphs.is_empty():
        return constant(None, len(trace.device_events), pl.Categorical).alias("graph")
    called_by = call_around(trace)[caller(trace.device_events)]
    return called_by.to_frame("id").join(graphs, on="id", how="left", maintain_order="left")["graph"]


@remembered
def graphs(run: LoadedRun) -> pl.DataFrame:
    """A row per compiled graph called, most device time first: ``GraphRow`` without categories, in ns."""
    calls = pl.concat([graph_calls(trace) for trace in run.traces])
    called = calls.group_by(GRAPH).agg(calls=pl.len().cast(pl.Int64), host_ns=pl.col("duration_ns").sum())
    categories = graph_categories(run)
    times = categories.group_by("graph").agg(
        pl.col("launches", "device_time_ns", "share_of_device_time").sum()
    )
    return (
        called.join(times, on="graph", how="left")
        .with_columns(pl.col("launches", "device_time_ns", "share_of_device_time").fill_null(0))
        .sort("device_time_ns", pl.col("graph").cast(pl.String), descending=[True, False])
    )


@remembered
def graph_categories(run: LoadedRun) -> pl.DataFrame:
    """Device time of each ``graph`` by category, most first: ``GraphCategory``, in ns."""
    table = pl.concat(
        [work(t).select("category", "duration_ns").with_columns(graph=graph_of_work(t)) for t in run.traces]
    )
    total = max(int(table["duration_ns"].sum()), 1)
    time = pl.col("device_time_ns")
    return (
        table.drop_nulls("graph")
        .group_by("graph", "category")
        .agg(launches=pl.len().cast(pl.Int64), device_time_ns=pl.col("duration_ns").sum())
        .with_columns(share_of_graph=time / time.sum().over("graph"), share_of_device_time=time / total)
        .sort(time, pl.col("category").cast(pl.String), descending=[True, False])
    )
