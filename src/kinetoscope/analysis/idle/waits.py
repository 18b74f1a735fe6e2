"""How long ranks waited for each other inside collectives."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.idle.waiting import waiting
from kinetoscope.analysis.run import Run
from kinetoscope.analysis.time import intervals


def waits(run: Run, rank: int, work: pl.DataFrame) -> pl.DataFrame:
    """The collectives among a rank's ``work`` that waited for another rank, with ``waiting_ns`` and
    ``saved_ns``: how long of that the device did nothing else. (Which part of one collective's waiting was
    hidden is not known: the mean of all is taken.)"""
    waited = waiting(run).filter((pl.col("rank") == rank) & (pl.col("waiting_ns") > 0))
    if waited.is_empty():
        return work.clear().with_columns(pl.lit(0).alias("waiting_ns"), pl.lit(0.0).alias("saved_ns"))
    collectives = work.join(waited.select("id", "waiting_ns"), on="id", maintain_order="left")
    spans = collectives.with_columns((pl.col("start_ns") + pl.col("waiting_ns")).alias("end_ns"))
    other = work.filter(pl.col("part") != "communication")
    exposed = intervals.total(intervals.subtract(spans, other, ["device"]))
    share = exposed / max(1, int(collectives["waiting_ns"].sum()))
    return collectives.with_columns((pl.col("waiting_ns") * min(share, 1.0)).alias("saved_ns"))


def culprit(run: Run) -> tuple[int | None, float]:
    """The rank that was waited for longest, and its share of all waiting; (None, 0) without other ranks."""
    waited = (
        waiting(run)
        .filter((pl.col("basis") == "ranks") & (pl.col("waiting_ns") > 0))
        .group_by("last_rank")
        .agg(pl.col("waiting_ns").sum())
        .sort("waiting_ns", descending=True)
    )
    if waited.is_empty():
        return None, 0.0
    return int(waited["last_rank"][0]), int(waited["waiting_ns"][0]) / int(waited["waiting_ns"].sum())
