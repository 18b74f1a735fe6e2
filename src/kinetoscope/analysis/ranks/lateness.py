"""Lateness: by how much longer each rank took for its own work than the other ranks of the same collective.
Attribution, the test against chance and the replays share these columns.

Ranks are compared over *segments*. A segment ends with a collective during which no rank computed anything,
so that all ranks stand at the same place of their program once it has ended. Where collectives run while
ranks compute, as in data parallelism, a rank that waits for a late one goes on with its own work, and what it
did since its last collective tells nothing; what all of them did since the segment began does. Where nothing
overlaps, every collective ends a segment.

A device that is idle longer than its peers' need not mean that its host was slower: a host that is late once
is so at every launch after, until both wait for their devices. What a rank took longer for its host's sake is
therefore no more than its host took longer; what is left had been lost before.

The two ends of a pipeline's send do not do the same, and the longer segment is no rank's fault. There a stage
takes too long by the share by which its whole step is longer than its peers' (the lower median); all other
waiting is the pipeline's bubbles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from kinetoscope.analysis.collectives.recorded import PAIR
from kinetoscope.analysis.collectives.waiting import by_start

COMPUTE, SYNC, COMPILE, ALLOCATOR, LOADER, GARBAGE, HOST = (
    "compute", "synchronization", "recompilation", "allocator", "data loader", "garbage collection", "host",
)  # fmt: skip
# Why a rank was late: what its device did, or was idle for, that those of its peers did not (see
# ``parts.APPROACH``).
CAUSES = {
    COMPUTE: ["busy"],
    HOST: ["launch-bound", "host-op", "between-kernels", "unexplained"],
    LOADER: ["data-loading"],
    GARBAGE: ["garbage-collection"],
    SYNC: ["synchronization"],
    COMPILE: ["compilation"],
    ALLOCATOR: ["allocator"],
}
# What a rank did on its own before each collective, by cause (see ``parts.RankPart``).
OWN_WORK = {
    "own_ns": pl.Int64, "host_ns": pl.Int64, **dict.fromkeys(CAUSES, pl.Int64),
    "overlapping_ns": pl.Int64, "blocked_ns": pl.Int64,
}  # fmt: skip
# What ``with_lateness`` adds for ``attribution`` alone.
LATENESS = ["segment", "is_end", "segment_ns", "longer_ns", *(f"{cause}_longer" for cause in CAUSES)]
ON_DEVICE = (COMPUTE, SYNC)  # may take longer while the host took no longer
NEGLIGIBLE_NS = 20_000  # launches and kernels of equal ranks differ by as much
APART_NS = 10_000  # what follows within this waited for what was before it
RANK = ["rank", "device"]

Usual = Callable[[str], pl.Expr]


def lower_median(name: str) -> pl.Expr:
    return pl.col(name).quantile(0.5, "lower")


def mean(name: str) -> pl.Expr:
    return pl.col(name).mean()


def with_lateness(table: pl.DataFrame) -> pl.DataFrame:
    """The ``table`` of paired collectives (``parts.PARTED``) by rank, device and start, with ``segment`` (a
    number for each rank and device), ``is_end`` (of a segment), ``waits_for`` (``id`` of the collective of
    another stream as soon as which had ended it began), ``is_bound`` (it began as soon as that, or the one
    before it on its stream, had ended), ``segment_ns`` (what the rank did on its own in the segment),
    ``longer_ns``, ``<cause>_longer`` (by how much that, and what of it, was longer than usual; null: not
    known)."""
    names = ["own_ns", "host_ns", *CAUSES]
    # In every step: a rank whose host is late computes nothing during a collective during which the others
    # compute.
    sort = ["group", "signature", "nth"]
    is_level = (pl.col("overlapping_ns").max() <= NEGLIGIBLE_NS).over(sort)
    pause = pl.col("start_ns") - pl.col("end_ns").shift(1).over(*RANK, "stream")
    table = _with_other_streams(table)
    is_end = (
        pl.col("is_level") | ~pl.col("is_bound").any().over("instance") & pl.col("instance").is_not_null()
    )
    table = (
        by_start(table)
        .with_columns(nth=pl.int_range(pl.len()).over("rank", "step", "group", "signature"))
        .with_columns(
            is_level=is_level & pl.col("instance").is_not_null(),
            is_bound=(pause < APART_NS).fill_null(False) | pl.col("waits_for").is_not_null(),
        )
        .with_columns(is_end=is_end)
        .with_columns(segment=pl.col("is_end").shift(1, fill_value=False).cum_sum().over(RANK))
    )
    # The sum of what is known, null only where nothing is.
    table = table.with_columns(
        pl.when(pl.col(name).is_not_null().any())
        .then(pl.col(name).sum())
        .over(*RANK, "segment")
        .alias(_all(name))
        for name in names
    )
    table = _with_stages(table, names)
    is_pair = pl.col("semantics") == PAIR
    table = table.with_columns(
        pl.when(is_pair)
        .then(pl.col(_all(name)) * pl.col(f"{name} too long"))
        .otherwise(pl.col(_all(name)) - lower_median(_all(name)).over("instance"))
        .alias(_longer(name))
        for name in names
    )
    slower = pl.col(_longer("host_ns")).clip(0)
    on_device = pl.sum_horizontal(pl.col(_longer(name)).clip(0) for name in ON_DEVICE)
    bounded = [
        pl.min_horizontal(_longer(name), slower).alias(_longer(name))
        for name in CAUSES
        if name not in ON_DEVICE
    ]
    is_unknown = pl.any_horizontal(
        pl.col("own_ns").is_null().any().over("instance"), pl.col("instance").is_null()
    )
    longer = pl.when(slower.is_null()).then(_longer("own_ns")).otherwise(
        pl.min_horizontal(_longer("own_ns"), slower + on_device)
    )  # fmt: skip
    return (
        table.with_columns(longer.alias("longer_ns"), *bounded)
        .with_columns(
            longer_ns=pl.when(is_unknown).then(None)
            .when(is_pair).then(pl.sum_horizontal(_longer(cause) for cause in CAUSES))
            .otherwise("longer_ns"),
            segment_ns=pl.col(_all("own_ns")),
        )
        .drop("nth", "is_level", _longer("own_ns"), _longer("host_ns"))
        .drop(column for name in names for column in (_all(name), f"{name} too long"))
    )  # fmt: skip


def _with_other_streams(table: pl.DataFrame) -> pl.DataFrame:
    """Add ``waits_for``, as where gradients that were scattered in a group are reduced over its replicas."""
    ended = table.select(*RANK, waits_for="id", other="stream", until="end_ns").sort("until")
    asked = table.select(*RANK, "start_ns", "stream", "launched_ns").with_row_index("row").sort("start_ns")
    known = asked.join_asof(ended, left_on="start_ns", right_on="until", by=RANK, check_sortedness=False)
    is_it = (
        (pl.col("other") != pl.col("stream"))
        & (pl.col("start_ns") - pl.col("until") < APART_NS)
        & (pl.col("launched_ns") < pl.col("until"))
    )
    return table.with_columns(known.sort("row").select(waits_for=pl.when(is_it).then("waits_for")))


def _all(name: str) -> str:
    return f"{name}_all"


def _longer(name: str) -> str:
    return f"{name}_longer"


def _with_stages(table: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Add by which share of each column a rank's step is longer than those of the ranks that it sends to and
    receives from (``… too long``; null where there are none)."""
    steps = table.group_by("rank", "step").agg(pl.col(name).clip(0).sum() for name in names)
    peers = table.filter(pl.col("semantics") == PAIR).select("group", "rank", "step").unique()
    longer = peers.join(steps, on=["rank", "step"]).with_columns(
        (1 - lower_median(name).over("group", "step") / pl.col(name))
        .clip(0)
        .fill_nan(0)
        .alias(f"{name} too long")
        for name in names
    )
    key = ["group", "rank", "step"]
    return table.with_columns(
        table.select(key).join(longer.drop(names), on=key, how="left", maintain_order="left").drop(key)
    )
