"""The critical path in words: its pieces by what the host or the device was at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.replay.graph import Graph
from kinetoscope.analysis.replay.numbers import State
from kinetoscope.analysis.replay.path import ARRIVING, HOST, RETURN, STARTING, TRANSFER, WORK, Piece
from kinetoscope.analysis.replay.threads import is_op, logical_threads
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed

NODE = "autograd::engine::evaluate_function: "
BETWEEN = "host: between ops"
PAUSES = "device: pauses between kernels"
OTHER = "before another rank began to be recorded"
LAUNCHES = "launches on their way to the device"

PARTS = {"text": pl.Categorical, "ns": pl.Float64, "table": pl.String, "id": pl.UInt32}
CAST = typed(PARTS)
NO_OPS = pl.DataFrame(
    schema={"id": pl.UInt32, "name": pl.Categorical, "start_ns": pl.Int64, "end_ns": pl.Int64}
)


SHOWN_EVENTS = 12  # of a part of the path; their number stands beside them


@dataclass(frozen=True)
class PathPart:
    """A part of the critical path: what took ``us`` of the step, and the first of the ``count`` events (rows
    of ``table``, ``host_events`` or ``device_events``, of this ``rank``) that it is made of."""

    text: str
    us: float
    rank: int
    table: str
    ids: tuple[int, ...]
    count: int


def path_parts(
    state: State, pieces: Sequence[Piece], traces: Mapping[int, Trace], rank: int, scale: float
) -> list[PathPart]:
    """Pieces merged by their text, longest first.

    Args:
        rank: whose step it is.
        scale: µs of the step per ns of the path.
    """
    parts = [
        part.with_columns(rank=pl.lit(other, pl.Int32))
        for other, trace in traces.items()
        for part in (_device(state, pieces, trace), _host(state.graph, pieces, trace))
    ]
    before = [(OTHER, p.ns, "host_events", None) for p in pieces if p.sort == STARTING]
    own = pl.lit(rank, pl.Int32).alias("rank")
    parts.append(pl.DataFrame(before, schema=PARTS, orient="row").with_columns(own))
    merged = (
        pl.concat(parts)
        .group_by("text", "rank", "table")
        .agg(pl.col("ns").sum(), pl.col("id").drop_nulls().unique().sort())
        .filter(pl.col("ns") > 0)
        .sort("ns", pl.col("text").cast(pl.String), descending=[True, False])
    )
    shown = merged.with_columns(pl.col("id").list.head(SHOWN_EVENTS), count=pl.col("id").list.len())
    return [
        PathPart(text, ns * scale, owner, table, tuple(ids), count)
        for text, owner, table, ns, ids, count in shown.iter_rows()
    ]


def _device(state: State, pieces: Sequence[Piece], trace: Trace) -> pl.DataFrame:
    """What the device did: kernels by the op that launched them, pauses, launches under way."""
    work = state.work.with_row_index("row")
    spans = [(p.sort, p.ns, *p.rows) for p in pieces if p.sort in (WORK, ARRIVING, TRANSFER)]
    table = pl.DataFrame(
        spans, schema={"sort": pl.String, "ns": pl.Float64, "row": pl.Int64, "after": pl.Int64}, orient="row"
    ).with_row_index("piece")
    rows = (
        table.with_columns(pl.int_ranges("row", "after").alias("row"))
        .explode("row")
        .with_columns(pl.col("row").cast(work.schema["row"]))
        .join(work, on="row", how="left", maintain_order="left")
        .filter(pl.col("rank") == trace.rank)
    )
    name = _names(trace).gather(rows["id"])
    rows = rows.with_columns(name.alias("text"))
    worked = rows.filter(pl.col("sort") == WORK)
    pauses = worked.group_by("piece").agg(pl.col("ns").first() - pl.col("work_ns").sum())
    whole = rows.filter(pl.col("sort") != WORK).with_columns(
        pl.when(pl.col("sort") == ARRIVING)
        .then(pl.lit(LAUNCHES, pl.Categorical))
        .otherwise("text")
        .alias("text")
    )
    of = pl.lit("device_events").alias("table")
    return pl.concat(
        [
            worked.select("text", pl.col("work_ns").alias("ns"), of, "id"),
            whole.select("text", "ns", of, "id"),
            pauses.select(
                pl.lit(PAUSES, pl.Categorical).alias("text"), "ns", of, pl.lit(None, pl.UInt32).alias("id")
            ),
        ]
    ).select(CAST)


@remembered
def _names(trace: Trace) -> pl.Series:
    """By device event, what it is called in a path: its op's kernels, or its own name."""
    op = trace.host_events["name"].gather(trace.device_events["op"]).alias("op")
    named = trace.device_events.select("kind", op, "name")
    # Events are many, and what they are called few.
    own, kernels = pl.col("name").cast(pl.String), pl.col("op").cast(pl.String) + " kernels"
    text = pl.when(pl.col("kind") == "kernel").then(pl.coalesce(kernels, own)).otherwise(own)
    texts = named.unique().with_columns(text.cast(pl.Categorical).alias("text"))
    return named.join(texts, on=named.columns, how="left", nulls_equal=True, maintain_order="left")["text"]


