"""Runs of eager elementwise kernels."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.findings.scene import Scene

COLUMNS = [
    "id",
    "event",
    "kind",
    "name",
    "device",
    "stream",
    "start_ns",
    "duration_ns",
    "op",
    "op_name",
    "step",
]
FUSIBLE = ("elementwise", "copy", "random")
LENGTH = 3  # of two, a compiler saves less than the noise
MEAN_NS = (
    5_000  # shorter kernels are not limited by memory: fusing them saves launches, another rule's matter
)


def elementwise_chains(scene: Scene, work: pl.DataFrame) -> pl.DataFrame:
    """The kernels of chains, with ``chain`` (its number) and ``saved_ns``: what fusing would spare of each, such that
    a chain shrinks to the time of its longest kernel.

    A chain is broken by any other work of its stream, also by work that is not in ``work``, by a new step, and where
    its ops begin again (three calls of ``a * b + c`` are three chains).
    """
    fusible = work["id"].filter(
        matching(work, "category", f"^({'|'.join(FUSIBLE)})$")
        & (work["kind"] == "kernel")
        & ~matching(work, "name", "FillFunctor")  # reads nothing: nothing to fuse it with
        & matching(work, "op_name", "^aten::")
    )
    if len(fusible) < LENGTH:
        return (
            work.select(COLUMNS).clear().with_columns(pl.lit(0).alias("chain"), pl.lit(0.0).alias("saved_ns"))
        )
    key = ["device", "stream"]
    ordered = (
        scene.work.select(COLUMNS)
        .filter(pl.col("kind") != "memset")
        .sort(*key, "start_ns")
        .with_columns(pl.col("id").is_in(fusible.implode()).alias("fusible"))
    )
    ordered = ordered.with_columns(
        pl.any_horizontal(
            pl.col(c).ne_missing(pl.col(c).shift(1)) for c in ("fusible", "device", "stream", "step")
        )
        .cum_sum()
        .alias("chain")
    ).filter("fusible")
    long = (pl.len() >= LENGTH) & (pl.col("duration_ns").mean() >= MEAN_NS)
    ordered = _split_repeats(ordered.filter(long.over("chain")))
    duration = pl.col("duration_ns")
    return (
        ordered.with_columns(
            pl.len().over("chain").alias("length"),
            duration.mean().over("chain").alias("mean"),
            (1 - duration.max() / duration.sum()).over("chain").alias("spared"),
        )
        .filter((pl.col("length") >= LENGTH) & (pl.col("mean") >= MEAN_NS))
        .with_columns((duration * pl.col("spared")).alias("saved_ns"))
        .drop("length", "mean", "spared", "fusible")
    )


def _split_repeats(chains: pl.DataFrame) -> pl.DataFrame:
    """Chains whose names are one sequence several times over, cut into its repetitions."""
    sequences = chains.group_by("chain").agg(pl.col("name").cast(pl.String).alias("names"))
    periods = {names: _period(names) for names in map(tuple, sequences["names"].unique())}
    sequences = sequences.select(
        "chain", pl.Series("period", [periods[tuple(names)] for names in sequences["names"]], pl.UInt32)
    )
    place = pl.int_range(pl.len(), dtype=pl.UInt32).over("chain")
    return (
        chains.join(sequences, on="chain", maintain_order="left")
        .with_columns(
            pl.struct("chain", (place // pl.col("period")).alias("part")).rank("dense").alias("chain")
        )
        .drop("period")
    )


def _period(names: tuple[str, ...]) -> int:
    """Length of the shortest sequence that ``names`` repeats; its own length where it repeats none."""
    for period in range(2, len(names) // 2 + 1):
        if len(names) % period == 0 and names == names[:period] * (len(names) // period):
            return period
    return len(names)
