"""How long ranks waited for each other inside collectives."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.profile import Profile
from kinetoscope.analysis.waiting import waiting
from kinetoscope.findings.scene import Scene


def waits(scene: Scene) -> pl.DataFrame:
    """The recorded steps' collectives that waited exposed, with ``saved_ns``: for how long."""
    waited = waiting(scene.profile).filter(
        (pl.col("rank") == scene.rank) & (pl.col("exposed_waiting_ns") > 0)
    )
    return scene.work.join(
        waited.select("id", pl.col("exposed_waiting_ns").alias("saved_ns")), on="id", maintain_order="left"
    )


def culprit(profile: Profile) -> tuple[int | None, float]:
    """The rank that was waited for longest and its share of all waiting; (None, 0) where ranks cannot be compared."""
    waited = (
        waiting(profile)
        .filter((pl.col("basis") == "ranks") & (pl.col("exposed_waiting_ns") > 0))
        .group_by("last_rank")
        .agg(pl.col("exposed_waiting_ns").sum())
        .sort("exposed_waiting_ns", descending=True)
    )
    if waited.is_empty():
        return None, 0.0
    return int(waited["last_rank"][0]), int(waited["exposed_waiting_ns"][0]) / int(waited["exposed_waiting_ns"].sum())
