"""How long ranks waited for each other inside collectives."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.idle.waiting import waiting
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.run import Run
from kinetoscope.trace.model import Trace


def waits(run: Run, trace: Trace) -> pl.DataFrame:
    """The collectives of one rank that waited for another: rows of ``work`` with ``waiting_ns`` and
    ``saved_ns``, how long of that, inside the window, the device did nothing else."""
    waited = waiting(run).filter((pl.col("rank") == trace.rank) & (pl.col("waiting_ns") > 0))
    found = waited.select("id", "waiting_ns", saved_ns="exposed_waiting_ns")
    return work(trace).join(found, on="id", maintain_order="left")


def shared_out(run: Run, trace: Trace) -> pl.DataFrame:
    """``waits`` with the part of ``saved_ns`` that goes if all ranks do as much: then all come when, in the
    mean, they came; all of it, where the others' waiting is not known."""
    own = waits(run, trace)
    ranks = waiting(run).filter(pl.col("meeting").is_not_null())
    mean = pl.col("waiting_ns").mean().over("meeting").alias("mean_ns")
    means = ranks.with_columns(mean).filter(pl.col("rank") == trace.rank).select("id", "mean_ns")
    found = own.join(means, on="id", how="left", maintain_order="left")
    part = (pl.col("mean_ns") / pl.col("waiting_ns")).fill_null(1.0).clip(0, 1)
    return found.drop("mean_ns").with_columns(pl.col("saved_ns") * found.select(part).to_series())
