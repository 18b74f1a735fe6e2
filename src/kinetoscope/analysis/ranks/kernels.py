"""Why a rank computed longer than its peers: one kernel, all of them, more of them, or more data."""

from __future__ import annotations

import polars as pl

from kinetoscope.trace.schema import whole

MORE_WORK = "more work"
CLOCKS = "clocks"
SLOW_KERNEL = "slow kernel"
MORE_DATA = "more data"  # that all-to-alls gave it, as to a rank whose experts are in demand
EVEN_COMPUTE = "compute"  # its kernels took no longer, in sum

# All kernels are slower, if as much of their time is slower by half of what they are slower on average.
ALL = 0.8
AS_MUCH = 1 / 3  # of what a kernel takes longer, it may have more data for: only the larger side is counted
NAMES = 3  # of so many kernels at the least all must be slower before it is said of the device


def data_ratio(collectives: pl.DataFrame, rank: int, step: str) -> float:
    """How many times its peers' data (the median) a rank handled in all-to-alls; 1 without any."""
    each = (
        collectives.filter(pl.col("kind") == "all-to-all", pl.col("step") == step)
        .group_by("rank")
        .agg(pl.col("bytes").sum())
    )
    own, peers = (
        whole(each.filter(is_own)["bytes"].median())
        for is_own in (pl.col("rank") == rank, pl.col("rank") != rank)
    )
    return own / peers if own and peers else 1.0


def kernel_cause(kernels: pl.DataFrame, rank: int, step: str, data: float = 1.0) -> tuple[str, str]:
    """The cause, and the kernel or factor that shows it.

    Args:
        kernels: ``rank``, ``step``, ``name``, ``launches``, ``duration_ns`` of all ranks.
        data: see ``data_ratio``.
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
    most = both.sort("excess_ns", descending=True).select("name", "own_ns", "duration_ns")
    name, own, usual_ns = most.row(0)
    # Its kernels take as much longer as they have more to do.
    if data - 1 >= (own / max(1, usual_ns) - 1) * AS_MUCH:
        return MORE_DATA, f"{data:.2f} times that of its peers in all-to-alls"
    return SLOW_KERNEL, str(name)
