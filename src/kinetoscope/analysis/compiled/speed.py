"""How near compiled work comes to what its device can do: per generated kernel, graph, frame and source line.

What a launch takes at least is its bytes over the device's bandwidth or its FLOPs over the peak of its dtype,
whichever is longer. Bytes and FLOPs are the compile log's: Inductor's counts where it wrote them, else the
kernel's arguments and the shapes of matrix products. What comes out above 100 % is refused: the counts do not
hold for it (Inductor's overestimate concatenations; data may never have left a cache), so neither it nor what
it is part of gets a share.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import msgspec
import polars as pl
from msgspec.structs import replace

from kinetoscope.analysis.compiled.sums import LineTime
from kinetoscope.analysis.cost.roofline import TF32, peaks
from kinetoscope.analysis.events.rows import matching
from kinetoscope.compilation.model import CompiledGraph, CompiledProgram, Frame
from kinetoscope.sources.run import LoadedRun

COSTS = {
    "kernel": pl.UInt32,
    "graph": pl.UInt32,
    "op": pl.String,
    "nth": pl.Int64,
    "bytes": pl.Int64,
    "flops": pl.Int64,
    "dtype": pl.String,
}
KEYS = ["kernel", "graph", "op", "nth"]
Costed = TypeVar("Costed", CompiledGraph, Frame, LineTime)
Unit = dict[str, Any]  # a row of ``_units``


class TimeShare(NamedTuple):
    """Device time whose least is known, and that least."""

    costed_us: float = 0.0
    least_us: float = 0.0

    def plus(self, other: TimeShare) -> TimeShare:
        return TimeShare(self.costed_us + other.costed_us, self.least_us + other.least_us)


def with_speed(
    compilation: CompiledProgram, lines: tuple[LineTime, ...], owned: pl.DataFrame, run: LoadedRun
) -> tuple[CompiledProgram, tuple[LineTime, ...]]:
    """The rows with ``speed_of_light`` and what it is made of; untouched where no device is known.

    ``owned``: every piece of device work with the graph, kernel and library call that it belongs to.
    """
    units = _units(compilation, owned, run)
    if units.is_empty():
        return compilation, lines
    of_kernel = {row["kernel"]: row for row in units.filter(pl.col("kernel").is_not_null()).to_dicts()}
    kernels = tuple(
        msgspec.structs.replace(kernel, **_rates(of_kernel[i])) if i in of_kernel else kernel
        for i, kernel in enumerate(compilation.kernels)
    )
    graphs: dict[int, TimeShare] = {}
    frames: dict[int, TimeShare] = {}
    places: dict[tuple[str, int], TimeShare] = {}
    for row in units.filter(~pl.col("refused")).to_dicts():
        part = TimeShare(row["time_us"], row["least_us"] * row["calls"])
        graph = compilation.graphs[row["graph"]]
        graphs[graph.index] = graphs.get(graph.index, TimeShare()).plus(part)
        frames[graph.frame] = frames.get(graph.frame, TimeShare()).plus(part)
        for place in _places(compilation, row):
            places[place] = places.get(place, TimeShare()).plus(part)
    filled = replace(
        compilation,
        kernels=kernels,
        graphs=tuple(_with(g, graphs.get(g.index)) for g in compilation.graphs),
        frames=tuple(_with(f, frames.get(f.index)) for f in compilation.frames),
    )
    return filled, tuple(_with(line, places.get((line.file, line.line))) for line in lines)


def _with(row: Costed, part: TimeShare | None) -> Costed:
    if part is None:
        return row
    speed = part.least_us / part.costed_us if part.costed_us else None
    return replace(row, speed_of_light=speed, costed_us=part.costed_us)


def _rates(unit: Unit) -> dict[str, float | str | bool | None]:
    """One kernel's columns, at the median of its durations."""
    seconds, refused = unit["median_us"] / 1e6, unit["refused"]
    return {
        "median_us": unit["median_us"],
        "bytes_per_s": unit["bytes"] / seconds if unit["bytes"] else None,
        "flops_per_s": unit["flops"] / seconds if unit["flops"] else None,
        "speed_of_light": None if refused else unit["least_us"] / unit["median_us"],
        "bound": None if refused else unit["bound"],
        "refused": refused,
    }


