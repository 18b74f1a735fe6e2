"""How long a run would take if no rank were late, by replaying the ways between collectives.

As in "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), at the grain of
collectives: each rank goes its own way from the end of one to the start of the next; a collective begins when
its last rank is there, and takes as long as the data needs. Replayed as recorded it gives the recorded time,
and by how much it does not is said. Without stragglers no way is longer than the median of those into the
same collective, as far as its device or its host took longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.ranks.collectives import PAIR


@dataclass(frozen=True)
class Ideal:
    """All in ns, from the first collective's end to the last one's.

    Args:
        recorded_ns: as recorded.
        replayed_ns: replayed without a change.
        ideal_ns: with no way longer than its peers'.
        without: by rank, with that rank's ways alone no longer than its peers'.
    """

    recorded_ns: int
    replayed_ns: int
    ideal_ns: int
    without: dict[int, int]

    @property
    def error(self) -> float:
        return self.replayed_ns / self.recorded_ns - 1 if self.recorded_ns else 0.0

    @property
    def slowdown(self) -> float:
        """By which factor the run takes longer for its stragglers."""
        return self.replayed_ns / self.ideal_ns if self.ideal_ns else 1.0


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
        clocks: dict[int, float] = {}
        ends: list[float] = []
        for line in lines:
            came = [
                clocks.get(rank, 0.0) + (usual if is_usual(rank) and rank in clocks else way)
                for rank, way, usual in zip(line.ranks, line.ways_ns, line.usual_ns, strict=True)
            ]
            ends.append(max(came) + line.transfer_ns)
            for rank, own, is_free in zip(line.ranks, came, line.free, strict=True):
                clocks[rank] = own + line.transfer_ns if is_free else ends[-1]
        return round(max(ends) - ends[0])

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
    met = met.sort("rank", "start_ns").with_columns(
        (pl.col("start_ns") - pl.col("end_ns").shift(1)).over("rank").alias("way_ns"),
        (pl.col("start_ns") - pl.col("clock_ns")).alias("came_ns"),
        (pl.col("end_ns") - pl.col("clock_ns")).alias("left_ns"),
    )
    met = met.with_columns(pl.coalesce("way_ns", pl.col("came_ns") - pl.col("left_ns").min()).alias("way_ns"))
    apart = {
        name: pl.col(name) - pl.col(name).quantile(0.5, "lower").over("meeting")
        for name in (*device, "host_ns", "way_ns")
    }
    most = apart["host_ns"].clip(0) + pl.sum_horizontal(apart[name].clip(0) for name in device)
    excess = pl.min_horizontal(apart["way_ns"].clip(0), most)
    met = met.with_columns((pl.col("way_ns") - excess).alias("usual_ns"))
    lines = met.group_by("meeting").agg(
        pl.col("left_ns").median(),
        "rank",
        pl.col("way_ns").cast(pl.Float64),
        pl.col("usual_ns").cast(pl.Float64),
        pl.col("transfer_ns").min().cast(pl.Float64),
        (pl.col("law") == PAIR) & (pl.col("waiting_ns") == 0),
    )
    return [_Meeting(*line) for line in lines.sort("left_ns").drop("meeting").iter_rows()]
