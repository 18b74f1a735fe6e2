"""Which event of a wanted sort encloses each host event."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import END, constant
from kinetoscope.trace.schema import whole


def nearest(host: pl.DataFrame, wanted: pl.Series) -> pl.Series:
    """The innermost wanted event around each row of ``host_events``, itself included (UInt32); null: none is.
    ``wanted``: one boolean a row.

    Each row points at its parent unless it is wanted or at the top; following the pointers of pointers
    doubles the distance every time.
    """
    if not wanted.any():
        return constant(None, len(host), pl.UInt32)
    target = host["id"].zip_with(wanted | host["parent"].is_null(), host["parent"])
    deepest = whole(host["depth"].max())
    for _ in range(deepest.bit_length()):
        target = target[target]
    return target.zip_with(wanted[target], constant(None, len(host), pl.UInt32)).alias("nearest")


def outermost(host: pl.DataFrame, wanted: pl.Series) -> pl.Series:
    """Which rows of ``host_events`` are wanted, and inside of none that is."""
    return wanted & nearest(host, wanted).gather(host["parent"]).is_null()


def with_inside(parent: pl.Series, rows: pl.Series, amounts: pl.Series) -> pl.Series:
    """By row the sum of the amounts of it and of all rows inside it. ``rows`` are those that have an amount;
    they may repeat, or be null."""
    total = constant(0, len(parent), type(amounts.dtype))
    while True:
        # In order, groups need no table of hashes.
        level = pl.DataFrame({"row": rows, "amount": amounts}).sort("row", nulls_last=True)
        level = level.head(len(rows) - rows.null_count())
        if level.is_empty():
            return total
        level = level.group_by("row", maintain_order=True).agg(pl.sum("amount"))
        rows, amounts = level["row"], level["amount"]
        total = total.scatter(rows, total[rows] + amounts)
        rows = parent[rows]


def running(host: pl.DataFrame, moments: pl.DataFrame) -> pl.Series:
    """The innermost host event (UInt32) that runs on each moment's ``lane`` at its ``start_ns``, or null."""
    events = host.select("id", "lane", "start_ns")  # of each lane in order of start, as they have to be
    tree = host.select("id", "parent", END)
    wanted = moments.select("lane", "start_ns").with_row_index("row").sort("start_ns")
    found = wanted.join_asof(events, on="start_ns", by="lane", check_sortedness=False)
    while True:
        known = found.join(tree, on="id", how="left", maintain_order="left")
        ended = (known["end_ns"] <= known["start_ns"]).fill_null(False)
        if not ended.any():
            return found.sort("row")["id"]
        found = known.select(
            "row", "start_ns", id=pl.when(ended).then("parent").otherwise("id").cast(pl.UInt32)
        )


def caller(device: pl.DataFrame) -> pl.Series:
    """The host event that put each device event there: its launch, else the op that its id names."""
    return device.select(caller=pl.coalesce("launch", "op")).to_series()
