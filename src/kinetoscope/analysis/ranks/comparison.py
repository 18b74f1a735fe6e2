"""The ranks of a run compared, from their parts: who waited for whom, why, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

import msgspec
import polars as pl

from kinetoscope.analysis.collectives.pairing import Paired
from kinetoscope.analysis.collectives.recorded import COLLECTIVES, PAIR, hosts_of, members
from kinetoscope.analysis.collectives.waiting import BUSY, collectives_of, waited
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.ranks.attribution import EVEN_COMPUTE, START, attributed, data_ratio, kernel_cause
from kinetoscope.analysis.ranks.lateness import ALLOCATOR, COMPILE, COMPUTE, HOST, SYNC, with_lateness
from kinetoscope.analysis.ranks.parts import OVERLAPPED, PARTED, RankPart, part, placed
from kinetoscope.analysis.ranks.pipelines import CannotTell, staged
from kinetoscope.analysis.ranks.without_stragglers import IdealRow, by_collectives
from kinetoscope.sources.run import LoadedRun
from kinetoscope.statistics.intervals import student_t
from kinetoscope.trace.schema import whole

# By what part of a step equal ranks differ in one step, by chance and the profiler: two H200s that do the
# same were found 0.2 apart. What a straggler loses is more than so many times the spread of as many steps.
CHANCE = 0.1
SPREADS = 2.5
NORMAL = 1.4826  # a normal distribution's spread by its median deviation
# By how much longer the hosts of equal ranks take for all that they do, under the profiler: found were 0.3.
PACE = 0.4
# What one rank loses in each of several steps is no chance either if it hardly varies: by Student's t, wrong
# for one of so many equal jobs. A few steps may be equal by chance, so it is taken to vary by so much of one.
MISTAKEN = 0.01
VARIES = 0.005
COLD = 3  # times as long as the median of those after it: a recording's first steps, which load and tune


def cold_steps(parts: Sequence[RankPart]) -> list[str]:
    """The names of first steps that took most ranks much longer than those after; with them what was recorded
    before the first step."""
    each = lengths(parts).group_by("name", maintain_order=True).agg(pl.col("length_ns").median())
    names, times = each["name"].to_list(), each["length_ns"].to_list()
    count = 0
    while len(times) > count + 1 and times[count] > COLD * median(times[count + 1 :]):
        count += 1
    return ["", *names[:count]] if count else []


def lengths(parts: Sequence[RankPart]) -> pl.DataFrame:
    """``rank``, ``name`` and ``length_ns`` of the steps in which ranks meet, in order."""
    found = [pl.DataFrame(schema={"rank": pl.Int32, "name": pl.String, "length_ns": pl.Int64})]
    for one in parts:
        steps = one.steps.filter(pl.col("name").is_in(one.collectives["step"].unique().implode()))
        rank = pl.lit(one.facts.rank, pl.Int32).alias("rank")
        found.append(steps.select(rank, "name", length_ns=pl.col("end_ns") - pl.col("start_ns")))
    return pl.concat(found)


def lost_by_step(late: pl.DataFrame, steps: pl.DataFrame, rank: int | None, *, after_cold: bool) -> list[int]:
    """Time that a rank lost in each step beyond any other rank, ns, below zero where another one lost more,
    as it is half of the time or more among equal ranks. For no rank, the time that all of them lost together.
    Empty where no steps were recorded.

    Args:
        late: the collectives into which a rank came late, with ``last`` and ``lost_ns``.
        steps: see ``lengths``.
        after_cold: of the first of them a part is not known, since its way began in a cold step.
    """
    names = steps["name"].unique(maintain_order=True).to_list()
    names = names[1:] if after_cold and len(names) > 1 else names
    lost = late.group_by("step", "last").agg(pl.col("lost_ns").clip(0).sum())
    known: dict[str, dict[int, int]] = {name: {} for name in names}
    for step, last, length in lost.filter(pl.col("step").is_in(names)).iter_rows():
        known[step][last] = length
    if rank is None:
        return [sum(each.values()) for each in known.values()]
    return [each.pop(rank, 0) - max(each.values(), default=0) for each in known.values()]


def stands_out(lost: Sequence[int], steps: pl.DataFrame, chance: float, *, is_one: bool) -> bool:
    """Whether what one rank lost, or all did in turn, is more than chance, by how many steps there are and
    how much they differ. By chance one rank is late in some steps and early in others; some rank is late in
    each. Where no steps were recorded nothing is known of chance.

    Args:
        lost: see ``lost_by_step``.
        steps: see ``lengths``.
        chance: the least by which steps differ, of a step.
    """
    if not lost:
        return True
    apart = whole(median(abs(one - median(lost)) for one in lost)) if len(lost) > 2 else 0
    spread = max(chance * whole(steps["length_ns"].median()), NORMAL * apart)
    return sum(lost) > SPREADS * spread * len(lost) ** (0.5 if is_one else 1)


def loses_in_each_step(lost: Sequence[int], steps: pl.DataFrame) -> bool:
    """Whether one rank loses about as much in each step, as equal ranks do not. Two steps do not tell.

    Args:
        lost: see ``lost_by_step``. steps: see ``lengths``.
    """
    if len(lost) < 3:
        return False
    varies = max(stdev(lost), VARIES * whole(steps["length_ns"].median()))
    certain = student_t(1 - MISTAKEN / steps["rank"].n_unique(), len(lost) - 1)
    return mean(lost) > certain * varies / math.sqrt(len(lost))


def beyond_pace(late: pl.DataFrame, table: pl.DataFrame, rank: int, host: str) -> pl.DataFrame:
    """A rank's lost time, less what its host loses by being slower at all that it does, by ``PACE`` or less.

    Args:
        late: the collectives into which it came last.
        table: collectives of all ranks, with ``host_ns``.
        host: the cause that is meant.
    """
    others = (
        table.filter(pl.col("rank") != rank, pl.col("host_ns") > 0)
        .group_by("instance")
        .agg(usual=pl.col("host_ns").median())
    )
    ways = table.filter(pl.col("rank") == rank).join(others, on="instance")
    pace = min(
        max(float(ways.select((pl.col("host_ns") / pl.col("usual")).median()).item() or 1.0) - 1, 0.0), PACE
    )
    slower = pl.when(pl.col("cause") == host).then(pace * pl.col("usual_host_ns")).otherwise(0)
    return late.with_columns((pl.col("lost_ns") - slower).cast(pl.Int64))


# A rank is the straggler if for it most of the waiting was; waiting below this share of all time has no
# straggler.
MOST = 0.5
NEGLIGIBLE = 0.01
# Not by chance: what the others do not do at all in that step.
UNLIKE = (SYNC, COMPILE, ALLOCATOR)
WORST = 3  # ranks that are replayed without their lateness


class RankVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """``status``: even | straggler | turns | unknown. Of a straggler: its rank, its share of the waiting
    (the part that its own longer segments made, first collectives and cold steps left out), and why it was
    late (null: unknown): slow kernel | clocks | more work | more data | compute | host |
    data loader | synchronization | recompilation | allocator. ``why`` it is unknown, or even though ranks
    wait."""

    status: str
    rank: int | None = None
    share_of_waiting: float = 0.0
    cause: str | None = None
    detail: str = ""
    why: str = ""


@dataclass(frozen=True, eq=False)
class RankComparison:
    """Args:
    parts: one a rank, by rank.
    missing: ranks that the run had and that are not here.
    paired: see there.
    recorded: all collectives with what they waited and what their ranks did on their own (``parts``).
    table: the same, with by how much longer ranks took than others (``lateness``).
    attributed: see there; its causes are those of ``CAUSES``, of compute what its kernels show."""

    parts: tuple[RankPart, ...]
    missing: tuple[int, ...]
    paired: Paired
    recorded: pl.DataFrame
    table: pl.DataFrame
    attributed: pl.DataFrame
    verdict: RankVerdict
    ideal: IdealRow | None


@remembered
def comparison(run: LoadedRun) -> RankComparison:
    """The ranks of a run that is in memory."""
    hosts = hosts_of(run)
    return compare([placed(part(trace), hosts[trace.rank]) for trace in run.traces], collectives_of(run))


def culprit(run: LoadedRun) -> tuple[int | None, float]:
    """The straggler and its share of the waiting, as the verdict has them; without one, the rank that was
    waited for most, the last to come where no rank's segment took longer. (None, 0) without other ranks."""
    found = comparison(run)
    if found.verdict.rank is not None:
        return found.verdict.rank, found.verdict.share_of_waiting
    whole = found.table.filter("complete")["instance"].unique()
    known = found.attributed.filter(
        pl.col("instance").is_in(whole.implode()) & pl.col("cause").ne_missing(START), pl.col("waited_ns") > 0
    )
    each = known.group_by(pl.coalesce("culprit", "last").alias("rank")).agg(pl.col("waited_ns").sum())
    if each.is_empty():
        return None, 0.0
    rank, waited = each.sort("waited_ns", "rank", descending=[True, False]).row(0)
    return int(rank), waited / int(each["waited_ns"].sum())


