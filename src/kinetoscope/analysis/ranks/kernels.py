"""Why a rank computed longer than its peers: one kernel, all of them, or more of them."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.aggregates import whole

MORE_WORK = "more work"
CLOCKS = "clocks"
SLOW_KERNEL = "slow kernel"
EVEN_COMPUTE = "compute"  # its kernels took no longer, in sum

# All kernels are slower, if as much of their time is slower by half of what they are slower on average.
ALL = 0.8
NAMES = 3  # of so many kernels at the least all must be slower before it is said of the device


def kernel_cause(kernels: pl.DataFrame, rank: int, step: str) -> tuple[str, str]:
    """The cause, and the kernel or factor that shows it.

    Args:
        kernels: ``rank``, ``step``, ``name``, ``launches``, ``duration_ns`` of all ranks.
    """
    inside = kernels.filter(pl.col("step") == step)
    peers = inside.filter(pl.col("rank") != rank)
    count = peers["rank"].n_unique()
    # A name that fewer than half of the peers have is not of their usual work.
    usual = (
        peers.group_by("name")
        .agg(pl.col("duration_ns", "launches").median(), pl.len().alias("have"))
        .filter(pl.col("have") * 2 > count)
        .drop("have")
    )
    both = (
        inside.filter(pl.col("rank") == rank)
        .select("name", own_ns="duration_ns", own_launches="launches")
        .join(usual, on="name", how="left")
        .with_columns(pl.col("duration_ns", "launches").fill_null(0.0))
        .with_columns((pl.col("own_ns") - pl.col("duration_ns")).alias("excess_ns"))
    )
    excess, base, launches = both.select(
        pl.sum("excess_ns"), pl.sum("duration_ns"), pl.col("own_launches").sum() - pl.col("launches").sum()
    ).row(0)
    if excess <= 0:
        return EVEN_COMPUTE, ""
    each = pl.col("own_ns") / pl.col("own_launches")
    more = ((pl.col("own_launches") - pl.col("launches")) * each).sum()
    if float(both.select(more).item()) >= excess / 2:
        return MORE_WORK, f"{launches:.0f} kernels more"
    shared = both.filter(pl.col("duration_ns") > 0.01 * base)
    slower = shared.filter(pl.col("own_ns") >= pl.col("duration_ns") * (1 + excess / base / 2))
    part = whole(slower["duration_ns"].sum()) / max(1, whole(shared["duration_ns"].sum()))
    if len(shared) >= NAMES and part >= ALL:
        return CLOCKS, f"all kernels take {1 + excess / base:.2f} times as long"
    return SLOW_KERNEL, str(both.sort("excess_ns", descending=True)["name"][0])
