"""How long a pipeline's steps would take without stragglers, replayed pass by pass, and which stage, rank and
sort of operation makes them longer.

The what-if analysis of "Understanding Stragglers in Large Model Training" (OSDI 2025) on traces: without
stragglers a pass takes as long as the mean of its sort over all ranks and microbatches, a collective as long
as the median of its sort, and what no operation explains (the host) no longer than the median. A slowdown is
of all that with one stage's or one sort's operations as recorded, over all that.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from heapq import nlargest
from statistics import fmean, median
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.collectives.recorded import PAIR
from kinetoscope.analysis.ranks.pipelines import (
    CannotTell,
    Chain,
    ComputeSegment,
    Transfer,
    chain,
    ends,
    passes,
)
from kinetoscope.analysis.ranks.simulator import Operation, replay

EXCHANGE = "exchange"  # of a forward and a backward transfer in one batch, as 1F1B does
HOST = "host"  # what is idle between operations, and no other operation explains
WORKERS = 64  # that are replayed each alone
NEAR_NS = 10_000  # by which what an operation waits for may seem to end after it began
MOST = 50_000  # operations that are replayed: of more, the first steps
ERROR = 0.05  # of the replay of what was recorded: beyond it nothing is concluded


class Staged(NamedTuple):
    """Times in ns, from the first operation's beginning to the last one's end. ``without``: one rank's
    lateness; slowdowns ``by_stage`` (its ranks), ``by_worker`` (a data-parallel one's ranks; of more than
    ``WORKERS`` those that lose most, of one none) and ``by_sort`` of operation."""

    steps: int
    recorded_ns: int
    replayed_ns: int
    ideal_ns: int
    without: dict[int, int]
    by_stage: dict[tuple[int, ...], float]
    by_worker: dict[tuple[int, ...], float]
    by_sort: dict[str, float]


@dataclass
class _Node:
    """A segment of computing, or a rank's end of a collective; times on one clock.

    ``signature`` is what it is measured by: its sort, and of collectives their size.
    """

    rank: int
    sort: str
    like: str
    launched_ns: int
    came_ns: float
    left_ns: float
    semantics: str = ""  # of a collective
    instance: int | None = None
    is_sender: bool = False
    sent: int | None = None  # of a receive what it was sent, where that was buffered
    after: list[int] = field(default_factory=list[int])
    took_ns: float = 0.0
    usual_ns: float = 0.0
    delay_ns: float = 0.0
    usual_delay_ns: float = 0.0

    @property
    def computes(self) -> bool:
        return not self.semantics


def staged(table: pl.DataFrame, computed: pl.DataFrame, worst: Sequence[int] = ()) -> Staged:
    """Replay the steps of a pipeline.

    Args:
        table: collectives of all ranks with what they waited (``waits``).
        computed: ``segments`` of all ranks, with ``rank``.
        worst: ranks to replay without their own lateness, one by one.

    Raises:
        CannotTell: its stages, passes and transfers do not fit each other.
    """
    table = ends(table)
    found = chain(table)
    job = _Job(found)
    names = table.sort("start_ns")["step"].unique(maintain_order=True)
    met, done = (one.partition_by("step", as_dict=True) for one in (table, _on_one_clock(computed, table)))
    why: CannotTell | None = None
    for name in names:
        if job.count and len(job.nodes) + len(met[name,]) + len(done.get((name,), [])) > MOST:
            break
        try:
            job.add(met[name,], done.get((name,), computed.clear()))
        except CannotTell as reason:
            why = why or reason
            if job.count:
                break  # what a rank does between two steps that do not follow each other is not known
    if not job.count:
        raise why or CannotTell("no step was recorded")
    return job.replayed(worst)


def _on_one_clock(computed: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """Segments with ``clock_ns``, as at the collective next to them."""
    known = table.select("rank", "start_ns", "clock_ns").drop_nulls().sort("start_ns")
    return computed.sort("start_ns").join_asof(
        known, on="start_ns", by="rank", strategy="nearest", check_sortedness=False
    )


class _Job:
    """Operations of all ranks, step after step."""

    def __init__(self, found: Chain) -> None:
        self.chain, self.count = found, 0
        self.nodes: list[_Node] = []
        self.groups: list[list[int]] = []  # of each pass its segments
        self.lasts: dict[int, int] = {}  # of each rank its last segment

    def add(self, met: pl.DataFrame, computed: pl.DataFrame) -> None:
        """One step of all ranks.

        Raises:
            CannotTell: its passes are not known; then nothing of it is added.
        """
        unknown = pl.col("instance").is_null() | (pl.col("ways").list.len() == 0)
        if met.select((unknown & (pl.col("semantics") == PAIR)).any()).item():
            raise CannotTell("of a send or receive the other end is not known")
        made = [
            self._of_rank(rank, met.filter(pl.col("rank") == rank), computed.filter(pl.col("rank") == rank))
            for rank in self.chain.stage
        ]
        for nodes, groups, needs in made:
            first = len(self.nodes)
            for places in groups:
                self.groups.append([first + place for place in places])
            self.nodes += nodes
            self._follow(nodes, first, needs)
        self.count += 1

    def _of_rank(
        self, rank: int, met: pl.DataFrame, computed: pl.DataFrame
    ) -> tuple[list[_Node], list[list[int]], dict[int, list[int]]]:
        """Its operations in the order of their launches, the places of each pass's segments, and what its
        passes need of the transfers."""
        columns = ("launched_ns", "ways", "semantics", "kind", "bytes", "instance", "start_ns", "end_ns",
                   "clock_ns", "transfer_ns")  # fmt: skip
        nodes: list[_Node] = []
        transfers: list[Transfer] = []
        for launched, both, semantics, kind, size, instance, start, end, clock, took in met.select(
            pl.col("launched_ns").fill_null(pl.col("start_ns")), *columns[1:]
        ).iter_rows():
            sort = kind
            if semantics == PAIR:
                sort = EXCHANGE
                if len(both) == 1:
                    is_forward = self.chain.after.get(both[0][0]) == both[0][1]
                    sort = f"{'forward' if is_forward else 'backward'} transfer"
                transfers += [Transfer(len(nodes), launched, *way) for way in both]
            ahead = clock or 0
            nodes.append(
                _Node(rank, sort, f"{sort} {size}", launched, start - ahead, end - ahead, semantics, instance,
                      semantics == PAIR and all(source == rank for source, _ in both),
                      took_ns=end - start if took is None else took)
            )  # fmt: skip
        segments: list[ComputeSegment] = []
        for what, launched, start, end, clock in computed.select(
            "what", "launched_ns", "start_ns", "end_ns", "clock_ns"
        ).iter_rows():
            ahead = clock or 0
            segments.append(ComputeSegment(len(nodes), launched, what, end - start))
            nodes.append(_Node(rank, what, what, launched, start - ahead, end - ahead, took_ns=end - start))
        made = passes(rank, self.chain, segments, transfers)
        for one in made:
            for row in one.rows:
                nodes[row].sort = nodes[row].like = one.what
        order = sorted(range(len(nodes)), key=lambda row: nodes[row].launched_ns)
        place = {row: at for at, row in enumerate(order)}
        return (
            [nodes[row] for row in order],
            [[place[row] for row in one.rows] for one in made],
            {place[one.rows[0]]: [place[row] for row in one.needs] for one in made},
        )

    def _follow(self, nodes: Sequence[_Node], first: int, needs: Mapping[int, Sequence[int]]) -> None:
        """What each waits for on its own rank: the segment launched before it, what its pass ``needs``, and,
        where it began later than that, what had ended last."""
        last = self.lasts.get(nodes[0].rank)
        ended: list[tuple[float, int]] = []
        for place, one in enumerate(nodes):
            one.after = [
                *([] if last is None else [last]),
                *(first + other for other in needs.get(place, ())),
            ]
            ready = max((self.nodes[row].left_ns for row in one.after), default=float("-inf"))
            latest = bisect_right(ended, (one.came_ns + NEAR_NS, len(self.nodes))) - 1
            if latest >= 0 and ended[latest][0] > ready:
                one.after.append(ended[latest][1])
            insort(ended, (one.left_ns, first + place))
            if one.computes:
                last = first + place
        if last is not None:
            self.lasts[nodes[0].rank] = last

    def replayed(self, worst: Sequence[int]) -> Staged:
        """What the steps take as recorded, and without stragglers.

        Raises:
            CannotTell: replayed as recorded they take another time than recorded.
        """
        self._measure()
        instances = self._instances()
        places = {row: place for place, row in enumerate(row for group in instances for row in group)}

        def run(is_usual: Callable[[_Node], bool], is_prompt: Callable[[_Node], bool]) -> float:
            """How long it takes with these as usual, and these begun as promptly as usual."""
            lines = (
                [
                    Operation(
                        [places[other] for other in one.after],
                        min(one.delay_ns, one.usual_delay_ns) if is_prompt(one) else one.delay_ns,
                        one.usual_ns if is_usual(one) else one.took_ns,
                        needs=() if one.sent is None else (places[one.sent],),
                    )
                    for one in (self.nodes[row] for row in group)
                ]
                for group in instances
            )
            return max(replay(lines))

        def nothing(one: _Node) -> bool:
            return False

        def all_of(one: _Node) -> bool:
            return True

        recorded = max(one.left_ns for one in self.nodes) - min(one.came_ns for one in self.nodes)
        whole, without = run(nothing, nothing), run(all_of, all_of)
        if abs(whole / recorded - 1) > ERROR:
            raise CannotTell(f"replayed, its steps take {whole / recorded - 1:+.0%} of what was recorded")
        stages: dict[int, list[int]] = {}
        for rank, stage in sorted(self.chain.stage.items()):
            stages.setdefault(stage, []).append(rank)

        def alone(rank: int) -> float:
            def is_its(one: _Node) -> bool:
                return one.rank == rank

            return run(is_its, is_its)

        def but(ranks: tuple[int, ...]) -> float:
            """With what those computed, sent and waited for their hosts as recorded."""

            def is_other(one: _Node) -> bool:
                return one.rank not in ranks

            return run(is_other, lambda one: is_other(one) or not one.computes) / without

        sorts = dict.fromkeys(one.sort for one in self.nodes)
        by_sort = {sort: run(lambda one, sort=sort: one.sort != sort, all_of) / without for sort in sorts}
        return Staged(
            self.count, round(recorded), round(whole), round(without),
            {rank: round(alone(rank)) for rank in worst},
            {tuple(ranks): but(tuple(ranks)) for _, ranks in sorted(stages.items())},
            {ranks: but(ranks) for ranks in self._workers()},
            by_sort | {HOST: run(all_of, lambda one: not one.computes) / without},
        )  # fmt: skip

    def _workers(self) -> list[tuple[int, ...]]:
        """Those to replay alone."""
        found = self.chain.workers()
        lost = dict.fromkeys(self.chain.stage, 0.0)
        for one in self.nodes:
            lost[one.rank] += one.took_ns - one.usual_ns + max(0.0, one.delay_ns - one.usual_delay_ns)
        most = nlargest(WORKERS, found, key=lambda ranks: sum(lost[rank] for rank in ranks))
        return sorted(most) if len(found) > 1 else []

    def _measure(self) -> None:
        """What each operation takes, how long after what it waits for it begins, and both as is usual."""
        self._buffer()
        began = min(one.came_ns for one in self.nodes)
        for one in self.nodes:
            ready = max((self.nodes[row].left_ns for row in one.after), default=began)
            one.delay_ns = one.came_ns - ready
        passes: dict[str, list[float]] = {}
        for rows in self.groups:
            passes.setdefault(self.nodes[rows[0]].sort, []).append(
                sum(self.nodes[row].took_ns for row in rows)
            )
        means = {sort: fmean(each) for sort, each in passes.items()}
        for rows in self.groups:
            own = sum(self.nodes[row].took_ns for row in rows)
            for row in rows:
                self.nodes[row].usual_ns = self.nodes[row].took_ns * means[self.nodes[row].sort] / max(own, 1)
        met = [one for one in self.nodes if not one.computes]
        medians = _medians((one.like, one.took_ns) for one in met)
        for one in met:
            one.usual_ns = medians[one.like]
        begins = {rows[0] for rows in self.groups}
        sorts = [f"{one.sort} {row in begins}" for row, one in enumerate(self.nodes)]
        delays = _medians(
            (sort, one.delay_ns) for sort, one in zip(sorts, self.nodes, strict=True) if one.after
        )
        # What a collective began later than the promptest of its sort, it waited for ranks or streams that
        # were not recorded.
        for one in met:
            if one.semantics != PAIR and one.after:
                delays[f"{one.sort} False"] = min(delays[f"{one.sort} False"], one.delay_ns)
        for sort, one in zip(sorts, self.nodes, strict=True):
            one.usual_delay_ns = max(0.0, delays.get(sort, 0.0)) if one.after else one.delay_ns

    def _before(self, row: int) -> list[int]:
        one = self.nodes[row]
        return one.after if one.sent is None else [*one.after, one.sent]

    def _buffer(self) -> None:
        """A sender that left as soon as it could waits for nobody: its data were buffered, or asked for."""
        free = {
            one.instance: row for row, one in enumerate(self.nodes)
            if one.is_sender and one.left_ns <= one.came_ns + one.took_ns + NEAR_NS
        }  # fmt: skip
        for row, one in enumerate(self.nodes):
            if one.instance in free and row != (sent := free[one.instance]):
                one.sent, one.like = sent, f"{one.like} buffered"
                one.took_ns = max(0.0, one.left_ns - max(one.came_ns, self.nodes[sent].left_ns))
        for one in self.nodes:
            one.instance = None if one.instance in free else one.instance

    def _instances(self) -> list[list[int]]:
        """Operations that meet, each after all that they wait for.

        Raises:
            CannotTell: they wait for each other.
        """
        key = [one.instance if one.instance is not None else ~row for row, one in enumerate(self.nodes)]
        groups: dict[int, list[int]] = {}
        for row, instance in enumerate(key):
            groups.setdefault(instance, []).append(row)
        waiting = {
            instance: {key[other] for row in rows for other in self._before(row)}
            for instance, rows in groups.items()
        }
        try:
            return [groups[instance] for instance in TopologicalSorter(waiting).static_order()]
        except CycleError:
            raise CannotTell("operations seem to wait for each other") from None


def _medians(each: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for name, value in each:
        found.setdefault(name, []).append(value)
    return {name: median(values) for name, values in found.items()}
