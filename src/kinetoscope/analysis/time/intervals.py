"""Interval arithmetic on tables of half-open intervals ``[start_ns, end_ns)``.

Every function takes tables with the integer columns ``start_ns`` and ``end_ns`` and, in ``by``, the columns
that keep sets apart (rank, device, stream, …); sets of different keys never meet. What is returned is
*merged*: the intervals of one key are disjoint, do not touch, are sorted by start and are never empty. Other
columns are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from kinetoscope.analysis.events.rows import constant

BOUNDS = ["start_ns", "end_ns"]


def union(table: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Every instant that at least one interval covers. Empty and negative intervals cover nothing."""
    rows = table[[*by, *BOUNDS]]
    covers = rows["end_ns"] > rows["start_ns"]
    if not covers.all(ignore_nulls=False):
        rows = rows.filter(covers)
    if len(rows) < 2:
        return rows
    keys = apart(rows, by)
    if keys or not rows["start_ns"].is_sorted():
        rows = rows.sort(*keys, "start_ns")
    if not keys and (rows["start_ns"].slice(1) > rows["end_ns"].head(-1)).all():
        return rows  # it was merged before
    # Column by column: of few rows, as most tables have, a second query takes longer than all of this.
    reached = rows.select(within(pl.col("end_ns").cum_max(), keys)).to_series()
    gaps = rows["start_ns"].slice(1) > reached.head(-1)
    for key in keys:
        gaps |= rows[key].slice(1).ne_missing(rows[key].head(-1))
    edge = constant(True, 1, pl.Boolean)
    starts, ends = pl.concat([edge, gaps]), pl.concat([gaps, edge])
    begun = [rows[column].filter(starts) for column in (*by, "start_ns")]
    return pl.DataFrame([*begun, reached.filter(ends)])


def apart(table: pl.DataFrame, by: Sequence[str]) -> list[str]:
    """The columns of ``by`` (numbers) that have more than one value: most recordings are of one device, and
    to keep it apart from no other costs four fifths of a union."""
    return [key for key in by if table[key].null_count() or table[key].min() != table[key].max()]


def within(column: pl.Expr, keys: Sequence[str]) -> pl.Expr:
    """The expression for the rows of each key apart."""
    return column.over(keys) if keys else column


