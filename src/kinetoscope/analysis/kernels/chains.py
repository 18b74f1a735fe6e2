"""Runs of eager elementwise kernels."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import matching

COLUMNS = [
    "id", "event", "kind", "name", "device", "stream", "start_ns", "duration_ns", "op", "op_name", "step"
]  # fmt: skip
FUSIBLE = r"^(elementwise|copy|random)$"
# Compilers load by an index in the kernel that computes with it.
GATHERS = (
    r"^aten::(index|index_select|gather|embedding|take_along_dim|_?upsample_[a-z_]+[123]d"
    r"|nll_loss(2d)?_(for|back)ward)$"
)
SCATTERS = r"^aten::_?upsample_\w+_backward$"  # many add to one place: no kernel that reads it can do that
REDUCTION, SOFTMAX = "^reduction$", r"^aten::_(log_)?softmax(_backward_data)?$"
LENGTH = 3  # of two, a compiler saves less than the noise, …
READS = 0.2  # … unless one is a softmax or a reduction, and the second takes this part of the first: it may
# have read it
AGAIN = 0.5  # of a reduction's time: a kernel after it that takes less does not read the same
# Shorter kernels are not limited by memory: fusing them saves launches, another rule's matter.
MEAN_NS = 5_000


def elementwise_chains(work: pl.DataFrame, eager: pl.DataFrame) -> pl.DataFrame:
    """The kernels of chains, with ``chain`` (its number) and ``saved_ns``: what fusing would save of each,
    such that the longest kernel of a chain stays, and the others go. ``work``: all device work, with
    ``op_name``; ``eager``: the rows of it that may be in a chain.

    A chain is broken by any other work of its stream but filling, by a new step, and where its ops begin
    again (three calls of ``a * b + c`` are three chains). Of what is gathered on its way half of the time
    remains. A reduction ends it; what reductions alone read is not written any more, since a backward
    computes it anew. A softmax does not end it: half of its time remains, and of the last kernel the writing.
    """
    own = work["id"].is_in(eager["id"].implode()) & (work["kind"] == "kernel")
    own &= matching(work, "op_name", "^aten::")
    gathers = own & matching(work, "op_name", GATHERS)
    softmax = own & matching(work, "op_name", SOFTMAX)
    elementwise = matching(work, "category", FUSIBLE) & ~matching(work, "op_name", SCATTERS)
    fusible = own & elementwise | gathers | softmax
    if not fusible.any():
        return work.select(COLUMNS).clear().with_columns(chain=pl.lit(0), saved_ns=pl.lit(0.0))
    key = ["device", "stream"]
    duration = pl.col("duration_ns")
    ordered = (
        work.select(
            *COLUMNS,
            fusible=fusible,
            gathers=gathers,
            softmax=softmax,
            reduces=own & matching(work, "category", REDUCTION),
        )
        # Filling reads nothing: there is nothing to fuse it with.
        .filter((pl.col("kind") != "memset") & ~matching(work, "name", "FillFunctor"))
        .sort(*key, "start_ns")
    )
    follows = pl.all_horizontal(pl.col(c).eq_missing(pl.col(c).shift(1)) for c in (*key, "step"))
    reads = duration >= READS * duration.shift(1)
    others = (pl.col("softmax") | pl.col("softmax").shift(1)) & ~pl.col("gathers") & ~reads
    ends = pl.col("reduces") & follows & pl.col("fusible").shift(1) & reads
    read_again = (duration.shift(-1) >= AGAIN * duration) & ~pl.col("reduces").shift(-1)
    ordered = ordered.with_columns(ends=ends.fill_null(False))
    ordered = ordered.with_columns(
        chain=pl.any_horizontal(
            pl.col("fusible").ne_missing(pl.col("fusible").shift(1)) & ~pl.col("ends"),
            ~follows,
            others,
            pl.col("ends").shift(1, fill_value=False),
        ).cum_sum(),
        unwritten=pl.col("ends") & ~read_again.fill_null(False),
    ).filter(pl.col("fusible") | pl.col("ends"))
    least = LENGTH - pl.any_horizontal("ends", "softmax").any()
    long = ((~pl.col("gathers")).sum() >= least) & (duration.mean() >= MEAN_NS)
    ordered = _split_repeats(ordered.filter(long.over("chain")))
    through, half, is_last = pl.col("softmax").any(), duration / 2, pl.int_range(pl.len()) == pl.len() - 1
    writes = is_last & through & ~pl.col("unwritten")
    stays = pl.when("gathers").then(half).otherwise(0)
    stays += pl.when("softmax").then(half).otherwise(0) + pl.when(writes).then(half).otherwise(0)
    computing = pl.when(pl.any_horizontal("gathers", "softmax")).then(0).otherwise(duration)
    reading = duration.last()
    passed = 2 * (pl.min_horizontal(duration, reading).sum() - reading)
    left = pl.max_horizontal(reading, duration.sum() - passed) - stays.sum()
    left = pl.when(pl.col("unwritten").any()).then(left.clip(0, computing.max())).otherwise(computing.max())
    left = pl.when(through).then((computing.max() - stays.sum()).clip(0)).otherwise(left)
    longest = pl.int_range(pl.len()) == computing.arg_max()
    saved = duration - stays - pl.when(longest).then(left).otherwise(0)
    return (
        ordered.filter(long.over("chain"))
        .with_columns(saved_ns=saved.cast(pl.Float64).over("chain"))
        .select(*COLUMNS, "chain", "saved_ns")
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
