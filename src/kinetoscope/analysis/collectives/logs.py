"""Collectives as NCCL's Inspector logs them: without starts and ends, but numbered and timed on each rank.

That is enough for those that end together: what a rank was in one longer than the shortest is waiting, and
the shortest came last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.collectives.recorded import KINDS, TOGETHER

# One row per rank's collective; ``number`` in its ``communicator``; ``group`` as the program named that.
INSPECTED = {
    "communicator": pl.String,
    "group": pl.String,
    "size": pl.Int64,
    "rank": pl.Int64,
    "name": pl.String,
    "number": pl.Int64,
    "bytes": pl.Int64,
    "time_ns": pl.Float64,
    "algorithm_gbps": pl.Float64,
    "bus_gbps": pl.Float64,
}


def inspected(table: pl.DataFrame) -> pl.DataFrame:
    """One row per group, size, kind and bytes, those waited in most first: ``group``, ``size``, ``kind``,
    ``bytes``, ``groups``, ``meetings``, ``incomplete`` (of which not every rank's log is there),
    ``transfer_ns`` and the bandwidths (of the last rank, at the median of the complete), ``waiting_ns``,
    ``last_rank``, ``last_times`` and ``told`` (see ``waits``; ranks are those of the communicator)."""
    kind = pl.coalesce(
        pl.when(pl.col("name").str.contains(one.pattern)).then(pl.lit(one.name)) for one in KINDS
    )
    together = [one.name for one in KINDS if one.semantics == TOGETHER]
    key = ("communicator", "group", "size", "kind", "bytes", "number")
    instances = (
        table.with_columns(kind=kind)
        .group_by(*key)
        .agg(
            (pl.col("rank").n_unique() < pl.col("size").first()).alias("incomplete"),
            pl.col("time_ns").min().alias("transfer_ns"),
            (pl.col("time_ns") - pl.col("time_ns").min()).sum().alias("waiting_ns"),
            pl.col("rank").sort_by("time_ns", "rank").first().alias("last_rank"),
            ((pl.col("time_ns") == pl.col("time_ns").min()).sum() == 1).alias("alone"),
            pl.col("algorithm_gbps", "bus_gbps").max(),
        )
        .with_columns(known=pl.col("kind").is_in(together) & ~pl.col("incomplete"))
    )
    known, last = pl.col("known"), pl.col("last_rank")
    measured = ("transfer_ns", "algorithm_gbps", "bus_gbps")
    return (
        instances.with_columns(
            *(pl.when(known).then(name).alias(name) for name in (*measured, "waiting_ns")),
            last_rank=pl.when(known & pl.col("alone")).then(last),
        )
        .group_by("group", "size", "kind", "bytes")
        .agg(
            pl.col("communicator").n_unique().alias("groups"),
            pl.len().alias("meetings"),
            pl.col("incomplete").sum(),
            pl.col(*measured).median(),
            pl.col("waiting_ns").sum(),
            last.drop_nulls().mode().min(),
            last_times=(last == last.drop_nulls().mode().min()).sum(),
            told=last.count(),
        )
        .sort("waiting_ns", "group", "kind", "bytes", descending=[True, False, False, False])
    )


class Issued(NamedTuple):
    """A collective as one rank's dump has it; ``state`` is scheduled, started or completed."""

    group: str
    members: tuple[int, ...]  # empty where the dump does not list them
    number: int
    operation: str
    sizes: str
    state: str


class Hang(NamedTuple):
    """Where a process group stands."""

    group: str
    number: int
    operation: str
    sizes: str
    # members that have not issued it. Ranks without a dump are ``silent``, not missing
    missing: tuple[int, ...]
    waiting: tuple[int, ...]  # those that have, and in which it is not completed
    silent: tuple[int, ...]
    mismatched: dict[str, tuple[int, ...]]  # by what they issued instead, those that differ from most


def hangs(dumps: Mapping[int, Sequence[Issued]]) -> list[Hang]:
    """One for each process group that stands, those that lack ranks first."""
    groups = dict.fromkeys(one.group for issued in dumps.values() for one in issued)
    found = [hang for group in groups if (hang := _standing(group, dumps)) is not None]
    return sorted(found, key=lambda hang: (not hang.missing, not hang.mismatched, hang.group))


def _standing(group: str, dumps: Mapping[int, Sequence[Issued]]) -> Hang | None:
    own = {rank: {one.number: one for one in issued if one.group == group} for rank, issued in dumps.items()}
    own = {rank: issued for rank, issued in own.items() if issued}
    listed = next((one.members for issued in own.values() for one in issued.values() if one.members), ())
    members = set(listed) or set(own)
    # A dump is a ring: what a rank no longer lists it has long completed.
    oldest = max(min(issued) for issued in own.values())
    numbers = sorted({number for issued in own.values() for number in issued if number >= oldest})
    for number in numbers:
        at = {rank: issued[number] for rank, issued in own.items() if number in issued}
        missing = members & dumps.keys() - at.keys()
        waiting = {rank for rank, one in at.items() if one.state != "completed"}
        if not waiting:
            continue
        sorts: dict[str, list[int]] = {}
        for rank, one in sorted(at.items()):
            sorts.setdefault(f"{one.operation} {one.sizes}", []).append(rank)
        usual = max(sorts, key=lambda text: len(sorts[text]))
        first = at[sorts[usual][0]]
        return Hang(
            group,
            number,
            first.operation,
            first.sizes,
            tuple(sorted(missing)),
            tuple(sorted(waiting)),
            tuple(sorted(members - dumps.keys())),
            {text: tuple(ranks) for text, ranks in sorts.items() if text != usual},
        )
    return None