def intersect(left: pl.DataFrame, right: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Every instant that both tables cover."""
    fewer, more = sorted((left, right), key=len)
    return _overlay(fewer, _touching(more, fewer) if len(more) > SHORT else more, by, LEFT + RIGHT)


def subtract(left: pl.DataFrame, right: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Every instant that ``left`` covers and ``right`` does not."""
    return _overlay(left, right, by, LEFT)


def length(table: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Nanoseconds in each key's intervals, as column ``length_ns``; meant for merged tables."""
    if table.is_empty() or apart(table, by):
        return table.group_by(*by, maintain_order=True).agg(length_ns=length_of())
    lengths = table["end_ns"] - table["start_ns"]
    whole = pl.Series("length_ns", [lengths.sum()], lengths.dtype)
    return pl.DataFrame([*(table[key].head(1) for key in by), whole])


def total(table: pl.DataFrame) -> int:
    """Nanoseconds in all intervals of a merged table."""
    return int((table["end_ns"] - table["start_ns"]).sum())


def length_of() -> pl.Expr:
    return (pl.col("end_ns") - pl.col("start_ns")).sum()


def clip(table: pl.DataFrame, start: int | pl.Expr, end: int | pl.Expr) -> pl.DataFrame:
    """The parts of the rows between two instants; rows wholly outside go, all columns stay."""
    low = pl.lit(start) if isinstance(start, int) else start
    high = pl.lit(end) if isinstance(end, int) else end
    return table.with_columns(
        start_ns=pl.max_horizontal("start_ns", low), end_ns=pl.min_horizontal("end_ns", high)
    ).filter(pl.col("end_ns") > pl.col("start_ns"))


def covered_until(merged: pl.DataFrame, instants: pl.DataFrame, by: Sequence[str] = ()) -> pl.Series:
    """Nanoseconds that a merged table covers before each instant (column ``at``), in their order.

    What is covered between two instants is the difference of their values: a search, however many there are.
    """
    keys = list(by)
    length = pl.col("end_ns") - pl.col("start_ns")
    before = within(length.cum_sum(), keys) - length
    begun = merged.with_columns(before_ns=before, from_ns="start_ns").sort("start_ns")
    asked = instants.select(*keys, "at").with_row_index("order").sort("at")
    found = asked.join_asof(
        begun, left_on="at", right_on="start_ns", by=keys or None, check_sortedness=False
    ).sort("order")
    inside = pl.min_horizontal("at", "end_ns") - pl.col("from_ns")
    return found.select(covered_ns=(pl.col("before_ns") + inside).fill_null(0)).to_series()


def covered(merged: pl.DataFrame, bounds: pl.DataFrame, by: Sequence[str] = ()) -> pl.Series:
    """Nanoseconds that a merged table covers of each row's time (``start_ns`` to ``end_ns``), in order."""
    both = pl.concat([bounds.select(*by, at=bound) for bound in BOUNDS])
    until = covered_until(merged, both, by)
    return until.tail(len(bounds)) - until.head(len(bounds))


def outermost(table: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """The rows that do not begin inside another one of their key, by key and start."""
    reached = pl.col("end_ns").cum_max().shift(1).over(by)
    ordered = table.select(*by, *BOUNDS).with_row_index("row").sort(*by, "start_ns", -pl.col("end_ns"))
    return table[ordered.filter((pl.col("start_ns") >= reached).fill_null(True))["row"]]


def beginning_in(events: pl.DataFrame, marks: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """The rows that begin in an interval (disjoint for one key), by their start, with its other columns."""
    if events.is_empty() or marks.is_empty():
        return events.clear().hstack(marks.drop(*by, *BOUNDS).clear())
    inside = marks.rename({"start_ns": "from_ns", "end_ns": "until_ns"}).sort("from_ns")
    found = events.sort("start_ns").join_asof(
        inside, left_on="start_ns", right_on="from_ns", by=list(by) or None, check_sortedness=False
    )
    return found.filter(pl.col("start_ns") < pl.col("until_ns")).drop("from_ns", "until_ns")


SHORT = 1_000  # rows that are sorted sooner than those that touch others are found
LEFT, RIGHT = 1, 2  # what covers an instant, added up


def _overlay(left: pl.DataFrame, right: pl.DataFrame, by: Sequence[str], cover: int) -> pl.DataFrame:
    """Sweep over the bounds of both merged tables, keeping what exactly this covers.

    Where a key ends nothing covers it any more, so the next one's sum begins at 0 by itself.
    """
    keys = list(by)
    if left.is_empty():  # the usual case of communication on one device, and the sweep over the other is long
        return union(left, by)
    steps = [*_steps(union(left, by), keys, LEFT), *_steps(union(right, by), keys, RIGHT)]
    return (
        pl.concat(steps)
        .sort(*keys, "start_ns")
        .with_columns(pl.col("cover").cum_sum(), end_ns=pl.col("start_ns").shift(-1))
        .filter(pl.col("cover") == cover, pl.col("end_ns") > pl.col("start_ns"))
        .select(*keys, *BOUNDS)
    )


def _touching(table: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """The rows that share an instant with one of the others, whatever their keys."""
    cover = union(others)
    following = cover["end_ns"].search_sorted(table["start_ns"], side="right")
    starts = cover["start_ns"][following.set(following == len(cover), None)]
    return table.filter(starts < table["end_ns"])


def _steps(merged: pl.DataFrame, keys: list[str], side: int) -> Iterator[pl.DataFrame]:
    """Each interval as two bounds: cover rises at its start and falls at its end."""
    for bound, step in zip(BOUNDS, (side, -side), strict=True):
        cover = constant(step, len(merged), pl.Int32).alias("cover")
        yield pl.DataFrame([*(merged[key] for key in keys), merged[bound].alias("start_ns"), cover])


NOTHING = -1


def overlay(layers: Mapping[str, pl.DataFrame], by: Sequence[str]) -> pl.DataFrame:
    """The intervals of time that at least one layer covers: ``by``, ``start_ns``, ``end_ns`` and, named as
    its layer, the ``row`` that covers it or null; sorted by key and time. ``layers``: tables with
    ``start_ns``, ``end_ns``, ``by`` (the columns that keep timelines apart) and the integer ``row``, disjoint
    in one layer and key."""
    keys = list(by)
    each: list[pl.DataFrame] = []
    for name, table in layers.items():
        table = table.filter(table["end_ns"] > table["start_ns"])
        for bound, opens in (("start_ns", True), ("end_ns", False)):
            columns = [*(table[key] for key in keys), table[bound].alias("start_ns")]
            columns.append(constant(opens, len(table), pl.Boolean).alias("opens"))
            row = table["row"].cast(pl.Int64) if opens else constant(NOTHING, len(table), pl.Int64)
            each.append(pl.DataFrame([*columns, row.alias(name)]))
    names = list(layers)
    return (
        pl.concat(each, how="diagonal")
        .sort(*keys, "start_ns", "opens")  # where one ends and the next starts: end first
        .with_columns(
            pl.col("start_ns").shift(-1).over(keys).alias("end_ns"),
            *(pl.col(name).forward_fill().over(keys) for name in names),
        )
        .with_columns(pl.when(pl.col(name) != NOTHING).then(pl.col(name)).cast(pl.UInt32) for name in names)
        .filter(pl.col("end_ns") > pl.col("start_ns"), pl.any_horizontal(pl.col(names).is_not_null()))
        .select(*keys, "start_ns", "end_ns", *names)
    )
