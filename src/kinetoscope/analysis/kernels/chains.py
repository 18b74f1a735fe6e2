"""Runs of eager elementwise kernels."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import matching

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
FUSIBLE = r"^(elementwise|copy|random)$"
LENGTH = 3  # of two, a compiler saves less than the noise
# Shorter kernels are not limited by memory: fusing them saves launches, another rule's matter.
MEAN_NS = 5_000


def elementwise_chains(work: pl.DataFrame, eager: pl.DataFrame) -> pl.DataFrame:
    """The kernels of chains, with ``chain`` (its number) and ``saved_ns``: what fusing would save of each,
    such that a chain shrinks to the time of its longest kernel.

    A chain is broken by any other work of its stream, by a new step, and where its ops begin again (three
    calls of ``a * b + c`` are three chains).

    Args:
        work: all device work, with ``op_name``.
        eager: the rows of it that may be in a chain.
    """
    fusible = eager["id"].filter(
        matching(eager, "category", FUSIBLE)
        & (eager["kind"] == "kernel")
        & ~matching(eager, "name", "FillFunctor")  # reads nothing: nothing to fuse it with
        & matching(eager, "op_name", "^aten::")
    )
    if len(fusible) < LENGTH:
        return work.select(COLUMNS).clear().with_columns(chain=pl.lit(0), saved_ns=pl.lit(0.0))
    key = ["device", "stream"]
    ordered = (
        work.select(COLUMNS)
        .filter(pl.col("kind") != "memset")
        .sort(*key, "start_ns")
        .with_columns(fusible=pl.col("id").is_in(fusible.implode()))
    )
    ordered = ordered.with_columns(
        chain=pl.any_horizontal(
            pl.col(c).ne_missing(pl.col(c).shift(1)) for c in ("fusible", "device", "stream", "step")
        ).cum_sum()
    ).filter("fusible")
    long = (pl.len() >= LENGTH) & (pl.col("duration_ns").mean() >= MEAN_NS)
    ordered = _split_repeats(ordered.filter(long.over("chain")))
    duration = pl.col("duration_ns")
    return (
        ordered.with_columns(
            length=pl.len().over("chain"),
            mean=duration.mean().over("chain"),
            saved=(1 - duration.max() / duration.sum()).over("chain"),
        )
        .filter((pl.col("length") >= LENGTH) & (pl.col("mean") >= MEAN_NS))
        .with_columns(saved_ns=duration * pl.col("saved"))
        .drop("length", "mean", "saved", "fusible")
    )


def _split_repeats(chains: pl.DataFrame) -> pl.DataFrame:
    """Chains whose names are one sequence several times over, cut into its repetitions."""
    sequences = chains.group_by("chain").agg(names=pl.col("name").cast(pl.String))
    periods = {names: period(names) for names in map(tuple, sequences["names"].unique())}
    sequences = sequences.select(
        "chain", pl.Series("period", [periods[tuple(names)] for names in sequences["names"]], pl.UInt32)
    )
    place = pl.int_range(pl.len(), dtype=pl.UInt32).over("chain")
    return (
        chains.join(sequences, on="chain", maintain_order="left")
        .with_columns(chain=pl.struct("chain", (place // pl.col("period")).alias("part")).rank("dense"))
        .drop("period")
    )


def period(names: tuple[str, ...]) -> int:
    """Length of the shortest sequence that ``names`` repeats; its own length where it repeats none."""
    for length in range(2, len(names) // 2 + 1):
        if len(names) % length == 0 and names == names[:length] * (len(names) // length):
            return length
    return len(names)
