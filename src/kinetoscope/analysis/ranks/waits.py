"""How long each rank waited in each collective, and for whom."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kinetoscope.analysis.ranks.collectives import PAIR, SENDER, TOGETHER

# What a rank came later than the next one before it may be said to be last: its clock tells no more.
LEAST_NS = 1_000
APART_NS = 10_000  # by which ends that belong together lie apart (7 µs on eight ranks of one host)


def waits(table: pl.DataFrame, residuals: Mapping[int, float | None]) -> pl.DataFrame:
    """Adds to a paired table (see ``pairing``) what ranks waited.

    By law (see ``collectives``). Together: all end at one instant, so what a rank's collective took longer
    than the shortest is waiting, whatever its clock says. A pair's ends too, unless the sender leaves early,
    and then its end is the shorter. Arrival: until the last rank had come. Sender: until the sender had; it
    waits for nobody, and is of those that leave first the one that came last.

    Of a meeting that lacks ranks nobody can say who came last: one of those may have. What its collectives
    take longer than the shortest of their kind in their group is waiting all the same.

    Returns:
        ``transfer_ns``, ``waiting_ns``, ``last_rank`` (null where it is not known, or nobody waited longer
        than clocks and ends can tell), ``skew_ns`` (from the first rank's arrival to the last's) and
        ``basis``: ``ranks``, ``some ranks`` (the meeting lacks some), ``trace`` (compared with the shortest
        of its kind on the same rank), or null.
    """
    law, meeting = pl.col("law"), pl.col("meeting")
    arrival = pl.col("start_ns") - pl.col("clock_ns")
    left = pl.col("end_ns") - pl.col("clock_ns")
    table = table.with_columns(
        # By which of the two a rank's coming is told: the clock's readings, or how long it was there.
        pl.when(law.is_in([TOGETHER, PAIR])).then(-pl.col("duration_ns")).otherwise(arrival).alias("arrival"),
        pl.col("rank").replace_strict(
            {rank: found or 0.0 for rank, found in residuals.items()}, default=0.0, return_dtype=pl.Float64
        ).max().over("meeting").alias("residual"),
    )  # fmt: skip
    first = left <= left.min().over("meeting") + pl.max_horizontal(pl.lit(APART_NS), "residual")
    came = pl.when(first).then(arrival)
    table = table.with_columns(
        pl.col("rank").sort_by(came, "rank", descending=[True, False], nulls_last=True)
        .first().over("meeting").alias("sender"),
    )  # fmt: skip
    came = (
        pl.when(law == SENDER)
        .then(pl.col("arrival").filter(pl.col("rank") == pl.col("sender")).first().over("meeting"))
        .otherwise(pl.col("arrival").max().over("meeting"))
    )
    whole = meeting.is_not_null() & pl.col("complete")
    waited = (came - pl.col("arrival")).clip(0, pl.col("duration_ns"))
    shortest = pl.col("duration_ns").min()
    some = meeting.is_not_null() & ~pl.col("complete") & (law == TOGETHER)
    alone = meeting.is_null() & pl.col("recorded") & (pl.len().over("rank", "like", "group") > 1)
    table = table.with_columns(
        pl.when(whole)
        .then(
            pl.when(law.is_in([TOGETHER, PAIR]))
            .then(shortest.over("meeting"))
            .otherwise(pl.col("duration_ns") - waited)
        )
        .when(some)
        .then(pl.col("duration_ns").filter(some).min().over("group", "like"))
        .when(alone)
        .then(shortest.over("rank", "group", "like"))
        .alias("transfer_ns"),
        pl.when(whole).then(pl.lit("ranks")).when(some).then(pl.lit("some ranks")).when(alone)
        .then(pl.lit("trace")).alias("basis"),
    )  # fmt: skip
    arrivals = pl.col("arrival").sort(descending=True)
    second = pl.when(law == SENDER).then(pl.col("arrival").min()).otherwise(arrivals.get(1, null_on_oob=True))
    apart = (came - second.over("meeting")) > pl.max_horizontal(pl.lit(LEAST_NS), "residual")
    latest = (
        pl.when(law == SENDER)
        .then("sender")
        .otherwise(
            pl.col("rank").sort_by("arrival", "rank", descending=[True, False]).first().over("meeting")
        )
    )
    return table.with_columns(
        (pl.col("duration_ns") - pl.col("transfer_ns")).alias("waiting_ns"),
        pl.when(whole & apart).then(latest).alias("last_rank"),
        pl.when(whole)
        .then((pl.col("arrival").max() - pl.col("arrival").min()).over("meeting"))
        .alias("skew_ns"),
    ).drop("arrival", "residual", "sender")
