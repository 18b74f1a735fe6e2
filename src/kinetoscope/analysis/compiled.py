"""Join what the compiler made with what the device ran.

A launch belongs to the graph whose call encloses it on the host: Inductor announces every call of a graph as
``## Call CompiledFxGraph HASH ##``, and HASH is the graph's key in the compile log. Inside a graph a kernel is found
by its name. Where a trace announces no calls, a kernel belongs to the compile id of the region around it
(``Torch-Compiled Region: 0/0``), or else to the one graph that has a kernel of that name. Whatever remains is said
to be unmatched, with its device time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import polars as pl

from kinetoscope.analysis.break_gaps import idle_at_breaks
from kinetoscope.analysis.enclosing import nearest
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.profile import Profile
from kinetoscope.compilation.model import Compilation, Row
from kinetoscope.trace.model import Trace

CALL = r"^## Call CompiledFxGraph (\S+) ##$"
REGION = r"^Torch-Compiled Region: (?:.*\s)?([!\d/]+)$"
GENERATED = r"^triton_"
# Triton before 3.0 appended the specialisation of each argument to the kernel's name.
SPECIALISED = r"_\d[\dcdei]*$"


class LineTime(Row, frozen=True, kw_only=True):
    """Device time of generated kernels that compute (part of) one line.

    A fused kernel counts for each of its lines, so the column adds up to more than the total; ``own_us`` is the time of
    kernels that compute this line alone.
    """

    file: str
    line: int
    code: str
    device_time_us: float
    own_us: float
    kernels: int
    share_of_device_time: float


@dataclass(frozen=True)
class Joined:
    """A compilation with its device columns filled in.

    ``matched`` says on what ground, and how much device time of generated kernels no graph claims.
    """

    compilation: Compilation
    coverage: dict[str, float | None]
    source_lines: tuple[LineTime, ...]
    matched: dict[str, Any]


@remembered
def join(profile: Profile) -> Joined | None:
    """The profile's compilation joined with its traces; None where there is no compile log."""
    compilation = profile.compilation
    if compilation is None:
        return None
    events = pl.concat([launched(trace) for trace in profile.traces]) if profile.traces else _no_events()
    total = float(events["duration_ns"].sum())
    if not total:
        return Joined(compilation, dict.fromkeys(COVERAGE), (), _nothing_matched())
    owned = _own(events, compilation)
    filled = _fill(compilation, owned, total)
    gaps = idle_at_breaks(profile.traces, compilation)
    filled = replace(
        filled,
        graph_breaks=tuple(
            msgspec.structs.replace(row, idle_us=gaps.get(i)) for i, row in enumerate(filled.graph_breaks)
        ),
    )
    return Joined(
        filled,
        _coverage(events, total),
        tuple(_source_lines(filled, total)),
        _matched(owned, filled),
    )


COVERAGE = (
    "compiled_share_of_device_time",
    "cudagraph_share_of_device_time",
    "uncompiled_share_of_device_time",
)


@remembered
def launched(trace: Trace) -> pl.DataFrame:
    """Every piece of device work with the compiled graph that launched it.

    ``rank``, ``kind``, ``name``, ``duration_ns``, ``registers``, ``shared_memory_bytes``, ``call`` (row of the
    graph's call in ``host_events``), ``hash``, ``compile_id`` (null outside of compiled code), ``cudagraph``.
    """
    host = trace.host_events
    name = host["name"].cast(pl.String)
    calls, regions = name.str.contains(CALL), name.str.contains(REGION)
    at = host.select(
        pl.col("id").alias("launch"),
        nearest(host, calls).alias("call"),
        nearest(host, regions).alias("region"),
        name.str.contains("GraphLaunch").alias("cudagraph"),
    )
    hashes = pl.DataFrame({"call": host["id"], "hash": name.str.extract(CALL)}).filter(calls)
    ids = pl.DataFrame({"region": host["id"], "compile_id": name.str.extract(REGION)}).filter(regions)
    return (
        trace.device_events.select(
            pl.lit(trace.rank, pl.Int32).alias("rank"),
            pl.col("kind").cast(pl.String),
            pl.col("name").cast(pl.String),
            "duration_ns",
            "registers",
            "shared_memory_bytes",
            "launch",
        )
        .join(at, on="launch", how="left")
        .join(hashes, on="call", how="left")
        .join(ids, on="region", how="left")
        .with_columns(pl.col("cudagraph").fill_null(False))
        .drop("launch", "region")
    )


