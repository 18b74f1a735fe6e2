"""Device time by kernel, and by what kernels belong to."""

from __future__ import annotations

import polars as pl

from kinetoscope import document
from kinetoscope.analysis.compiled import regions
from kinetoscope.analysis.compiled.join import compiled_speeds, source_of
from kinetoscope.analysis.cost.roofline import kernel_roofline
from kinetoscope.analysis.events import ops as analysis
from kinetoscope.analysis.kernels.names import short_names
from kinetoscope.analysis.kernels.work import work_of_all
from kinetoscope.analysis.origins import sums
from kinetoscope.analysis.origins.attribution import OUTSIDE, UNATTRIBUTED, calling_lines
from kinetoscope.analysis.time.busy import busy
from kinetoscope.analysis.time.window import window
from kinetoscope.document.collect.rows import rows, rows_by, rows_within
from kinetoscope.sources.run import LoadedRun


def kernels(run: LoadedRun) -> list[document.KernelRow]:
    """One row a kernel's name, copies and memsets included."""
    roofline = kernel_roofline(run).drop("launches")
    table = sums.kernel_rows(run).join(roofline, on="name", how="left", maintain_order="left")
    sources, compiled = source_of(run), compiled_speeds(run)
    table = table.with_columns(pl.col("costed_launches").fill_null(0))
    known = table.select("name", "speed_of_light", "costed_launches", "launches", "device_time_ns").rows()
    speeds = [(compiled.get(name), all_) if own is None else (own, few) for name, own, few, all_, _ in known]
    return rows(
        table,
        document.KernelRow,
        ops=rows_within(table["ops"], document.KernelOp),
        source=[sources.get(name) for name in table["name"]],
        of_peak=[speed for speed, _ in speeds],
        could_save_us=[
            None if speed is None else ns / 1000 * (costed / launches) * max(1 - speed, 0.0)
            for (speed, costed), (_, _, _, launches, ns) in zip(speeds, known, strict=True)
        ],
    )


def categories(run: LoadedRun) -> list[document.CategoryRow]:
    """One row a category of device work."""
    limits = pl.DataFrame(
        [(trace.rank, window(trace).start_ns, window(trace).end_ns) for trace in run.traces],
        schema={"rank": pl.Int32, "window_start": pl.Int64, "window_end": pl.Int64},
        orient="row",
    )
    inside = pl.min_horizontal("end_ns", "window_end") - pl.max_horizontal("start_ns", "window_start")
    extras = (
        work_of_all(run)
        .select("rank", "category", "name", "start_ns", "end_ns")
        .join(limits, on="rank")
        .group_by("category")
        .agg(inside_ns=inside.clip(0).sum(), distinct_kernels=pl.col("name").n_unique())
    )
    table = sums.kernels(run, "category").join(extras, on="category", maintain_order="left")
    window_ns = int(busy(run)["window_ns"].sum())
    # Not divided by Polars, which multiplies a column by the reciprocal of one number.
    shares = [inside_ns / window_ns if window_ns else 0.0 for inside_ns in table["inside_ns"]]
    return rows(table, document.CategoryRow, share_of_window=shares)


def ops(run: LoadedRun) -> list[document.OpRow]:
    """torch's own op table, with the line that each op is called from most."""
    table, lines = analysis.ops(run), calling_lines(run)
    return rows(table, document.OpRow, line=[lines.get(name) for name in table["name"]])


def graphs(run: LoadedRun) -> list[document.GraphRow]:
    parts = rows_by(regions.graph_categories(run), "graph", document.GraphCategory)
    table = regions.graphs(run)
    return rows(table, document.GraphRow, categories=[parts.get(graph, []) for graph in table["graph"]])


def listing(run: LoadedRun, by: str, category: str | None) -> document.KernelListing:
    """Device time of ``category`` (None: of all) summed ``by`` a key of ``analysis.origins.sums.BY``. Raises
    UsageError where there is no such key or category."""
    table = sums.kernels(run, by, category)
    names = [str(name) for name in table[by]]
    shares = sums.kernels(run, "category")
    return document.KernelListing(
        by=by,
        category=category,
        device_time_us=int(shares["device_time_ns"].sum()) / 1000,
        rows=rows(
            table, document.ListingRow, name=names, short_name=short_names(names) if by == "kernel" else names
        ),
        is_noted=category is not None or not set(names) <= {OUTSIDE.get(sums.BY[by]), UNATTRIBUTED},
        shares=dict(shares.select("category", "share_of_device_time").iter_rows()),
    )
