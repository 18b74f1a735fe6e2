"""Sum the joined device work by kernel, graph, frame, library call and source line."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import polars as pl
from msgspec.structs import replace

from kinetoscope.analysis.compiled.rows import Coverage, Matched, UnknownGraph, UnmatchedKernel
from kinetoscope.compilation.model import (
    CompiledGraph,
    CompiledKernel,
    CompiledProgram,
    ExternCall,
    Frame,
    LineTime,
    SourceLine,
)

GENERATED = r"^triton_"
SUMS = (
    (pl.sum("duration_ns") / 1000).alias("device_time_us"),
    pl.len().cast(pl.Int64).alias("launches"),
)
INSIDE = pl.sum("inside_ns")
Place = tuple[str, int]
Timed = TypeVar("Timed", CompiledKernel, CompiledGraph, Frame)
Sums = dict[str, Any]  # a row of a table: ``SUMS`` and what else its row of the compilation takes over


def coverage(events: pl.DataFrame) -> Coverage:
    """Shares of device time that ran in compiled graphs, and in CUDA graphs.

    A region also encloses what a graph break runs eagerly: it counts only where no graph announces its calls.
    """
    total = float(events["duration_ns"].sum())
    inside = pl.col("hash" if events["hash"].count() else "region").is_not_null()

    def share(of: pl.Expr) -> float | None:
        return float(events.filter(of)["duration_ns"].sum()) / total if total else None

    return Coverage(
        compiled_share_of_device_time=share(inside),
        cudagraph_share_of_device_time=share(pl.col("cudagraph")),
    )


def fill(compilation: CompiledProgram, owned: pl.DataFrame, window_ns: int) -> CompiledProgram:
    """The rows with ``device_time_us``, ``launches`` and shares; untouched without device work.
    ``share_of_window`` is of ``window_ns``, the recorded steps of all devices."""
    total = float(owned["duration_ns"].sum())
    if not total:
        return compilation
    kernels = owned.group_by("kernel").agg(*SUMS, INSIDE, pl.max("registers"), pl.max("shared_memory_bytes"))
    library = pl.col("duration_ns").filter(pl.col("kernel").is_null())
    graphs = owned.group_by("graph").agg(
        *SUMS,
        INSIDE,
        calls=pl.n_unique("call").cast(pl.Int64),
        extern_device_time_us=library.sum() / 1000,
    )
    frames_of = [(g.index, g.frame) for g in compilation.graphs]
    frame_of = pl.DataFrame(frames_of, {"graph": pl.UInt32, "frame": pl.UInt32}, orient="row")
    regions = [(f.compile_id, f.index) for f in silent_frames(compilation)]
    silent = pl.DataFrame(regions, {"region": pl.String, "frame": pl.UInt32}, orient="row")
    silent = silent.unique("region", keep="last")
    unclaimed = owned.filter(pl.col("graph").is_null() & pl.col("hash").is_null())
    parts = [owned.join(frame_of, on="graph"), unclaimed.join(silent, on="region")]
    frames = pl.concat([part.select("frame", "duration_ns", "inside_ns") for part in parts])
    frames = frames.group_by("frame").agg(*SUMS, INSIDE)
    externs = owned.filter(pl.col("kernel").is_null() & pl.col("graph").is_not_null()).group_by("graph", "op")
    of_op = {(row["graph"], row["op"]): row for row in externs.agg(*SUMS).iter_rows(named=True)}
    of_kernel, of_graph, of_frame = _rows(kernels, "kernel"), _rows(graphs, "graph"), _rows(frames, "frame")
    return replace(
        compilation,
        kernels=tuple(
            _with(k, of_kernel.get(i), total, window_ns) for i, k in enumerate(compilation.kernels)
        ),
        graphs=tuple(
            _with(_externs(g, of_op), of_graph.get(g.index), total, window_ns) for g in compilation.graphs
        ),
        frames=tuple(_with(f, of_frame.get(f.index), total, window_ns) for f in compilation.frames),
    )


def silent_frames(compilation: CompiledProgram) -> list[Frame]:
    """Frames of backends whose graphs run without saying so in the trace: the region around the launch is all
    that tells of them, and it encloses what Python runs behind a break as well."""
    announced = {graph.frame for graph in compilation.graphs}
    return [f for f in compilation.frames if f.dynamo_ops and f.index not in announced]


def _rows(table: pl.DataFrame, key: str) -> dict[int, Sums]:
    return {row.pop(key): row for row in table.filter(pl.col(key).is_not_null()).iter_rows(named=True)}


def _with(row: Timed, found: Sums | None, total: float, window_ns: int) -> Timed:
    # What the trace does not say (registers of a kernel that AMD's runs, say) stays as it was.
    nothing = {"device_time_us": 0.0, "launches": 0, "inside_ns": 0}
    found = {k: v for k, v in (found or nothing).items() if v is not None}
    inside = found.pop("inside_ns")
    return msgspec.structs.replace(
        row,
        **found,
        share_of_device_time=found["device_time_us"] * 1000 / total,
        share_of_window=inside / window_ns if window_ns else None,
    )


def _externs(graph: CompiledGraph, of_op: dict[tuple[int, str], Sums]) -> CompiledGraph:
    def timed(call: ExternCall) -> ExternCall:
        row = of_op.get((graph.index, call.op))
        if row is None:  # never ran, or ran in a CUDA graph's replay, which names no ops: not known
            return call
        return msgspec.structs.replace(call, device_time_us=row["device_time_us"], launches=row["launches"])

    return msgspec.structs.replace(graph, extern=tuple(map(timed, graph.extern)))


def source_lines(compilation: CompiledProgram, owned: pl.DataFrame, window_ns: int) -> tuple[LineTime, ...]:
    """Device time by the user's lines, most first."""
    total = float(owned["duration_ns"].sum())
    touched: dict[Place, list[float]] = {}
    users: dict[Place, set[object]] = {}
    codes: dict[Place, str] = {}
    libraries: dict[Place, dict[str, float]] = {}

    def add(lines: tuple[SourceLine, ...], time: float, share: float, user: object, op: str = "") -> None:
        places = {(s.file, s.line): s.code for s in lines}
        codes.update(places)
        for place in places if time else ():
            entry = touched.setdefault(place, [0.0, 0.0, 0.0])
            entry[0] += time
            entry[1] += time if len(places) == 1 else 0.0
            entry[2] += share
            users.setdefault(place, set()).add(user)
            if op:
                called = libraries.setdefault(place, {})
                called[op] = called.get(op, 0.0) + time

    for index, kernel in enumerate(compilation.kernels):
        add(kernel.source, kernel.device_time_us or 0.0, kernel.share_of_window or 0.0, index)
    calls = {(g.index, e.op): e for g in compilation.graphs for e in g.extern}
    library = owned.filter(pl.col("kernel").is_null() & pl.col("graph").is_not_null())
    called = library.group_by("graph", "op", "nth", maintain_order=True)  # else sums differ in their last bit
    for row in called.agg(SUMS[0], INSIDE).iter_rows(named=True):
        call = calls.get((row["graph"], row["op"]))
        if call is not None and row["nth"] < len(call.places):
            share = row["inside_ns"] / window_ns if window_ns else 0.0
            add(call.places[row["nth"]], row["device_time_us"], share, (row["graph"], row["op"]), row["op"])
    return tuple(
        LineTime(
            file=place[0],
            line=place[1],
            code=codes[place],
            device_time_us=time,
            own_us=own,
            kernels=len(users[place]),
            share_of_device_time=time * 1000 / total,
            share_of_window=share,
            library_us=libraries.get(place, {}),
        )
        for place, (time, own, share) in sorted(touched.items(), key=lambda item: (-item[1][0], item[0]))
    )