def _no_events() -> pl.DataFrame:
    return pl.DataFrame(schema={"duration_ns": pl.Int64})


def _coverage(events: pl.DataFrame, total: float) -> dict[str, float | None]:
    """A region also encloses what a graph break runs eagerly: it counts only where no graph announces itself."""
    compiled = pl.col("hash").is_not_null()
    if events["hash"].null_count() == len(events):
        compiled = pl.col("compile_id").is_not_null()
    inside = float(events.filter(compiled)["duration_ns"].sum())
    replayed = float(events.filter("cudagraph")["duration_ns"].sum())
    return dict(zip(COVERAGE, (inside / total, replayed / total, 1 - inside / total), strict=True))


def _own(events: pl.DataFrame, compilation: Compilation) -> pl.DataFrame:
    """``events`` with ``graph`` and ``kernel`` (row numbers of the compilation, or null) and ``basis``."""
    by_hash = _unique(
        pl.DataFrame(
            [(g.key, compilation.frames[g.frame].rank, g.index) for g in compilation.graphs if g.key],
            schema={"hash": pl.String, "rank": pl.Int32, "graph": pl.UInt32},
            orient="row",
        ),
        ["hash", "rank"],
    )
    if len({frame.rank for frame in compilation.frames}) == 1:
        # One log and several traces: the same program ran on every rank.
        events = events.join(by_hash.drop("rank"), on="hash", how="left")
    else:
        events = events.join(by_hash, on=["hash", "rank"], how="left")
    kernels = pl.DataFrame(
        [(i, k.graph, k.compile_id, k.name, k.symbol) for i, k in enumerate(compilation.kernels)],
        schema={
            "kernel": pl.UInt32,
            "graph": pl.UInt32,
            "compile_id": pl.String,
            "name": pl.String,
            "symbol": pl.String,
        },
        orient="row",
    )
    named = pl.concat(
        [
            kernels.drop("symbol"),
            kernels.drop("name").rename({"symbol": "name"}).select(kernels.drop("symbol").columns),
        ]
    ).unique()
    events = events.with_columns(
        pl.when(pl.col("name").is_in(named["name"].unique().implode()))
        .then("name")
        .otherwise(pl.col("name").str.replace(SPECIALISED, ""))
        .alias("base")
    )
    in_graph = _unique(named, ["graph", "name"]).select("graph", pl.col("name").alias("base"), "kernel")
    in_frame = _single(named, ["compile_id", "name"], "frame")
    anywhere = _single(named, ["name"], "name")
    return (
        events.join(in_graph, on=["graph", "base"], how="left")
        .join(in_frame, left_on=["compile_id", "base"], right_on=["compile_id", "name"], how="left")
        .join(anywhere, left_on="base", right_on="name", how="left")
        .with_columns(
            pl.when(pl.col("graph").is_not_null())
            .then(pl.lit("graph hash"))
            .when(pl.col("frame_kernel").is_not_null())
            .then(pl.lit("compile id and name"))
            .when(pl.col("name_kernel").is_not_null())
            .then(pl.lit("name"))
            .alias("basis"),
            pl.when(pl.col("graph").is_not_null())
            .then("kernel")
            .otherwise(pl.coalesce("frame_kernel", "name_kernel"))
            .alias("kernel"),
            pl.coalesce("graph", "frame_graph", "name_graph").alias("graph"),
        )
    )