def _host(graph: Graph, pieces: Sequence[Piece], trace: Trace) -> pl.DataFrame:
    """What the host did: outermost ops and calls, what lies between them, and returning from waits."""
    names = trace.host_events["name"]
    returns = [
        (f"host: {names[p.call[1]]}", p.ns, "host_events", p.call[1])
        for p in pieces
        if p.sort == RETURN and p.call and p.call[0] == trace.rank
    ]
    spans = [(p.segment, p.ns, p.until) for p in pieces if p.sort == HOST and p.ns > 0]
    segments = graph.segments.with_row_index("segment").filter(pl.col("rank") == trace.rank)
    hosts = pl.DataFrame(
        spans, schema={"segment": pl.UInt32, "ns": pl.Float64, "until": pl.Int64}, orient="row"
    ).join(segments.select("segment", "thread", "start_ns"), on="segment")
    ops = _outermost(trace)
    spent = [
        _spent(hosts.filter(pl.col("thread") == thread), ops.get(thread, NO_OPS))
        for thread in hosts["thread"].unique()
    ]
    return pl.concat([pl.DataFrame(returns, schema=PARTS, orient="row"), *spent])


def _spent(hosts: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Segments of one thread (``start_ns``, ``until``), ``ns`` long by now, shared out among the ops that
    ran in them and what lay between those."""
    first = ops["end_ns"].search_sorted(hosts["start_ns"], side="right")
    after = ops["start_ns"].search_sorted(hosts["until"], side="left")
    pieces = hosts.with_row_index("piece").with_columns(first.alias("first"), after.alias("after"))
    inside = pieces.filter(pl.col("after") > pl.col("first")).select(
        "piece", "ns", "start_ns", "until", pl.int_ranges("first", "after").alias("row")
    )
    inside = inside.explode("row")
    ran = ops.select("name", "id", opened="start_ns", closed="end_ns")[inside["row"]]
    overlap = pl.min_horizontal("closed", "until") - pl.max_horizontal("opened", "start_ns")
    length = (pl.col("until") - pl.col("start_ns")).clip(lower_bound=1)
    inside = pl.concat([inside, ran], how="horizontal").with_columns(took=overlap * pl.col("ns") / length)
    by_name = inside.group_by("name").agg(pl.col("took").sum(), "id")
    text = pl.lit("host: ") + pl.col("name").cast(pl.String).str.strip_prefix(NODE)
    named = by_name.select(
        text.cast(pl.Categorical).alias("text"),
        pl.col("took").alias("ns") / pl.col("id").list.len(),
        pl.lit("host_events").alias("table"),
        "id",
    ).explode("id")
    left = hosts.select(pl.col("ns").sum() - pl.lit(inside["took"]).sum()).to_series().clip(lower_bound=0)
    between = pl.DataFrame({"ns": left}).select(
        pl.lit(BETWEEN).alias("text"), "ns", pl.lit("host_events").alias("table"), pl.lit(None).alias("id")
    )
    return pl.concat([table.select(CAST) for table in (named, between)])


@remembered
def _outermost(trace: Trace) -> dict[int, pl.DataFrame]:
    """By thread, its ops and calls that are inside no other."""
    host = trace.host_events
    counts = is_op(trace)
    inner = counts.gather(host["parent"]).fill_null(False)  # most, and known before anything is sorted
    own = host.select("id", "lane", "name", "start_ns", "duration_ns").filter(counts & ~inner)
    own = own.join(logical_threads(trace), on="lane")
    end = pl.col("start_ns") + pl.col("duration_ns")
    own = own.select("id", "thread", "name", "start_ns", end_ns=end)
    own = own.sort("thread", "start_ns", -pl.col("end_ns"))
    inside = pl.col("end_ns").cum_max().shift(1).over("thread") > pl.col("start_ns")
    outer = own.filter(~inside.fill_null(False))
    return {int(key[0]): table for key, table in outer.partition_by("thread", as_dict=True).items()}
