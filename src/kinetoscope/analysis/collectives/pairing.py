"""The same collective on every rank: paired by its process group, what it is like, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import polars as pl

from kinetoscope.analysis.collectives.clocks import Clock, clocks, refined
from kinetoscope.analysis.collectives.recorded import ARRIVAL, BATCHED, OWN, PAIR, TOGETHER
from kinetoscope.trace.schema import whole

# The ranks of one collective end together (within 7 µs on eight ranks of one host); further apart than this,
# or than half the time to a rank's next one, they are not the same.
ENDS_TOGETHER_NS = 1_000_000
UNKNOWN: Mapping[int, str] = MappingProxyType({})
LEAST_NS = 10_000  # below which ends of the same collective may lie apart however near the next one is


@dataclass(frozen=True)
class Paired:
    """Args:
    table: ``collectives`` of all ranks, with ``clock_ns`` (how far its rank's clock is ahead then; null where
        that is not known), ``instance`` (one number for the same collective on every rank; null where none
        is known), ``present`` (ranks in the collective) and ``complete`` (all of the group are).
    clocks: of each rank, on the time since the first collective of all began.
    residuals: of each rank, ns; None where too few collectives tell.
    """

    table: pl.DataFrame
    clocks: Mapping[int, Clock]
    residuals: Mapping[int, float | None]


def paired(table: pl.DataFrame, world: int | None, hosts: Mapping[int, str] = UNKNOWN) -> Paired:
    """Pair the collectives of all ranks.

    Args:
        table: ``collectives`` of all ranks.
        world: how many ranks the run had, where that is known; else those that are here are all.
        hosts: where each rank ran; empty where that is not known.
    """
    if table["rank"].n_unique() < 2:
        return _alone(table)
    # From the first of all on, so that means of times are exact to the nanosecond.
    began = table["start_ns"].min() or 0
    times = pl.col("start_ns", "end_ns")
    like = pl.col("signature").str.replace_all(OWN, pl.col("rank").cast(pl.String), literal=True)
    like = like.str.split(BATCHED).list.sort().list.join(BATCHED)  # both ends in one order
    table = table.with_row_index("row").with_columns(times - began, like)
    found = clocks(table, hosts)
    table = _met(table, found)
    pairs: dict[int, list[tuple[int, int]]] = {}
    met = table.filter(pl.col("instance").is_not_null() & (pl.col("semantics") == TOGETHER))
    common = (pl.col("end_ns") - pl.col("clock_ns")).median().over("instance")
    for rank, at, ahead in met.select("rank", "end_ns", ahead=pl.col("end_ns") - common).iter_rows():
        pairs.setdefault(rank, []).append((at, round(ahead)))
    fits = refined(pairs, hosts)
    found |= {rank: clock for rank, (clock, _) in fits.items()}
    table = _met(table.drop("clock_ns", "instance"), found)
    here = table["rank"].n_unique()
    expected = (
        pl.when(pl.col("semantics") == PAIR)
        .then(pl.lit(2, pl.Int64))
        .when("recorded")
        .then("size")
        .otherwise(pl.lit(world or here))
    )
    present = pl.col("rank").n_unique().over("instance")
    known = pl.col("instance").is_not_null()
    return Paired(
        table.with_columns(
            pl.when(known).then(present).alias("present"),
            pl.when(known).then(present >= expected.fill_null(here)).alias("complete"),
        )
        .with_columns(times + began)
        .drop("row"),
        found,
        {rank: fits[rank][1] if rank in fits else None for rank in found},
    )


def _alone(table: pl.DataFrame) -> Paired:
    """Nothing meets; the only clock is the reference."""
    found = {rank: Clock() for rank in table["rank"].unique()}
    unknown = pl.lit(None, pl.UInt32)
    return Paired(
        table.with_columns(
            pl.lit(0, pl.Int64).alias("clock_ns"),
            unknown.alias("instance"),
            unknown.alias("present"),
            pl.lit(None, pl.Boolean).alias("complete"),
        ),
        found,
        dict.fromkeys(found),
    )


def _met(table: pl.DataFrame, found: Mapping[int, Clock]) -> pl.DataFrame:
    """With ``clock_ns`` and ``instance``."""
    fits = pl.DataFrame(
        [(rank, *clock) for rank, clock in found.items()],
        schema={"rank": pl.Int32, "ahead": pl.Float64, "drift": pl.Float64, "at": pl.Int64},
        orient="row",
    )
    ahead = pl.col("ahead") + (pl.col("end_ns") - pl.col("at")) * pl.col("drift")
    table = table.join(fits, on="rank", how="left", maintain_order="left").with_columns(
        ahead.round().cast(pl.Int64).alias("clock_ns")
    )
    table = table.drop("ahead", "drift", "at")
    by_end = _by_end(
        table.filter(pl.col("semantics").is_in([TOGETHER, ARRIVAL]) & pl.col("clock_ns").is_not_null())
    )
    rest = table.join(by_end, on="row", how="anti").filter(~pl.col("semantics").is_in([TOGETHER, ARRIVAL]))
    by_order = _by_order(rest, table, by_end)
    shift = whole(by_end["instance"].max()) + 1
    met = pl.concat([by_end, by_order.with_columns(pl.col("instance") + shift)])
    return table.join(met, on="row", how="left", maintain_order="left")


def _by_end(table: pl.DataFrame) -> pl.DataFrame:
    """``row`` and ``instance``: what is alike in a group and ends together, once a rank, on two or more."""
    alike = ["group", "signature", "sequence"]
    end = (pl.col("end_ns") - pl.col("clock_ns")).alias("end")
    table = table.select("row", "rank", *alike, "semantics", end).sort(*alike, "rank", "end")
    # Not one expression: a window inside a window yields 0 on Polars 2.1.
    table = table.with_columns(pl.col("end").diff().over(*alike, "rank").alias("apart"))
    within = pl.min_horizontal(pl.col("apart").min().over(alike) // 2, pl.lit(ENDS_TOGETHER_NS))
    table = table.with_columns(within.clip(LEAST_NS).alias("within")).sort(*alike, "end")
    follows = (pl.col("end").diff() <= pl.col("within")).fill_null(False)
    same = pl.all_horizontal(*(pl.col(key) == pl.col(key).shift(1) for key in alike)).fill_null(False)
    table = table.with_columns((~(follows & same)).cum_sum().cast(pl.UInt32).alias("instance"))
    ranks = pl.col("rank").n_unique().over("instance")
    return table.filter((ranks == pl.len().over("instance")) & (ranks > 1)).select("row", "instance")


def _by_order(table: pl.DataFrame, everything: pl.DataFrame, by_end: pl.DataFrame) -> pl.DataFrame:
    """``row`` and ``instance`` of those whose ends tell nothing: by their order since the last collective of
    the group that ended together, or in the step; where a rank has another number of them, none can be
    told."""
    anchors = everything.join(by_end, on="row").select("rank", "group", "start_ns", anchor="instance")
    table = table.filter(~pl.col("before")).sort("start_ns")
    table = table.join_asof(
        anchors.sort("start_ns"), on="start_ns", by=["rank", "group"], check_sortedness=False
    )
    place = ["group", "signature", "sequence", "step", "anchor"]
    table = table.with_columns(
        pl.col("row").cum_count().over("rank", *place).alias("nth"),
        pl.len().over("rank", *place).alias("count"),
    )
    agreed = (pl.col("count").n_unique().over(place) == 1) & (pl.col("rank").n_unique().over(place) > 1)
    met = pl.struct(*place, "nth").rank("dense").cast(pl.UInt32)
    return table.filter(agreed).select("row", met.alias("instance"))