def _unique(table: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    return table.unique(keys, keep="first", maintain_order=True)


def _single(named: pl.DataFrame, keys: list[str], prefix: str) -> pl.DataFrame:
    """The kernels that ``keys`` tell apart from all others; what is ambiguous is left out."""
    return (
        named.group_by(keys)
        .agg(pl.col("kernel").n_unique().alias("count"), pl.col("kernel").first(), pl.col("graph").first())
        .filter(pl.col("count") == 1)
        .select(*keys, pl.col("kernel").alias(f"{prefix}_kernel"), pl.col("graph").alias(f"{prefix}_graph"))
    )


SUMS = (
    (pl.col("duration_ns").sum() / 1000).alias("device_time_us"),
    pl.len().alias("launches"),
)


def _fill(compilation: Compilation, owned: pl.DataFrame, total: float) -> Compilation:
    of_kernel = _rows(
        owned.group_by("kernel").agg(*SUMS, pl.col("registers").max(), pl.col("shared_memory_bytes").max()),
        "kernel",
    )
    of_graph = _rows(
        owned.group_by("graph").agg(
            *SUMS,
            pl.col("call").n_unique().alias("calls"),
            (pl.col("duration_ns").filter(pl.col("kernel").is_null()).sum() / 1000).alias(
                "extern_device_time_us"
            ),
        ),
        "graph",
    )
    frame_of = pl.DataFrame(
        [(g.index, g.frame) for g in compilation.graphs],
        schema={"graph": pl.UInt32, "frame": pl.UInt32},
        orient="row",
    )
    of_frame = _rows(owned.join(frame_of, on="graph").group_by("frame").agg(*SUMS), "frame")
    none = {"device_time_us": 0.0, "launches": 0}
    return replace(
        compilation,
        kernels=tuple(_with(k, of_kernel.get(i, none), total) for i, k in enumerate(compilation.kernels)),
        graphs=tuple(_with(g, of_graph.get(g.index, none), total) for g in compilation.graphs),
        frames=tuple(_with(f, of_frame.get(f.index, none), total) for f in compilation.frames),
    )


def _rows(table: pl.DataFrame, key: str) -> dict[int, dict[str, Any]]:
    return {row.pop(key): row for row in table.filter(pl.col(key).is_not_null()).iter_rows(named=True)}


def _with(row: Any, found: dict[str, Any], total: float) -> Any:
    return msgspec.structs.replace(row, **found, share_of_device_time=found["device_time_us"] * 1000 / total)


def _source_lines(compilation: Compilation, total: float) -> list[LineTime]:
    touched: dict[tuple[str, int], list[float]] = {}
    codes: dict[tuple[str, int], str] = {}
    for kernel in compilation.kernels:
        time = kernel.device_time_us or 0.0
        lines = {(s.file, s.line): s.code for s in kernel.source}
        codes |= lines
        for place in lines if time else ():
            entry = touched.setdefault(place, [0.0, 0.0, 0])
            entry[0] += time
            entry[1] += time if len(lines) == 1 else 0.0
            entry[2] += 1
    return [
        LineTime(
            file=place[0],
            line=place[1],
            code=codes[place],
            device_time_us=time,
            own_us=own,
            kernels=int(kernels),
            share_of_device_time=time * 1000 / total,
        )
        for place, (time, own, kernels) in sorted(touched.items(), key=lambda item: -item[1][0])
    ]


def _matched(owned: pl.DataFrame, compilation: Compilation) -> dict[str, Any]:
    """How much device time of generated kernels reached graph, ATen ops and source lines."""
    known = pl.DataFrame(
        [(i, bool(k.aten_ops), bool(k.source)) for i, k in enumerate(compilation.kernels)],
        schema={"kernel": pl.UInt32, "has_ops": pl.Boolean, "has_source": pl.Boolean},
        orient="row",
    )
    generated = owned.filter(pl.col("kernel").is_not_null() | pl.col("name").str.contains(GENERATED)).join(
        known, on="kernel", how="left"
    )
    time = pl.col("duration_ns")
    missed = (
        generated.filter(pl.col("kernel").is_null())
        .group_by("name")
        .agg(*SUMS)
        .sort("device_time_us", descending=True)
    )
    bases = generated.filter(pl.col("kernel").is_not_null()).group_by("basis").agg(time.sum() / 1000)
    sums = generated.select(
        (time.sum() / 1000).alias("generated_us"),
        (time.filter(pl.col("kernel").is_not_null()).sum() / 1000).alias("to_graph_us"),
        (time.filter(pl.col("has_ops").fill_null(False)).sum() / 1000).alias("to_aten_ops_us"),
        (time.filter(pl.col("has_source").fill_null(False)).sum() / 1000).alias("to_source_us"),
    ).row(0, named=True)
    calls = owned.filter(pl.col("hash").is_not_null() & pl.col("graph").is_null())
    return {
        **sums,
        "basis_us": dict(bases.iter_rows()),
        "unmatched": missed.head(20).to_dicts(),
        "unknown_graphs": calls.group_by("hash")
        .agg(*SUMS)
        .sort("device_time_us", descending=True)
        .to_dicts(),
    }


def _nothing_matched() -> dict[str, Any]:
    return {
        "generated_us": 0.0,
        "to_graph_us": 0.0,
        "to_aten_ops_us": 0.0,
        "to_source_us": 0.0,
        "basis_us": {},
        "unmatched": [],
        "unknown_graphs": [],
    }
