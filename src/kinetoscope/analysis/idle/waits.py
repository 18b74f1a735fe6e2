"""How long ranks waited for each other inside collectives."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.idle.waiting import waiting
from kinetoscope.analysis.kernels.work import work
from kinetoscope.sources.run import Run
from kinetoscope.trace.model import Trace


def waits(run: Run, trace: Trace) -> pl.DataFrame:
    """The collectives of one rank that waited for another: rows of ``work`` with ``waiting_ns`` and
    ``saved_ns``, how long of that, inside the window, the device did nothing else."""
    waited = waiting(run).filter((pl.col("rank") == trace.rank) & (pl.col("waiting_ns") > 0))
    found = waited.select("id", "waiting_ns", saved_ns="exposed_waiting_ns")
    return work(trace).join(found, on="id", maintain_order="left")