def _places(compilation: CompiledProgram, unit: Unit) -> set[tuple[str, int]]:
    if unit["kernel"] is not None:
        lines = compilation.kernels[unit["kernel"]].source
    else:
        extern = next(e for e in compilation.graphs[unit["graph"]].extern if e.op == unit["op"])
        lines = extern.places[unit["nth"]] if unit["nth"] < len(extern.places) else ()
    return {(line.file, line.line) for line in lines}


def _units(compilation: CompiledProgram, owned: pl.DataFrame, run: LoadedRun) -> pl.DataFrame:
    """One row per kernel, and one a library call of a graph, whose least time is known: ``KEYS``, ``calls``,
    ``time_us``, ``median_us``, ``least_us`` (of a call), ``bytes``, ``flops``, ``bound``, ``refused``."""
    of_call = [*KEYS, "rank", "device"]
    library = pl.col("kernel").is_null()
    calls = pl.concat(
        [
            owned.filter(~library).select(
                "kernel", "graph", _null("op"), _null("nth"), "rank", "device", "duration_ns", "name"
            ),
            # A library's call may launch several kernels.
            owned.filter(library & pl.col("graph").is_not_null() & pl.col("nth").is_not_null())
            .group_by(*of_call, "call", maintain_order=True)
            .agg(pl.col("duration_ns").sum(), pl.col("name").first())
            .select(*of_call, "duration_ns", "name"),
        ]
    )
    costed = calls.join(_costs(compilation), on=KEYS, nulls_equal=True)
    rounded = matching(costed, "name", TF32) & (costed["dtype"] == "fp32")
    per_s = pl.concat([peaks(trace).with_columns(rank=pl.lit(trace.rank, pl.Int32)) for trace in run.traces])
    bandwidth = per_s.unique(["rank", "device"]).select("rank", "device", "peak_bandwidth")
    least = {
        "compute": pl.col("flops") / pl.col("peak_flops") * 1e6,
        "memory": pl.col("bytes") / pl.col("peak_bandwidth") * 1e6,
    }
    return (
        costed.with_columns(dtype=pl.when(rounded).then(pl.lit("tf32")).otherwise("dtype"))
        .join(bandwidth, on=["rank", "device"])
        .join(per_s.drop("peak_bandwidth"), on=["rank", "device", "dtype"], how="left")
        .with_columns(**least)
        .group_by(KEYS, maintain_order=True)
        .agg(
            pl.len().alias("calls"),
            (pl.col("duration_ns").sum() / 1000).alias("time_us"),
            (pl.col("duration_ns").median() / 1000).alias("median_us"),
            pl.col("compute", "memory").mean(),
            pl.col("bytes", "flops").first(),
        )
        .with_columns(
            least_us=pl.max_horizontal("compute", "memory"),
            bound=pl.when(pl.col("compute") > pl.col("memory"))
            .then(pl.lit("compute"))
            .otherwise(pl.lit("memory")),
        )
        .filter((pl.col("least_us") > 0) & (pl.col("median_us") > 0))
        .with_columns(refused=pl.col("least_us") > pl.col("median_us"))
    )


def _null(name: str) -> pl.Expr:
    return pl.lit(None, COSTS[name]).alias(name)


def _costs(compilation: CompiledProgram) -> pl.DataFrame:
    rows: list[tuple[int | None, int, str | None, int | None, int | None, int | None, str | None]] = [
        (i, kernel.graph, None, None, kernel.bytes, kernel.flops, kernel.dtype)
        for i, kernel in enumerate(compilation.kernels)
        if kernel.bytes or kernel.flops
    ]
    for graph in compilation.graphs:
        for extern in {call.op: call for call in graph.extern}.values():
            rows += [
                (None, graph.index, extern.op, nth, cost.bytes, cost.flops, cost.dtype)
                for nth, cost in enumerate(extern.costs)
                if cost is not None
            ]
    return pl.DataFrame(rows, COSTS, orient="row")
