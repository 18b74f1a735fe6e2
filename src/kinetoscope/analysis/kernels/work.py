"""The one table of device work that every other analysis starts from."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.kernels import taxonomy
from kinetoscope.analysis.kernels.categories import categories
from kinetoscope.analysis.memo import remembered
from kinetoscope.sources.run import Run
from kinetoscope.trace.model import Trace

# A device is distinguished from others by both: every rank may call its own device 0.
DEVICE = ["rank", "device"]


@remembered
def work(trace: Trace) -> pl.DataFrame:
    """``device_events`` of one trace, with

    - ``rank`` (Int32), ``end_ns`` (Int64, exclusive), ``category`` (Categorical, see ``taxonomy``),
    - ``part`` (Enum): what the time counts as when a device's time is split — ``communication``
      (collectives), ``copy`` (the driver's copies and memsets) or ``compute`` (every other kernel, those that
      copy included: they occupy the multiprocessors).
    """
    kind, category = pl.col("kind"), pl.col("category")
    return trace.device_events.with_columns(
        pl.lit(trace.rank, pl.Int32).alias("rank"),
        (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns"),
        categories(trace).alias("category"),
    ).with_columns(
        pl.when(kind != "kernel")
        .then(pl.lit("copy"))
        .when(category.cast(pl.String) == taxonomy.COMMUNICATION)
        .then(pl.lit("communication"))
        .otherwise(pl.lit("compute"))
        .cast(PART)
        .alias("part")
    )


PART = pl.Enum(["compute", "copy", "communication"])


@remembered
def work_of_all(run: Run) -> pl.DataFrame:
    """``work`` of every rank, one below the other."""
    return pl.concat([work(trace) for trace in run.traces])
