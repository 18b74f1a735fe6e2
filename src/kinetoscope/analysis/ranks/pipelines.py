"""The stages of a pipeline: who sends to whom, and which pass each transfer is of.

A pass is one microbatch's, forward or backward, on one rank. The nth forward pass of a step begins when the
nth transfer from the stage before is there, and sends the nth to the stage after; backward likewise, the
other way round. So it is in every schedule whose stages make a chain, whatever was launched early; where the
numbers do not agree with that semantics, nothing is said of passes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import nlargest
from statistics import fmean, median
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import polars as pl

from kinetoscope.analysis.collectives.recorded import PAIR, ranges, ways
from kinetoscope.analysis.ranks.parts import BACKWARD, FORWARD, UPDATE
from kinetoscope.analysis.ranks.without_stragglers import (
    Operation,
    PutRight,
    WithoutStragglers,
    ideal_row,
    replay,
)

TINY = 0.05  # of the median pass: what is shorter is no pass, but belongs to a neighbour


class CannotTell(Exception):
    """Why a pipeline's passes are not known."""


class Transfer(NamedTuple):
    """An end of a send and its receive, on its rank."""

    row: int
    launched_ns: int
    source: int
    target: int


class ComputeSegment(NamedTuple):
    """A segment of a rank's computing: see ``segments``."""

    row: int
    launched_ns: int
    what: str
    took_ns: int


class Pass(msgspec.Struct):
    """Segments of one microbatch, or of a step's optimizer, and the transfers that it needs."""

    what: str
    rows: list[int]
    took_ns: int = 0
    is_cut: bool = False  # something was sent or received since the one before
    needs: list[int] = msgspec.field(default_factory=list[int])

    def add(self, other: Pass) -> None:
        self.rows += other.rows
        self.took_ns += other.took_ns


class StageOrder(msgspec.Struct, frozen=True):
    """Who follows whom: by rank the stage after and before, and which stage it is."""

    after: Mapping[int, int]
    before: Mapping[int, int]
    stage: Mapping[int, int]

    def workers(self) -> list[tuple[int, ...]]:
        """The data-parallel workers: of each all its stages' ranks."""
        found = [[rank] for rank in sorted(self.stage) if rank not in self.before]
        for ranks in found:
            while (following := self.after.get(ranks[-1])) is not None:
                ranks.append(following)
        return [tuple(ranks) for ranks in found]


def ends(table: pl.DataFrame) -> pl.DataFrame:
    """Adds to collectives ``ways``: of sends and receives, from which rank to which (see ``collectives``); of
    a batch both ways, of unknown ends none."""
    likes = table.filter(pl.col("semantics") == PAIR).select(pl.col("signature").unique())
    known = pl.Series("ways", [ways(like) for like in likes["signature"]], pl.List(pl.Array(pl.Int32, 2)))
    return table.join(likes.with_columns(known), on="signature", how="left", maintain_order="left")


def chain(table: pl.DataFrame) -> StageOrder:
    """The stages, from a table with ``ends``. What two send each other first in a step goes forward. Raises
    CannotTell where they are no chain."""
    sent = table.filter(pl.col("instance").is_not_null() & (pl.col("ways").list.len() == 1)).with_columns(
        pl.col("ways").list.first().arr.get(place).alias(name)
        for place, name in enumerate(("source", "target"))
    )
    if sent.is_empty():
        raise CannotTell("no send names its two ends")
    first = (
        sent.sort(pl.col("end_ns") - pl.col("clock_ns"))
        .group_by(
            "step", low=pl.min_horizontal("source", "target"), high=pl.max_horizontal("source", "target")
        )
        .agg(pl.col("source").first())
    )
    ways = first.group_by("low", "high").agg(pl.col("source").mode().min()).sort("low", "high")
    after, before = dict[int, int](), dict[int, int]()
    for low, high, source in ways.iter_rows():
        target = high if source == low else low
        if after.setdefault(source, target) != target or before.setdefault(target, source) != source:
            raise CannotTell("a stage sends forward to more than one, or more than one to it")
    stage = dict[int, int]()
    for rank in sorted({*after, *before} - set(before)):
        place: int | None = rank
        while place is not None:
            stage[place] = len(stage) if place == rank else stage[before[place]] + 1
            stage[rank] = 0
            place = after.get(place)
    if len(stage) < len({*after, *before}):
        raise CannotTell("the last stage sends to the first, as where each holds several parts of the model")
    return StageOrder(after, before, stage)


