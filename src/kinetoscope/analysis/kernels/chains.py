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
REDUCTION = "^reduction$"
LENGTH = 3  # of two, a compiler saves less than the noise, …
READS = 0.2  # … unless the second is a reduction that takes this part of the first, and may have read it
AGAIN = 0.5  # of a reduction's time: a kernel after it that takes less does not read the same
# Shorter kernels are not limited by memory: fusing them saves launches, another rule's matter.
MEAN_NS = 5_000


def elementwise_chains(work: pl.DataFrame, eager: pl.DataFrame) -> pl.DataFrame:
    """The kernels of chains, with ``chain`` (its number) and ``saved_ns``: what fusing would save of each,
    such that the longest kernel of a chain stays, and the others go.

    A chain is broken by any other work of its stream, by a new step, and where its ops begin again (three
    calls of ``a * b + c`` are three chains). A reduction ends it. What only the reduction reads is not
    written any more: where the next kernel is too short to read it as well, the kernel before the reduction
    takes less by the time that reading takes. A backward that needs it computes it anew, as compilers do
    with what is elementwise.

    Args:
        work: all device work, with ``op_name``.
        eager: the rows of it that may be in a chain.
    """
    launched = (eager["kind"] == "kernel") & matching(eager, "op_name", "^aten::")
    fusible = eager["id"].filter(
        launched
        & matching(eager, "category", FUSIBLE)
        & ~matching(eager, "name", "FillFunctor")  # reads nothing: nothing to fuse it with
    )
    reduces = eager["id"].filter(launched & matching(eager, "category", REDUCTION))
    if fusible.is_empty():
        return work.select(COLUMNS).clear().with_columns(chain=pl.lit(0), saved_ns=pl.lit(0.0))
    key = ["device", "stream"]
    duration = pl.col("duration_ns")
    ordered = (
        work.select(COLUMNS)
        .filter(pl.col("kind") != "memset")
        .sort(*key, "start_ns")
        .with_columns(fusible=pl.col("id").is_in(fusible.implode()))
    )
    follows = pl.all_horizontal(pl.col(c).eq_missing(pl.col(c).shift(1)) for c in (*key, "step"))
    ends = pl.col("id").is_in(reduces.implode()) & follows & pl.col("fusible").shift(1)
    ends &= duration >= READS * duration.shift(1)
    ordered = ordered.with_columns(ends=ends.fill_null(False))
    alone = pl.col("ends").shift(-1) & (duration.shift(-2) < AGAIN * duration.shift(-1)).fill_null(True)
    ordered = ordered.with_columns(
        chain=pl.any_horizontal(
            pl.col("fusible").ne_missing(pl.col("fusible").shift(1)) & ~pl.col("ends"),
            ~follows,
            pl.col("ends").shift(1, fill_value=False),
        ).cum_sum(),
        needs=pl.when(alone).then((duration - duration.shift(-1)).clip(0)).otherwise(duration),
    ).filter(pl.col("fusible") | pl.col("ends"))
    long = (pl.len() >= LENGTH - pl.col("ends").any()) & (duration.mean() >= MEAN_NS)
    ordered = _split_repeats(ordered.filter(long.over("chain")))
    return (
        ordered.filter(long.over("chain"))
        .with_columns(
            saved_ns=pl.when(pl.int_range(pl.len()) == duration.arg_max())
            .then(duration - pl.col("needs").max())
            .otherwise(duration)
            .cast(pl.Float64)
            .over("chain")
        )
        .drop("needs", "ends", "fusible")
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
