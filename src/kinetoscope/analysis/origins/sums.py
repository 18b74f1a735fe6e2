"""Where device time went: by kernel, and by everything a kernel belongs to."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.kernels.names import short_names
from kinetoscope.analysis.kernels.occupancy import fitted
from kinetoscope.analysis.memo import kept, remembered
from kinetoscope.analysis.origins.attribution import OUTSIDE, UNATTRIBUTED, belonging, with_most_time
from kinetoscope.errors import UsageError, meant
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.schema import whole

# What device time can be summed by, and the column of `belonging` that says it.
BY = {
    "kernel": "name",
    "category": "category",
    "graph": "graph",
    "step": "step_name",
    "phase": "phase",
    "stream": "stream",
    "op": "op_name",
    "annotation": "annotation",
    "module": "module",
    "line": "line",
    "grid": "grid",
}


def kernels(run: LoadedRun, by: str = "kernel", category: str | None = None) -> pl.DataFrame:
    """Device time summed by ``by`` (a key of ``BY``), of one category or of all, most first: the key's column
    (named ``by``) and those of ``ListingRow`` but its names, in ns. Raises UsageError where there is no such
    key or category."""
    if by not in BY:
        raise UsageError(f"kernels cannot be summed by {by!r}", hint=f"one of: {', '.join(BY)}")
    table = _shaped(run)
    if by == "grid":
        table = table.with_columns(pl.col("grid").fill_null("no grid"))
    total = int(table["duration_ns"].sum())
    if category is not None:
        present = table["category"].unique().cast(pl.String).sort().to_list()
        if category not in present:
            raise UsageError(f"no device time of category {category!r} here", hint=meant(category, present))
        table = table.filter(pl.col("category").cast(pl.String) == category)
    return summed(table, BY[by], total).rename({BY[by]: by} if by != "category" else {})


def summed(table: pl.DataFrame, key: str, total_ns: int) -> pl.DataFrame:
    """The rows of ``kernels`` for one grouping column of a table of work."""
    duration = pl.col("duration_ns")
    rows = table.group_by(key, maintain_order=True).agg(
        launches=pl.len().cast(pl.Int64),
        device_time_ns=duration.sum(),
        mean_ns=duration.mean(),
        median_ns=duration.median(),
        min_ns=duration.min(),
        max_ns=duration.max(),
        p90_ns=duration.quantile(0.9, "linear"),
        waves=pl.col("waves").median(),
        launches_below_device=pl.when(pl.col("below").is_not_null().any()).then(
            pl.col("below").sum().cast(pl.Int64)
        ),
    )
    if key != "category":
        rows = rows.join(with_most_time(table, key, "category"), on=key, how="left", nulls_equal=True)
    return rows.with_columns(share_of_device_time=pl.col("device_time_ns") / max(total_ns, 1)).sort(
        "device_time_ns", "launches", pl.col(key).cast(pl.String), descending=[True, True, False]
    )


@kept
def kernel_rows(run: LoadedRun) -> pl.DataFrame:
    """One row per kernel name, copies and memsets included, as the report shows them: ``kernels`` with
    ``kind``, ``short_name``, ``graph`` (the compiled graph with most of its time; null if that is none) and
    ``ops`` (who launched it, most time first: structs of name, launches, device_time_ns)."""
    table = belonging(run)
    inside = pl.col("graph").cast(pl.String).is_in([OUTSIDE["graph"], UNATTRIBUTED]).not_()
    rows = kernels(run).rename({"kernel": "name"})
    graph, kind = with_most_time(table.filter(inside), "name", "graph"), with_most_time(table, "name", "kind")
    for details in (_ops(table), graph, kind):
        rows = rows.join(details, on="name", how="left", maintain_order="left")
    shorts = short_names(rows["name"].cast(pl.String))
    return rows.with_columns(pl.Series("short_name", shorts, pl.String))


LAUNCH = ["rank", "device", "grid", "block", "registers", "shared_memory_bytes"]


@remembered
def _shaped(run: LoadedRun) -> pl.DataFrame:
    """``belonging`` with what each launch's shape makes of its device, null where one of the two is not
    known: ``waves``, and ``below``, whether some multiprocessors have no block."""
    table = belonging(run)
    shapes, room = table.select(LAUNCH).unique(), pl.col("resident") * pl.col("multiprocessors")
    devices = {(trace.rank, device.index): device for trace in run.traces for device in trace.devices}
    known = [
        fitted(own, device).with_columns(multiprocessors=pl.lit(device.multiprocessors, pl.Int64))
        for (rank, index), own in shapes.group_by("rank", "device")
        if (device := devices.get((whole(rank), whole(index)))) is not None
    ]
    if not known:
        return table.with_columns(waves=pl.lit(None, pl.Float64), below=pl.lit(None, pl.Boolean))
    fits = pl.concat(known).select(
        *LAUNCH,
        waves=pl.when(room > 0).then(pl.col("blocks") / room),
        below=pl.col("blocks") < pl.col("multiprocessors"),
    )
    # Joined to what it is joined by, not to the whole table, of which a copy would be remembered.
    found = table.select(LAUNCH).join(fits, on=LAUNCH, how="left", nulls_equal=True, maintain_order="left")
    return table.with_columns(found["waves"], found["below"])


def _ops(table: pl.DataFrame) -> pl.DataFrame:
    """(name, ops): which ops launched each kernel."""
    return (
        table.group_by("name", "op_name")
        .agg(launches=pl.len().cast(pl.Int64), device_time_ns=pl.col("duration_ns").sum())
        .sort("device_time_ns", "launches", pl.col("op_name").cast(pl.String), descending=[True, True, False])
        .group_by("name", maintain_order=True)
        .agg(ops=pl.struct(pl.col("op_name").alias("name"), "launches", "device_time_ns"))
    )