def passes(
    rank: int, found: StageOrder, segments: Sequence[ComputeSegment], transfers: Sequence[Transfer]
) -> list[Pass]:
    """The passes of a rank in one step, in order. Raises CannotTell where transfers do not fit them."""
    made = _passes(segments, transfers)
    ways = (
        (FORWARD, found.before.get(rank), found.after.get(rank)),
        (BACKWARD, found.after.get(rank), found.before.get(rank)),
    )
    for what, origin, goal in ways:
        own = [one for one in made if one.what == what]
        come = [one.row for one in transfers if (one.source, one.target) == (origin, rank)]
        gone = [one.row for one in transfers if (one.source, one.target) == (rank, goal)]
        if not own:
            raise CannotTell(
                f"no {what} pass of rank {rank} was recorded in a step, as where autograd was not"
            )
        for rows, other in ((come, origin), (gone, goal)):
            if other is not None and (not rows or len(rows) % len(own)):
                raise CannotTell(
                    f"rank {rank} runs {len(own)} {what} passes in a step, for which it meets rank {other} "
                    f"{len(rows)} times"
                )
        each = len(come) // len(own)
        for place, one in enumerate(own):
            one.needs = come[place * each : (place + 1) * each]
    return made


def _passes(segments: Sequence[ComputeSegment], transfers: Sequence[Transfer]) -> list[Pass]:
    """Segments of one sort, until something was sent or received; what is tiny joins a neighbour."""
    whole = list(_joined(segments, sorted(one.launched_ns for one in transfers)))
    sorts = {one.what for one in whole}
    usual = max((median(one.took_ns for one in whole if one.what == what) for what in sorts), default=0)
    made: list[Pass] = []
    early: list[Pass] = []
    for one in whole:
        is_tiny = one.what != UPDATE and one.took_ns < TINY * usual
        if is_tiny and not (made and not one.is_cut):
            early.append(one)
            continue
        is_same = bool(made) and (is_tiny or made[-1].what == one.what)
        if is_same and not one.is_cut and not early:
            made[-1].add(one)
        else:
            made.append(Pass(one.what, []))
            for part in (*early, one):
                made[-1].add(part)
            early = []
    last = max((place for place, one in enumerate(made) if one.what == BACKWARD), default=len(made))
    made += early
    for one in made[last + 1 :]:  # after a step's last backward pass no forward one follows
        one.what = UPDATE
    return made


def _joined(segments: Sequence[ComputeSegment], cuts: Sequence[int]) -> Iterator[Pass]:
    """Neighbours of one sort between which nothing was sent or received."""
    made: Pass | None = None
    sent = 0
    for one in sorted(segments, key=lambda one: one.launched_ns):
        before, sent = sent, bisect_left(cuts, one.launched_ns)
        part = Pass(one.what, [one.row], one.took_ns, is_cut=sent > before)
        if made is not None and made.what == one.what and not part.is_cut:
            made.add(part)
            continue
        if made is not None:
            yield made
        made = part
    if made is not None:
        yield made


EXCHANGE = "exchange"  # of a forward and a backward transfer in one batch, as 1F1B does
HOST = "host"  # what is idle between operations, and no other operation explains
WORKERS = 64  # that are replayed each alone
NEAR_NS = 10_000  # by which what an operation waits for may seem to end after it began
MOST = 50_000  # operations that are replayed: of more, the first steps
UNUSUAL = 1.1  # times the mean pass: what takes longer than that is not what its stage has to do
ERROR = 0.05  # of the replay of what was recorded: beyond it nothing is concluded


class _RankOperation(msgspec.Struct):
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
    after: list[int] = msgspec.field(default_factory=list[int])
    took_ns: float = 0.0
    usual_ns: float = 0.0
    delay_ns: float = 0.0
    usual_delay_ns: float = 0.0

    @property
    def computes(self) -> bool:
        return not self.semantics


