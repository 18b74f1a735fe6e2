"""Which host event runs inside which.

The parent of an event is the innermost event of its lane that encloses it: in order of start (longest first),
the nearest earlier one that does not end before it. On a lane whose events nest, which is nearly every lane,
that is found with sorts and searches; annotations can cross ops, and such lanes are walked with a stack.
"""

from __future__ import annotations

import polars as pl

from kinetoscope.trace.threads import places

ORDER = ["lane", "start_ns", "duration_ns", "event"]
_SPAN_LIMIT = 1 << 62


def sorted_by_lane(host: pl.DataFrame) -> pl.DataFrame:
    """``lane``, ``start_ns``, ``duration_ns``, ``event`` in order of lane, start, longest first, position;
    ``id`` is the row number and ``row`` the row it had before."""
    table = host.select(ORDER).cast({"duration_ns": pl.Int64}).with_row_index("row")
    rows = _in_order_of_start(table)
    ordered = table.sort(ORDER, descending=[False, False, True, False]) if rows is None else table[rows]
    return ordered.with_row_index("id")


def _in_order_of_start(table: pl.DataFrame) -> pl.Series | None:
    """Rows in order of lane and start, by one number for both; None where that does not say it all."""
    first, last = table.select(first=pl.col("start_ns").min(), last=pl.col("start_ns").max()).row(0)
    if first is None:
        return None
    span = last - first + 1
    if span * (table.select(pl.col("lane").max()).item() + 1) > _SPAN_LIMIT:
        return None
    place = table.select(pl.col("lane").cast(pl.Int64) * span + (pl.col("start_ns") - first)).to_series()
    rows = place.arg_sort()
    return None if (place.gather(rows).diff() == 0).any() else rows


def nested(host: pl.DataFrame) -> pl.DataFrame:
    """With ``parent``, ``depth`` and ``self_ns``; ``host`` as ``sorted_by_lane`` gives it."""
    times = host.select(
        "id", "lane", "start_ns", "duration_ns", end=pl.col("start_ns") + pl.col("duration_ns")
    )
    tree = _as_if_nested(times)
    crossing = tree.filter(
        (pl.col("end").gather(pl.col("parent")) < pl.col("end"))
        # An instant at which one event ends and the next begins lies in both.
        | (pl.col("depth").gather(pl.col("parent")) + 1 != pl.col("depth"))
        | (pl.col("lane").gather(pl.col("parent")) != pl.col("lane"))
    )["lane"].unique()
    if len(crossing):
        walked = _walked(times.filter(pl.col("lane").is_in(crossing.implode())))
        tree = tree.update(walked, on="id", include_nulls=True)
    return host.with_columns(
        tree["parent"], tree["depth"].cast(pl.UInt16), _self_ns(tree, bool(len(crossing)))
    )


def innermost(host: pl.DataFrame, is_op: pl.Series, rows: pl.Series) -> pl.Series:
    """The innermost op around each of these rows; null where there is none."""
    op = host["parent"].gather(rows)
    # Up the tree, a level a round: python functions and the like may stand between.
    while (through := ~is_op.gather(op)).any():
        op = op.zip_with(~through.fill_null(False), host["parent"].gather(op))
    return op


def _as_if_nested(times: pl.DataFrame) -> pl.DataFrame:
    """``parent`` and ``depth``, right wherever no two events of a lane cross.

    An event's depth is the number of rows before it less those that have ended by its start; its parent is
    the last row before it that is one less deep. Times are doubled so that an event without duration ends
    after it starts, and lanes are laid one after the other, so that one search serves all.
    """
    first = times.select(pl.col("start_ns").min()).item() or 0
    span = 2 * ((times.select(pl.col("end").max()).item() or 0) - first) + 4
    lanes = times["lane"].rle_id()  # rows are ordered by lane: its number among them
    if span * (lanes.n_unique() + 1) > _SPAN_LIMIT:
        return times.with_columns(
            parent=pl.lit(0, pl.UInt32), depth=pl.lit(1, pl.Int64)
        )  # refused by the check
    lane = lanes.cast(pl.Int64) * span
    depth = times["id"].cast(pl.Int64) - _ended_before(times, lane, first)
    return times.with_columns(_parents(times["id"], depth).alias("parent"), depth.alias("depth"))


def _ended_before(times: pl.DataFrame, lane: pl.Series, first: int) -> pl.Series:
    """How many events have ended when each starts, or are on lanes before its own."""
    ends = times.select(lane + 2 * (pl.col("end") - first) + (pl.col("duration_ns") == 0)).to_series().sort()
    starts = times.select(lane + 2 * (pl.col("start_ns") - first) + (pl.col("duration_ns") > 0)).to_series()
    return places(ends, starts).cast(pl.Int64)


def _parents(row: pl.Series, depth: pl.Series) -> pl.Series:
    """The last row before each that is one less deep; null at depth 0."""
    deeper = 1 << 32
    place = depth * deeper + row.cast(pl.Int64)
    by_depth = place.sort()
    before = places(by_depth, place - deeper).cast(pl.Int64) - 1
    del place
    return (by_depth.gather(before.clip(0)) % deeper).cast(pl.UInt32).set(depth == 0, None)


def _walked(times: pl.DataFrame) -> pl.DataFrame:
    """``parent`` and ``depth`` of lanes whose events cross: whoever ends before a later event can enclose
    nothing that comes after it, so one stack of ever earlier ends is enough."""
    parents: list[int | None] = []
    depths: list[int] = []
    around: list[tuple[int, int, int]] = []  # end, row and depth of each
    current = -1
    for row, lane, end in times.select("id", "lane", "end").iter_rows():
        if lane != current:
            around, current = [], lane
        while around and around[-1][0] < end:
            around.pop()
        _, parent, above = around[-1] if around else (0, None, -1)
        parents.append(parent)
        depths.append(above + 1)
        around.append((end, row, above + 1))
    return times.select("id", pl.Series("parent", parents, pl.UInt32), pl.Series("depth", depths, pl.Int64))


def _self_ns(tree: pl.DataFrame, crossing: bool) -> pl.Series:
    """Duration less what the direct children cover; children that cross are not counted twice."""
    covered = pl.col("duration_ns")
    children = tree.filter(pl.col("parent").is_not_null())
    if crossing:
        earlier = pl.col("end").cum_max().shift(1).over("parent", order_by="id")
        start = pl.max_horizontal("start_ns", earlier)
        covered = (pl.col("end") - start).clip(0)
    each = children.select("parent", covered=covered).sort("parent")  # in order, groups need no hashes
    spent = each.group_by("parent", maintain_order=True).agg(pl.col("covered").sum())
    inside = pl.repeat(0, len(tree), dtype=pl.Int64, eager=True).scatter(spent["parent"], spent["covered"])
    return (tree["duration_ns"] - inside).alias("self_ns")
