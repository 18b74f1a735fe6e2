"""Where device time went: by kernel, and by everything a kernel belongs to."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.names import short_name
from kinetoscope.analysis.profile import Profile
from kinetoscope.analysis.work import work
from kinetoscope.errors import UsageError
from kinetoscope.trace.model import Trace

UNATTRIBUTED = "unattributed"

# What device time can be summed by, and the column of `placed` that says it.
BY = {
    "kernel": "name",
    "category": "category",
    "op": "op_name",
    "step": "step_name",
    "stream": "stream",
}


@remembered
def placed(profile: Profile) -> pl.DataFrame:
    """``work`` of every rank, with the text columns ``op_name`` and ``step_name`` ("unattributed" where unknown)."""
    return pl.concat([_placed(trace) for trace in profile.traces])


def _placed(trace: Trace) -> pl.DataFrame:
    table = work(trace)
    return table.with_columns(
        trace.host_events["name"].gather(table["op"]).alias("op_name").fill_null(UNATTRIBUTED),
        trace.steps["name"]
        .gather(table["step"])
        .alias("step_name")
        .cast(pl.Categorical)
        .fill_null(UNATTRIBUTED),
    )


def kernels(profile: Profile, by: str = "kernel", category: str | None = None) -> pl.DataFrame:
    """Device time summed by ``by`` (a key of ``BY``), of one category or of all, most first.

    Returns:
        The key's column (named ``by``) and ``category`` (the one with most of the row's time), ``launches`` (device
        events), ``device_time_ns`` (sum), ``share_of_device_time`` (of all device time, filtered or not),
        ``mean_ns``, ``median_ns``, ``min_ns``, ``max_ns``, ``p90_ns`` of the durations. Quantiles interpolate
        linearly between the two nearest ranks, so the median of an even count is the mean of the middle two.

    Raises:
        UsageError: ``by`` or ``category`` is not one there is.
    """
    if by not in BY:
        raise UsageError(f"kernels cannot be summed by {by!r}", mend=f"one of: {', '.join(BY)}")
    table = placed(profile)
    total = int(table["duration_ns"].sum())
    if category is not None:
        present = table["category"].unique().cast(pl.String).sort().to_list()
        if category not in present:
            raise UsageError(
                f"no device time of category {category!r} here", mend=f"one of: {', '.join(present)}"
            )
        table = table.filter(pl.col("category").cast(pl.String) == category)
    return summed(table, BY[by], total).rename({BY[by]: by} if by != "category" else {})


def summed(table: pl.DataFrame, key: str, total_ns: int) -> pl.DataFrame:
    """The rows of ``kernels`` for one grouping column of a table of work."""
    duration = pl.col("duration_ns")
    rows = table.group_by(key, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("launches"),
        duration.sum().alias("device_time_ns"),
        duration.mean().alias("mean_ns"),
        duration.median().alias("median_ns"),
        duration.min().alias("min_ns"),
        duration.max().alias("max_ns"),
        duration.quantile(0.9, "linear").alias("p90_ns"),
    )
    if key != "category":
        rows = rows.join(_main(table, key, "category"), on=key, how="left", nulls_equal=True)
    return rows.with_columns(
        (pl.col("device_time_ns") / max(total_ns, 1)).alias("share_of_device_time")
    ).sort("device_time_ns", "launches", pl.col(key).cast(pl.String), descending=[True, True, False])


def _main(table: pl.DataFrame, key: str, of: str) -> pl.DataFrame:
    """The value of column ``of`` that has most of each key's time."""
    return (
        table.group_by(key, of)
        .agg(pl.col("duration_ns").sum())
        .sort("duration_ns", pl.col(of).cast(pl.String), descending=[True, False])
        .unique(key, keep="first", maintain_order=True)
        .drop("duration_ns")
    )


@remembered
def kernel_ops(profile: Profile) -> pl.DataFrame:
    """Which ops launched each kernel: (name, op_name, launches, device_time_ns), most time first in each kernel."""
    return (
        placed(profile)
        .group_by("name", "op_name")
        .agg(pl.len().cast(pl.Int64).alias("launches"), pl.col("duration_ns").sum().alias("device_time_ns"))
        .sort("device_time_ns", "launches", pl.col("op_name").cast(pl.String), descending=[True, True, False])
    )


@remembered
def kernel_rows(profile: Profile) -> pl.DataFrame:
    """One row a kernel name, copies and memsets included, as the report shows them: ``kernels`` with
    ``short_name``, and ``ops`` (a list of structs name, launches, device_time_ns)."""
    ops = (
        kernel_ops(profile)
        .group_by("name", maintain_order=True)
        .agg(pl.struct(pl.col("op_name").alias("name"), "launches", "device_time_ns").alias("ops"))
    )
    rows = kernels(profile).rename({"kernel": "name"})
    shorts = [short_name(name) for name in rows["name"].cast(pl.String)]
    return rows.join(ops, on="name", how="left", maintain_order="left").with_columns(
        pl.Series("short_name", shorts, pl.String)
    )
