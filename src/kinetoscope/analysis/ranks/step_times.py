"""How long each step took which rank, bounded however many ranks and steps there are."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import polars as pl

from kinetoscope.analysis.collectives.recorded import ranges
from kinetoscope.analysis.ranks.comparison import RankComparison

COLUMNS = 120  # of steps; of more, several are one


class PaceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rank, or similar ranks, in each step: medians; null where none of them recorded it.

    ``own_us`` is the step less the waiting for other ranks that nothing hid. ``slowest`` is whose own time
    was longest, ``blamed_us`` what all others waited for these ranks.
    """

    ranks: str
    count: int
    took_us: list[float | None]
    own_us: list[float | None]
    slowest: list[int | None]
    slowest_us: list[float | None]
    blamed_us: list[float]


class Paces(msgspec.Struct, frozen=True, kw_only=True):
    """How long every step took, at the median over ranks, and then rank by rank, or by groups of similar
    ranks, those apart that were waited for most. Of many steps several are one column: their means."""

    steps: list[str]
    took_us: list[float | None]
    own_us: list[float | None]
    rows: list[PaceRow]


def set_apart(groups: Sequence[Sequence[int]], worst: Sequence[int], most: int) -> list[Sequence[int]]:
    """The worst ranks each by itself, then the groups without them; those beyond ``most`` are one."""
    left = [[rank for rank in group if rank not in worst] for group in groups]
    left = [group for group in left if group]
    rest = [rank for group in left[most:] for rank in group]
    return [*((rank,) for rank in worst), *left[:most], *([rest] if rest else [])]


def paces(found: RankComparison, groups: Sequence[Sequence[int]]) -> Paces:
    """The steps' times over all ranks, with a row for each of ``groups``."""
    steps, names = _steps(found)
    every = _columns(steps.group_by("column").agg(pl.col("took_us", "own_us").median()), len(names))
    rows = [
        PaceRow(
            ranks=ranges(group), count=len(group), **_of(steps, group, len(names)).to_dict(as_series=False)
        )
        for group in groups
    ]
    return Paces(steps=names, rows=rows if names else [], **every.to_dict(as_series=False))


def _of(steps: pl.DataFrame, group: Sequence[int], count: int) -> pl.DataFrame:
    """A group's steps: medians, whose own time was the longest, and what it cost the others."""
    own = steps.filter(pl.col("rank").is_in(list(group))).group_by("column")
    table = own.agg(
        pl.col("took_us", "own_us").median(),
        pl.col("rank").sort_by("own_us", "rank", descending=[True, False]).first().alias("slowest"),
        pl.col("own_us").max().alias("slowest_us"),
        pl.col("blamed_us").sum(),
    )
    return _columns(table, count).with_columns(pl.col("blamed_us").fill_null(0.0))


def _columns(table: pl.DataFrame, count: int) -> pl.DataFrame:
    """Add a row for every column that was not recorded."""
    every = pl.DataFrame({"column": range(count)}, {"column": pl.Int64})
    return every.join(table, on="column", how="left", maintain_order="left").drop("column")


def _steps(found: RankComparison) -> tuple[pl.DataFrame, list[str]]:
    """One row per rank and column (``took_us``, ``own_us``, ``blamed_us``), and what the columns are
    called."""
    parts = [
        part.steps.select(
            pl.lit(part.facts.rank, pl.Int32).alias("rank"),
            "name",
            took=pl.col("end_ns") - pl.col("start_ns"),
        )
        for part in found.parts
    ]
    schema = {"rank": pl.Int32, "name": pl.String, "took": pl.Int64}
    table = pl.concat([pl.DataFrame(schema=schema), *parts])
    every = table["name"].unique(maintain_order=True).to_list()
    width = -(-len(every) // COLUMNS) or 1
    columns = [place // width for place in range(len(every))]
    places = pl.DataFrame({"name": every, "column": columns}, {"name": pl.String, "column": pl.Int64})
    waits = found.table.group_by("rank", name="step").agg(waited=pl.col("exposed_waiting_ns").sum())
    costs = found.attributed.drop_nulls("culprit").group_by(
        pl.col("culprit").cast(pl.Int32).alias("rank"), name="where"
    )
    table = (
        table.join(places, on="name")
        .join(waits, on=["rank", "name"], how="left")
        .join(costs.agg(caused=pl.col("waited_ns").sum()), on=["rank", "name"], how="left")
        .with_columns(own=(pl.col("took") - pl.col("waited").fill_null(0)).clip(0))
        .group_by("rank", "column")
        .agg(
            pl.col("took", "own").mean().truediv(1000).name.suffix("_us"),
            blamed_us=pl.col("caused").sum() / 1000,
        )
    )
    firsts = every[::width]
    lasts = [every[min(at + width, len(every)) - 1] for at in range(0, len(every), width)]
    names = [one if one == last else f"{one} to {last}" for one, last in zip(firsts, lasts, strict=True)]
    return table, names
