"""How long a run would take if no rank were late, by replaying the ways between collectives.

As in "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), at the grain of
collectives: each rank goes its own way from the end of one to the start of the next; a collective begins when
its last rank is there, and takes as long as the data needs. Replayed as recorded it gives the recorded time,
and by how much it does not is said. Without stragglers every way is as long as the median of those into the
same collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl


@dataclass(frozen=True)
class Ideal:
    """All in ns, from the first collective's end to the last one's.

    Args:
        recorded_ns: as recorded.
        replayed_ns: replayed without a change.
        ideal_ns: with every way as long as its peers'.
        without: by rank, with that rank's ways alone as long as its peers'.
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


def ideal(table: pl.DataFrame, worst: Sequence[int] = ()) -> Ideal | None:
    """Replay the meetings of a paired table; None where ranks meet in fewer than two.

    Args:
        table: collectives of all ranks with what they waited (``waits``).
        worst: ranks to replay without their own lateness, one by one.
    """
    lines = _meetings(table)
    if len(lines) < 2:
        return None

    def replayed(is_usual: Callable[[int], bool]) -> int:
        clocks: dict[int, float] = {}
        ends: list[float] = []
        for line in lines:
            came = max(
                clocks.get(rank, 0.0) + (line.usual_ns if is_usual(rank) and rank in clocks else way)
                for rank, way in zip(line.ranks, line.ways_ns, strict=True)
            )
            ends.append(came + line.transfer_ns)
            clocks |= dict.fromkeys(line.ranks, ends[-1])
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
    usual_ns: float
    transfer_ns: float


def _meetings(table: pl.DataFrame) -> list[_Meeting]:
    """In the order of time. A way is from the end of the rank's collective before to this one's start, less
    than nothing where that one goes on; the first begins with the first collective of all."""
    met = table.filter(pl.col("meeting").is_not_null() & pl.col("transfer_ns").is_not_null())
    met = met.sort("rank", "start_ns").with_columns(
        (pl.col("start_ns") - pl.col("end_ns").shift(1)).over("rank").alias("way_ns"),
        (pl.col("start_ns") - pl.col("clock_ns")).alias("came_ns"),
        (pl.col("end_ns") - pl.col("clock_ns")).alias("left_ns"),
    )
    met = met.with_columns(pl.coalesce("way_ns", pl.col("came_ns") - pl.col("left_ns").min()).alias("way_ns"))
    lines = met.group_by("meeting").agg(
        pl.col("left_ns").median(),
        "rank",
        pl.col("way_ns").cast(pl.Float64),
        pl.col("way_ns").median().alias("usual_ns"),
        pl.col("transfer_ns").min().cast(pl.Float64),
    )
    return [_Meeting(*line) for line in lines.sort("left_ns").drop("meeting").iter_rows()]
