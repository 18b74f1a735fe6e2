"""The critical path in words: its pieces by what the host or the device was at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.replay.graph import Graph
from kinetoscope.analysis.replay.numbers import State
from kinetoscope.analysis.replay.path import ARRIVING, HOST, RETURN, STARTING, TRANSFER, WORK, Piece
from kinetoscope.analysis.replay.threads import OPS, strands
from kinetoscope.trace.model import Trace

NODE = "autograd::engine::evaluate_function: "
BETWEEN = "host: between ops"
PAUSES = "device: pauses between kernels"
OTHER = "before another rank began to be recorded"
LAUNCHES = "launches on their way to the device"

PARTS = {"text": pl.Categorical, "ns": pl.Float64, "table": pl.String, "id": pl.UInt32}


@dataclass(frozen=True)
class Segment:
    """A part of the critical path: what took ``us`` of the step, and the events (rows of ``table``,
    ``host_events`` or ``device_events``, of this ``rank``) that it is made of."""

    text: str
    us: float
    rank: int
    table: str
    ids: tuple[int, ...]


def segments(
    state: State, pieces: Sequence[Piece], traces: Mapping[int, Trace], scale: float
) -> list[Segment]:
    """Pieces merged by their text, longest first.

    Args:
        scale: µs of the step per ns of the path.
    """
    parts = [
        part.with_columns(rank=pl.lit(rank, pl.Int32))
        for rank, trace in traces.items()
        for part in (_device(state, pieces, trace), _host(state.graph, pieces, trace))
    ]
    other = [(OTHER, p.ns, "host_events", None) for p in pieces if p.sort == STARTING]
    own = pl.lit(next(iter(traces)), pl.Int32).alias("rank")
    parts.append(pl.DataFrame(other, schema=PARTS, orient="row").with_columns(own))
    merged = (
        pl.concat(parts)
        .group_by("text", "rank", "table")
        .agg(pl.col("ns").sum(), pl.col("id").drop_nulls().unique().sort())
        .filter(pl.col("ns") > 0)
        .sort("ns", pl.col("text").cast(pl.String), descending=[True, False])
    )
    return [
        Segment(text, ns * scale, rank, table, tuple(ids))
        for text, rank, table, ns, ids in merged.select("text", "rank", "table", "ns", "id").iter_rows()
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
    ).select(pl.col(column).cast(dtype) for column, dtype in PARTS.items())


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
    ops = _outermost(trace)
    found: list[tuple[str, float, str, int | None]] = []
    names = trace.host_events["name"]
    for piece in pieces:
        if piece.sort == RETURN and piece.call and piece.call[0] == trace.rank:
            found.append((f"host: {names[piece.call[1]]}", piece.ns, "host_events", piece.call[1]))
    spans = [(p.stretch, p.ns, p.until) for p in pieces if p.sort == HOST and p.ns > 0]
    stretches = graph.stretches.with_row_index("stretch").filter(pl.col("rank") == trace.rank)
    hosts = pl.DataFrame(
        spans, schema={"stretch": pl.UInt32, "ns": pl.Float64, "until": pl.Int64}, orient="row"
    ).join(stretches.select("stretch", "strand", "start_ns"), on="stretch")
    for _, ns, until, strand, start in hosts.iter_rows():
        own = ops.get(strand)
        found += _spent(own, start, until, ns) if own is not None else [(BETWEEN, ns, "host_events", None)]
    return pl.DataFrame(found, schema=PARTS, orient="row")


def _spent(ops: pl.DataFrame, start: int, until: int, ns: float) -> list[tuple[str, float, str, int | None]]:
    """``ns`` of host time shared out among the ops that ran between two instants, and what lay between."""
    first = int(ops["end_ns"].search_sorted(start, side="right"))
    after = int(ops["start_ns"].search_sorted(until, side="left"))
    inside = ops[first : max(first, after)]
    share = ns / max(1, until - start)
    left = ns
    found: list[tuple[str, float, str, int | None]] = []
    for name, op, opened, closed in inside.select("name", "id", "start_ns", "end_ns").iter_rows():
        took = (min(closed, until) - max(opened, start)) * share
        left -= took
        found.append((f"host: {name.removeprefix(NODE)}", took, "host_events", op))
    return [*found, (BETWEEN, max(0.0, left), "host_events", None)]


@remembered
def _outermost(trace: Trace) -> dict[int, pl.DataFrame]:
    """By strand, its ops and calls that are inside no other."""
    host = trace.host_events
    own = host.filter(matching(host, "category", f"(?i){OPS}")).join(strands(trace), on="lane")
    end = pl.col("start_ns") + pl.col("duration_ns")
    own = own.select("id", "strand", "name", "start_ns", end_ns=end)
    own = own.sort("strand", "start_ns", -pl.col("end_ns"))
    inside = pl.col("end_ns").cum_max().shift(1).over("strand") > pl.col("start_ns")
    outer = own.filter(~inside.fill_null(False))
    return {int(key[0]): table for key, table in outer.partition_by("strand", as_dict=True).items()}