def compare(parts: Sequence[RankPart], paired: Paired | None = None) -> RankComparison:
    """Compare ranks by their parts, one a rank.

    Args:
        paired: their collectives, where they have been paired (see ``collectives.waiting``).
    """
    parts = sorted(parts, key=lambda part: part.facts.rank)
    here = {part.facts.rank for part in parts}
    world = max((part.facts.world or 0 for part in parts), default=0)
    recorded = pl.concat([pl.DataFrame(schema=PARTED), *(part.collectives for part in parts)])
    grouped = {rank for group in recorded["group"].unique() for rank in members(group)}
    missing = sorted({*range(world), *grouped} - here)
    paired = paired or _paired(parts, recorded.select(list(COLLECTIVES)), world or None)
    own = recorded.select("rank", "id", pl.exclude(list(COLLECTIVES)))
    recorded = paired.table.join(own, on=["rank", "id"], how="left", maintain_order="left")
    table = with_lateness(recorded)
    cold = cold_steps(parts)
    found = _explained(attributed(table, cold), parts)
    when_cold = found.filter(pl.col("where").is_in(cold))["instance"].implode()
    warm = table.filter(~pl.col("step").is_in(cold), ~pl.col("instance").is_in(when_cold).fill_null(False))
    verdict = _standing_out(warm, found, parts, cold, bool(missing))
    costs = found.drop_nulls("culprit").group_by("culprit").agg(pl.col("waited_ns").sum())
    worst = costs.sort("waited_ns", "culprit", descending=[True, False])["culprit"].head(WORST).to_list()
    ideal = _ideal(warm, parts, worst)
    return RankComparison(tuple(parts), tuple(missing), paired, recorded, table, found, verdict, ideal)


