"""How long each step took which rank, bounded however many ranks and steps there are."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from kinetoscope.analysis.collectives.recorded import ranges
from kinetoscope.analysis.ranks.comparison import RankComparison
from kinetoscope.analysis.ranks.rows import PaceRow, Paces

COLUMNS = 120  # of steps; of more, several are one
PLACES, SORTS = 32, 6  # rows of one sort of places, of which the slowest are kept, and such sorts
HOST, STAGE = "host", "pipeline stage"


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

    def row(group: Sequence[int], place: str = "") -> PaceRow:
        columns = _of(steps, group, len(names)).to_dict(as_series=False)
        return PaceRow(ranks=ranges(group), count=len(group), place=place, **columns)

    if not names:
        return Paces(steps=[], took_us=[], own_us=[], rows=[])
    found_places: dict[str, list[PaceRow]] = {}
    for sort, ranks_of in places(found).items():
        rows = [row(ranks, place) for place, ranks in ranks_of.items()]
        rows.sort(key=lambda one: -one.longer(every["own_us"].to_list()))
        found_places[sort] = rows[:PLACES]
    return Paces(
        steps=names, rows=[row(group) for group in groups], places=found_places,
        **every.to_dict(as_series=False),
    )  # fmt: skip


def places(found: RankComparison) -> dict[str, dict[str, list[int]]]:
    """By sort of place (host, stage of a pipeline, name of process groups) and place the ranks there; of
    sorts that have several places, one of which has several ranks."""
    sorts: dict[str, dict[str, list[int]]] = {HOST: {}, STAGE: {}}
    for part in found.parts:
        if part.facts.host:
            sorts[HOST].setdefault(part.facts.host, []).append(part.facts.rank)
    for rank, stage in sorted(found.stages.items()):
        sorts[STAGE].setdefault(str(stage), []).append(rank)
    known = found.table.filter(pl.col("group_name").is_not_null(), pl.col("size") < len(found.parts))
    groups = known.group_by("group_name", "group").agg(pl.col("rank").unique().sort(), pl.col("size").first())
    for name, ranks, size in (
        groups.select("group_name", "rank", "size").sort("group_name", "rank").iter_rows()
    ):
        if len(ranks) == size:
            for at, rank in enumerate(ranks):
                sorts.setdefault(name, {}).setdefault(str(at), []).append(rank)
    of_several = {
        sort: of_sort for sort, of_sort in sorts.items() if 1 < len(of_sort) < sum(map(len, of_sort.values()))
    }
    return dict(list(of_several.items())[:SORTS])


def _of(steps: pl.DataFrame, group: Sequence[int], count: int) -> pl.DataFrame:
    """A group's steps: medians, whose own time was the longest, and what it cost the others."""
    own = steps.filter(pl.col("rank").is_in(list(group))).group_by("column")
    table = own.agg(
        pl.col("took_us", "own_us").median(),
        slowest=pl.col("rank").sort_by("own_us", "rank", descending=[True, False]).first(),
        slowest_us=pl.col("own_us").max(),
        blamed_us=pl.col("caused").sum() / 1000,  # of integers, whose sum no order changes
    )
    return _columns(table, count).with_columns(pl.col("blamed_us").fill_null(0.0))


def _columns(table: pl.DataFrame, count: int) -> pl.DataFrame:
    """Add a row for every column that was not recorded."""
    every = pl.DataFrame({"column": range(count)}, {"column": pl.Int64})
    return every.join(table, on="column", how="left", maintain_order="left").drop("column")


def _steps(found: RankComparison) -> tuple[pl.DataFrame, list[str]]:
    """One row per rank and column (``took_us``, ``own_us``, ``caused``), and what the columns are called."""
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
    waits = found.table.group_by("rank", name=pl.col("step").cast(pl.String)).agg(
        waited=pl.col("exposed_waiting_ns").sum()
    )
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
            pl.col("caused").sum(),
        )
    )
    firsts = every[::width]
    lasts = [every[min(at + width, len(every)) - 1] for at in range(0, len(every), width)]
    names = [one if one == last else f"{one} to {last}" for one, last in zip(firsts, lasts, strict=True)]
    return table, names
