"""How long a run would take if no rank were late, by replaying the ways between collectives.

As in "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), at the grain of
collectives: each rank goes its own way from the end of one to the start of the next; a collective begins when
its last rank is there, and takes as long as the data needs. Replayed as recorded it gives the recorded time,
and by how much it does not is said. Without stragglers no way is longer than the median of those into the
same collective, as far as its device or its host took longer; stages of a pipeline, whose two ends of a send
do not do the same, then compute alike long, as the paper has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.ranks.collectives import PAIR
from kinetoscope.analysis.ranks.operations import Operation, replay
from kinetoscope.analysis.ranks.pipelines import CannotTell
from kinetoscope.analysis.ranks.staged import Staged, staged


@dataclass(frozen=True)
class Ideal:
    """All in ns, from the first collective's end to the last one's.

    Args:
        recorded_ns: as recorded.
        replayed_ns: replayed without a change.
        ideal_ns: with no way longer than its peers'.
        without: by rank, with that rank's ways alone no longer than its peers'.
        staged: of a pipeline whose passes are known, by which it was replayed then.
        why: of another pipeline, why they are not.
    """

    recorded_ns: int
    replayed_ns: int
    ideal_ns: int
    without: dict[int, int]
    staged: Staged | None = None
    why: str = ""

    @property
    def error(self) -> float:
        return self.replayed_ns / self.recorded_ns - 1 if self.recorded_ns else 0.0

    @property
    def slowdown(self) -> float:
        """By which factor the run takes longer for its stragglers."""
        return self.replayed_ns / self.ideal_ns if self.ideal_ns else 1.0


def without_stragglers(
    table: pl.DataFrame, computed: pl.DataFrame, device: Sequence[str], worst: Sequence[int] = ()
) -> Ideal | None:
    """A pipeline by its passes, where they are known (see ``staged``); else as ``ideal`` has it."""
    found = ideal(table, device, worst)
    if found is None or not (table["law"] == PAIR).any():
        return found
    try:
        known = staged(table, computed, worst)
    except CannotTell as reason:
        return replace(found, why=str(reason))
    return Ideal(known.recorded_ns, known.replayed_ns, known.ideal_ns, known.without, known)


def ideal(table: pl.DataFrame, device: Sequence[str], worst: Sequence[int] = ()) -> Ideal | None:
    """Replay the meetings of a paired table; None where ranks meet in fewer than two.

    Args:
        table: collectives of all ranks with what they waited (``waits``), ``host_ns`` and the parts of
            their ways.
        device: see ``blame``.
        worst: ranks to replay without their own lateness, one by one.
    """
    lines = _meetings(table, device)
    if len(lines) < 2:
        return None

    def replayed(is_usual: Callable[[int], bool]) -> int:
        latest: dict[int, int] = {}  # each rank's last operation, by its place
        meetings: list[list[Operation]] = []
        count = 0
        for line in lines:
            before = [[latest[rank]] if rank in latest else [] for rank in line.ranks]
            each = zip(line.ranks, before, line.ways_ns, line.usual_ns, line.free, strict=True)
            meetings.append(
                [
                    Operation(own, usual if own and is_usual(rank) else way, line.transfer_ns, is_free)
                    for rank, own, way, usual, is_free in each
                ]
            )
            latest |= {rank: count + index for index, rank in enumerate(line.ranks)}
            count += len(line.ranks)
        ends = replay(meetings)
        return round(max(ends) - max(ends[: len(lines[0].ranks)]))

    return Ideal(
        round(max(line.end_ns for line in lines) - lines[0].end_ns),
        replayed(lambda rank: False),
        replayed(lambda rank: True),
        {rank: replayed(lambda other, rank=rank: other == rank) for rank in worst},
    )


class _Meeting(NamedTuple):
    end_ns: float
    ranks: list[int]
    ways_ns: list[float]
    usual_ns: list[float]
    transfer_ns: float
    free: list[bool]  # who waits for nobody: what it sends is buffered


def _meetings(table: pl.DataFrame, device: Sequence[str]) -> list[_Meeting]:
    """In the order of time. A way is from the end of the rank's collective before to this one's start, less
    than nothing where that one goes on; the first begins with the first collective of all."""
    known = ("meeting", "transfer_ns", "clock_ns")
    met = table.filter(pl.all_horizontal(pl.col(name).is_not_null() for name in known))
    met = met.with_columns(
        (pl.col("start_ns") - pl.col("clock_ns")).alias("came_ns"),
        (pl.col("end_ns") - pl.col("clock_ns")).alias("left_ns"),
    )
    # One order for all ranks, that of replaying; those that end at once, as batched ones, begin apart or not.
    order = (pl.col(name).median().over("meeting") for name in ("left_ns", "came_ns"))
    met = met.sort(*order, "meeting", "rank").with_columns(
        (pl.col("start_ns") - pl.col("end_ns").shift(1)).over("rank").alias("way_ns")
    )
    met = met.with_columns(pl.coalesce("way_ns", pl.col("came_ns") - pl.col("left_ns").min()).alias("way_ns"))
    apart = {
        name: pl.col(name) - pl.col(name).quantile(0.5, "lower").over("meeting")
        for name in (*device, "host_ns", "way_ns")
    }
    is_pair = pl.col("law") == PAIR
    computed = pl.sum_horizontal(device)
    longer, staged = pl.sum_horizontal(apart[name].clip(0) for name in device), pl.lit(0.0)
    if bool((met["law"] == PAIR).any()):
        longer, staged = pl.lit(0.0), computed * pl.col("more")
    excess = pl.min_horizontal(apart["way_ns"].clip(0), apart["host_ns"].clip(0) + longer)
    met = _staged(met, computed).with_columns((pl.col("way_ns") - excess + staged).alias("usual_ns"))
    lines = met.group_by("meeting", maintain_order=True).agg(
        pl.col("left_ns").median(),
        "rank",
        pl.col("way_ns").cast(pl.Float64),
        pl.col("usual_ns").cast(pl.Float64),
        pl.col("transfer_ns").min().cast(pl.Float64),
        is_pair & (pl.col("waiting_ns") == 0),
    )
    return [_Meeting(*line) for line in lines.drop("meeting").iter_rows()]


def _staged(met: pl.DataFrame, computed: pl.Expr) -> pl.DataFrame:
    """Adds ``more``: by which share a stage of a pipeline would compute longer or shorter in a step, were all
    alike long. What one of them does not do another must, so that is their mean and not the shortest.

    Each is as long as its median step, but longer in one that is; a step that was cut short is not stretched.
    """
    own = computed.sum().over("rank", "step")
    met = met.with_columns(own.alias("own"))
    usual = met.unique(["rank", "step"]).group_by("rank").agg(pl.col("own").median().alias("stage"))
    met = met.join(usual, on="rank", how="left", maintain_order="left")
    mean = pl.lit(usual["stage"].mean())
    return met.with_columns((mean / pl.max_horizontal("own", "stage", 1) - 1).alias("more"))