def _paired(parts: Sequence[RankPart], recorded: pl.DataFrame, world: int | None) -> Paired:
    overlapped = [
        part.overlapped.select(pl.lit(part.facts.rank, pl.Int32).alias("rank"), *OVERLAPPED) for part in parts
    ]
    facts = [part.facts for part in parts]
    windows = {one.rank: (one.start_ns, one.start_ns + one.window_ns) for one in facts}
    hosts = {one.rank: one.host for one in facts}
    return waited(recorded, pl.concat([pl.DataFrame(schema=BUSY), *overlapped]), windows, world, hosts)


def _ideal(table: pl.DataFrame, parts: Sequence[RankPart], worst: Sequence[int]) -> IdealRow | None:
    """The run without stragglers: a pipeline by its passes, where they are known, else by its collectives."""
    ideal = by_collectives(table, worst)
    if ideal is None or not (table["semantics"] == PAIR).any():
        return ideal
    computed = [part.computed.with_columns(rank=pl.lit(part.facts.rank, pl.Int32)) for part in parts]
    try:
        return staged(table, pl.concat(computed), worst)
    except CannotTell as reason:
        return msgspec.structs.replace(ideal, why=str(reason))


def _explained(found: pl.DataFrame, parts: Sequence[RankPart]) -> pl.DataFrame:
    """Add ``detail``: what the kernels show of a rank that computed longer than its peers."""
    kernels = pl.concat(
        [part.kernels.with_columns(rank=pl.lit(part.facts.rank, pl.Int32)) for part in parts],
        how="vertical",
    ) if parts else pl.DataFrame()  # fmt: skip
    asked = found.filter(pl.col("cause") == COMPUTE).select("culprit", "where").unique()
    given = pl.concat([pl.DataFrame(schema=PARTED), *(part.collectives for part in parts)])
    said = {
        (rank, step): kernel_cause(kernels, rank, step, data_ratio(given, rank, step))
        for rank, step in asked.iter_rows()
    }
    causes, details = [], []
    for rank, step, cause in found.select("culprit", "where", "cause").iter_rows():
        cause, detail = said[rank, step] if cause == COMPUTE else (cause, "")
        causes.append(COMPUTE if cause == EVEN_COMPUTE else cause)
        details.append(detail)
    return found.with_columns(pl.Series("cause", causes, pl.String), pl.Series("detail", details, pl.String))