def staged(
    table: pl.DataFrame, computed: pl.DataFrame, stays: Mapping[int, float] = MappingProxyType({})
) -> WithoutStragglers:
    """Replay the steps of a pipeline. Raises CannotTell where its stages, passes and transfers do not fit
    each other. ``table``: collectives of all ranks with what they waited (``waits``); ``computed``:
    ``segments`` of all ranks, with ``rank``; ``stays``: by rank, which share of its computing is left once it
    computes no longer than usual; of others, the mean of all stages."""
    table = ends(table)
    job = _Job(chain(table))
    ordered = table.sort("start_ns")
    names = ordered["step"].unique(maintain_order=True)
    # On one clock, as at the collective next to each segment.
    clock = ordered.select("rank", "start_ns", "clock_ns").drop_nulls()
    computed = computed.sort("start_ns").join_asof(
        clock, on="start_ns", by="rank", strategy="nearest", check_sortedness=False
    )
    met, done = (one.partition_by("step", as_dict=True) for one in (table, computed))
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
    return job.replayed(stays)


class _Job:
    """Operations of all ranks, step after step."""

    def __init__(self, found: StageOrder) -> None:
        self.chain, self.count = found, 0
        self.second = 0  # the place of the second step's first operation
        self.nodes: list[_RankOperation] = []
        self.groups: list[list[int]] = []  # of each pass its segments
        self.passes: list[tuple[str, int, float]] = []  # of each pass its sort, its rank and its time, ns
        self.means: dict[str, float] = {}  # by sort of pass
        self.lasts: dict[int, int] = {}  # of each rank its last segment

    def add(self, met: pl.DataFrame, computed: pl.DataFrame) -> None:
        """One step of all ranks. Raises CannotTell, with nothing added, where its passes are not known."""
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
        self.second = self.second or len(self.nodes)

    def _of_rank(
        self, rank: int, met: pl.DataFrame, computed: pl.DataFrame
    ) -> tuple[list[_RankOperation], list[list[int]], dict[int, list[int]]]:
        """Its operations in order of launch, each pass's segments, and what passes need of transfers."""
        columns = ("launched_ns", "ways", "semantics", "kind", "bytes", "instance", "start_ns", "end_ns",
                   "clock_ns", "transfer_ns")  # fmt: skip
        nodes: list[_RankOperation] = []
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
                _RankOperation(
                    rank, sort, f"{sort} {size}", launched, start - ahead, end - ahead, semantics, instance,
                    semantics == PAIR and all(source == rank for source, _ in both),
                    took_ns=end - start if took is None else took,
                )
            )  # fmt: skip
        segments: list[ComputeSegment] = []
        for what, launched, start, end, clock in computed.select(
            "what", "launched_ns", "start_ns", "end_ns", "clock_ns"
        ).iter_rows():
            ahead = clock or 0
            segments.append(ComputeSegment(len(nodes), launched, what, end - start))
            nodes.append(
                _RankOperation(rank, what, what, launched, start - ahead, end - ahead, took_ns=end - start)
            )
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

    def _follow(
        self, nodes: Sequence[_RankOperation], first: int, needs: Mapping[int, Sequence[int]]
    ) -> None:
        """Find the operations that each waits for on its own rank: the segment launched before it, those that
        its pass ``needs``, and, where it began later than those ended, the one that had ended last."""
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

    def replayed(self, stays: Mapping[int, float]) -> WithoutStragglers:
        """Replay the steps as recorded, and without stragglers. Raises CannotTell where replayed as recorded
        they take another time than recorded."""
        self._measure()
        instances = self._instances()
        places = {row: place for place, row in enumerate(row for group in instances for row in group)}

        def times(
            is_usual: Callable[[_RankOperation], bool],
            is_prompt: Callable[[_RankOperation], bool],
            took: Callable[[_RankOperation], float] = lambda one: one.took_ns,
        ) -> list[float]:
            """When operations end with these as usual, these begun as promptly as usual, and all others
            taking as long as given."""
            lines = (
                [
                    Operation(
                        [places[other] for other in one.after],
                        min(one.delay_ns, one.usual_delay_ns) if is_prompt(one) else one.delay_ns,
                        one.usual_ns if is_usual(one) else took(one),
                        needs=() if one.sent is None else (places[one.sent],),
                    )
                    for one in (self.nodes[row] for row in group)
                ]
                for group in instances
            )
            return replay(lines)

        def run(
            is_usual: Callable[[_RankOperation], bool], is_prompt: Callable[[_RankOperation], bool]
        ) -> float:
            return max(times(is_usual, is_prompt))

        def after_first(ends: Sequence[float]) -> float:
            """How long the steps after the first take; of one step, that."""
            first = [ends[places[row]] for row in range(self.second)] if self.count > 1 else [0.0]
            return max(ends) - max(first)

        def nothing(one: _RankOperation) -> bool:
            return False

        def all_of(one: _RankOperation) -> bool:
            return True

        recorded = max(one.left_ns for one in self.nodes) - min(one.came_ns for one in self.nodes)
        whole, without = run(nothing, nothing), run(all_of, all_of)
        if abs(whole / recorded - 1) > ERROR:
            raise CannotTell(f"replayed, its steps take {whole / recorded - 1:+.0%} of what was recorded")
        stages: dict[int, list[int]] = {}
        for rank, stage in sorted(self.chain.stage.items()):
            stages.setdefault(stage, []).append(rank)

        def saved(remedy: PutRight) -> float:
            # Of a whole stage that is slow the mean of all stages is one part slow itself.
            others = _means((sort, ns) for sort, rank, ns in self.passes if rank not in remedy.ranks)

            def usual_ns(one: _RankOperation) -> float:
                return one.usual_ns * others.get(one.sort, self.means[one.sort]) / self.means[one.sort]

            def took(one: _RankOperation) -> float:
                if one.instance is not None:
                    return one.took_ns * remedy.transfers.get(one.instance, 1.0)
                left = one.took_ns * (stays[one.rank] if is_its(one) else 1.0)
                # A pass in which its host stalled; a stage that has a little more to do keeps it.
                return usual_ns(one) if is_its(one) and left > UNUSUAL * usual_ns(one) else left

            def is_its(one: _RankOperation) -> bool:
                return one.rank in remedy.ranks and one.computes and one.rank in stays

            def is_usual(one: _RankOperation) -> bool:
                return one.rank in remedy.ranks and one.computes and one.rank not in stays

            ends = times(is_usual, lambda one: one.rank in remedy.ranks, took)
            return 1 - after_first(ends) / max(1.0, after_first(times(nothing, nothing)))

        def but(ranks: Sequence[int]) -> float:
            """The slowdown with these ranks' operations and host delays as recorded."""

            def is_other(one: _RankOperation) -> bool:
                return one.rank not in ranks

            return run(is_other, lambda one: is_other(one) or not one.computes) / without

        sorts = dict.fromkeys(one.sort for one in self.nodes)
        by_sort = {sort: run(lambda one, sort=sort: one.sort != sort, all_of) / without for sort in sorts}
        row = msgspec.structs.replace(
            ideal_row(round(recorded), round(whole), round(without)),
            grain="passes",
            steps=self.count,
            by_stage={ranges(ranks): but(ranks) for _, ranks in sorted(stages.items())},
            by_worker={ranges(ranks): but(ranks) for ranks in self._workers()},
            by_operation=by_sort | {HOST: run(all_of, lambda one: not one.computes) / without},
        )
        return WithoutStragglers(row, saved)

    def _workers(self) -> list[tuple[int, ...]]:
        """The data-parallel workers to replay alone."""
        found = self.chain.workers()
        lost = dict.fromkeys(self.chain.stage, 0.0)
        for one in self.nodes:
            lost[one.rank] += one.took_ns - one.usual_ns + max(0.0, one.delay_ns - one.usual_delay_ns)
        most = nlargest(WORKERS, found, key=lambda ranks: sum(lost[rank] for rank in ranks))
        return sorted(most) if len(found) > 1 else []

    def _measure(self) -> None:
        """Find each operation's time, its delay after those that it waits for, and what is usual of both."""
        self._buffer()
        began = min(one.came_ns for one in self.nodes)
        for one in self.nodes:
            ready = max((self.nodes[row].left_ns for row in one.after), default=began)
            one.delay_ns = one.came_ns - ready
        for rows in self.groups:
            first = self.nodes[rows[0]]
            own = sum(self.nodes[row].took_ns for row in rows)
            self.passes.append((first.sort, first.rank, max(own, 1.0)))
        self.means = _means((sort, ns) for sort, _, ns in self.passes)
        for rows, (_, _, own) in zip(self.groups, self.passes, strict=True):
            for row in rows:
                self.nodes[row].usual_ns = self.nodes[row].took_ns * self.means[self.nodes[row].sort] / own
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
        """A sender that left as soon as it could does not wait: data were buffered or requested before."""
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
        """Operations that meet, after what they wait for. Raises CannotTell of a circle."""
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
    return {name: median(values) for name, values in _by_name(each).items()}


def _means(each: Iterable[tuple[str, float]]) -> dict[str, float]:
    return {name: fmean(values) for name, values in _by_name(each).items()}


def _by_name(each: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for name, value in each:
        found.setdefault(name, []).append(value)
    return found