def matched(owned: pl.DataFrame, compilation: CompiledProgram) -> Matched:
    """Device time of generated kernels that reached graph, ATen ops and source lines, and on what ground."""
    known = pl.DataFrame(
        [(i, bool(k.aten_ops), bool(k.source)) for i, k in enumerate(compilation.kernels)],
        schema={"kernel": pl.UInt32, "has_ops": pl.Boolean, "has_source": pl.Boolean},
        orient="row",
    )
    found, time = pl.col("kernel").is_not_null(), pl.col("duration_ns")
    generated = owned.filter(found | pl.col("name").str.contains(GENERATED)).join(
        known, on="kernel", how="left"
    )
    sums = generated.select(
        generated_us=time.sum() / 1000,
        to_aten_ops_us=time.filter(pl.col("has_ops").fill_null(False)).sum() / 1000,
        to_source_us=time.filter(pl.col("has_source").fill_null(False)).sum() / 1000,
    )
    bases = generated.filter(found).group_by("basis").agg(time.sum() / 1000)
    unmatched = generated.filter(~found).group_by("name").agg(*SUMS)
    unknown = (
        owned.filter(pl.col("hash").is_not_null() & pl.col("graph").is_null()).group_by("hash").agg(*SUMS)
    )
    unmatched = unmatched.sort("device_time_us", "name", descending=[True, False]).head(20)
    unknown = unknown.sort("device_time_us", "hash", descending=[True, False])
    return Matched(
        **sums.row(0, named=True),
        basis_us=dict(bases.sort("basis").iter_rows()),
        unmatched=tuple(UnmatchedKernel(**row) for row in unmatched.to_dicts()),
        unknown_graphs=tuple(UnknownGraph(**row) for row in unknown.to_dicts()),
    )