def _standing_out(
    table: pl.DataFrame, found: pl.DataFrame, parts: Sequence[RankPart], cold: Sequence[str], lacking: bool
) -> RankVerdict:
    """The verdict on what is no cold start, unless it may be chance."""
    found = found.filter(~pl.col("where").is_in(cold), ~pl.col("step").is_in(cold))
    steps = lengths(parts).filter(~pl.col("name").is_in(cold))
    time_ns = int(steps["length_ns"].sum()) if cold else sum(part.facts.window_ns for part in parts)
    verdict = _verdict(table, found, time_ns, lacking)
    if verdict.rank is None and verdict.status != "turns":
        return verdict
    chance = 0.0 if verdict.cause in UNLIKE else CHANCE
    # Into a rank's first collective its way is not known: of the steps that hold one nothing is known.
    started = found.filter(pl.col("cause") == START)["instance"].implode()
    unknown = pl.col("own_ns").is_null().any().over("instance") | pl.col("instance").is_in(started)
    own = table.with_columns(unknown=unknown).filter(
        pl.lit(True) if verdict.rank is None else pl.col("rank") == verdict.rank,
        pl.col("instance").is_not_null(),
    )
    judged = steps.filter(~pl.col("name").is_in(own.filter("unknown")["step"].implode()))
    steps = judged if len(judged) else steps
    # What it computed the others did as well, if its kernels took no longer.
    late = found.filter(pl.col("cause").ne_missing(COMPUTE))
    # RankPart of what a stage loses is hidden in the pipeline's bubbles, and its stages need not be equal.
    is_pipeline = bool((table["semantics"] == PAIR).any())
    rank = verdict.rank
    if rank is not None:
        others = late.filter(pl.col("last") != rank, pl.lit(not is_pipeline))
        late = pl.concat([others, beyond_pace(late.filter(pl.col("last") == rank), table, rank, HOST)])
    lost = lost_by_step(late, steps, rank, after_cold=bool(cold))
    if stands_out(lost, steps, chance, is_one=rank is not None):
        return verdict
    if rank is not None and not is_pipeline and loses_in_each_step(lost, steps):
        return verdict
    why = "no rank stands out from how much steps differ by chance"
    return RankVerdict(status="unknown" if lacking or is_pipeline else "even", why=why)


def _verdict(table: pl.DataFrame, found: pl.DataFrame, time_ns: int, lacking: bool) -> RankVerdict:
    started = found.filter(pl.col("cause") == START)["instance"]
    firsts = table.filter(pl.col("own_ns").is_null())["instance"].drop_nulls()
    known = table.filter(
        pl.col("basis").is_in(["ranks", "some ranks"])
        & ~pl.col("instance").is_in(pl.concat([started, firsts]).unique().implode())
    )
    if known.is_empty():
        return RankVerdict(status="unknown", why="no collective of two ranks could be paired")
    is_pipeline = bool((known["semantics"] == PAIR).any())
    partial = table.filter(pl.col("complete").is_not_null() & ~pl.col("complete"))["instance"].unique()
    lacking = lacking or len(partial) > 0
    costs = found.filter(pl.col("culprit").is_not_null()).with_columns(
        _attributable(pl.col("instance").is_in(partial.implode()))
    )
    # A pipeline's stages wait for each other, whoever is late or not.
    waited = int((costs["cost"] if is_pipeline else known["waiting_ns"]).sum())
    if waited < NEGLIGIBLE * time_ns and (costs.is_empty() or not lacking):
        why = "no longer than stages of a pipeline do" if is_pipeline else ""
        why = "ranks are missing or cut short, and those here hardly wait for each other" if lacking else why
        return RankVerdict(status="unknown" if lacking else "even", why=why)
    each = (
        costs.group_by("culprit").agg(pl.col("cost").sum()).sort("cost", "culprit", descending=[True, False])
    )
    top, cost = each.row(0) if len(each) else (None, 0)
    total = max(1, waited if not lacking else max(waited, int(costs["cost"].sum())))
    if top is not None and cost >= MOST * total and cost >= NEGLIGIBLE * time_ns:
        own = costs.filter(pl.col("culprit") == top)
        by = own.group_by("cause").agg(pl.col("cost").sum(), pl.col("detail").mode().min())
        cause, _, detail = by.sort("cost", "cause", descending=[True, False]).row(0)
        return RankVerdict(
            status="straggler", rank=top, share_of_waiting=min(1.0, cost / total), cause=cause, detail=detail
        )
    if sum(each["cost"]) >= MOST * total and not lacking:
        return RankVerdict(status="turns", share_of_waiting=min(1.0, cost / total))
    why = (
        "whom they wait for may be missing" if lacking else "what late ranks did is like what their peers did"
    )
    return RankVerdict(status="unknown", why=why)


def _attributable(partial: pl.Expr) -> pl.Expr:
    """The waiting that a culprit caused; in a collective that lacks ranks no more than it itself came
    late."""
    own = pl.min_horizontal("waited_ns", pl.col("late_ns") * (pl.col("present") - 1))
    return pl.when(partial).then(own).otherwise("waited_ns").alias("cost")
