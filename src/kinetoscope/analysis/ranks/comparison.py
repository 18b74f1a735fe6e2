"""The ranks of a run compared, from their parts: who waited for whom, why, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.collectives.pairing import Paired
from kinetoscope.analysis.collectives.recorded import COLLECTIVES, PAIR, hosts_of, members
from kinetoscope.analysis.collectives.waiting import BUSY, collectives_of, waited
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.ranks.attribution import START, attributed
from kinetoscope.analysis.ranks.chance import (
    CHANCE,
    beyond_pace,
    cold_steps,
    lengths,
    loses_in_each_step,
    lost_by_step,
    stands_out,
)
from kinetoscope.analysis.ranks.computed import COMPUTED
from kinetoscope.analysis.ranks.kernels import EVEN_COMPUTE, data_ratio, kernel_cause
from kinetoscope.analysis.ranks.lateness import ALLOCATOR, COMPILE, COMPUTE, HOST, SYNC, with_lateness
from kinetoscope.analysis.ranks.parts import OVERLAPPED, PARTED, Part, part, placed
from kinetoscope.analysis.ranks.without_stragglers import Ideal, without_stragglers
from kinetoscope.sources.run import Run

# A rank is the straggler if for it most of the waiting was; waiting below this share of all time is nobody's.
MOST = 0.5
NEGLIGIBLE = 0.01
# Not by chance: what the others do not do at all in that step.
UNLIKE = (SYNC, COMPILE, ALLOCATOR)
WORST = 3  # ranks that are replayed without their lateness


class Verdict(NamedTuple):
    """``status``: ``even`` (nobody waits), ``straggler``, ``turns`` (one after the other is late),
    ``unknown``.

    Of a straggler: its ``rank``, its ``share`` of the waiting (what of it its own longer ways made, first
    collectives and cold steps left out), the ``cause`` (null: unknown) and what more is known of it.
    ``why`` it is unknown.
    """

    status: str
    rank: int | None = None
    share: float = 0.0
    cause: str | None = None
    detail: str = ""
    why: str = ""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Args:
    parts: one a rank, by rank.
    missing: ranks that the run had and that are not here.
    paired: see there.
    recorded: all collectives with what they waited and what their ranks did on their own (``parts``).
    table: the same, with by how much longer ranks took than others (``lateness``).
    blamed: see there; its causes are those of ``CAUSES``, of compute what its kernels say.
    """

    parts: tuple[Part, ...]
    missing: tuple[int, ...]
    paired: Paired
    recorded: pl.DataFrame
    table: pl.DataFrame
    blamed: pl.DataFrame
    verdict: Verdict
    ideal: Ideal | None


@remembered
def comparison(run: Run) -> Comparison:
    """The ranks of a run that is in memory."""
    hosts = hosts_of(run)
    return compare([placed(part(trace), hosts[trace.rank]) for trace in run.traces], collectives_of(run))


def culprit(run: Run) -> tuple[int | None, float]:
    """The straggler and its share of the waiting, as the verdict has them; where nobody is one, who was
    waited for most, the last one where nobody's way took longer. (None, 0) without other ranks.
    """
    found = comparison(run)
    if found.verdict.rank is not None:
        return found.verdict.rank, found.verdict.share
    whole = found.table.filter("complete")["instance"].unique()
    known = found.blamed.filter(
        pl.col("instance").is_in(whole.implode()) & pl.col("cause").ne_missing(START), pl.col("waited_ns") > 0
    )
    each = known.group_by(pl.coalesce("culprit", "last").alias("rank")).agg(pl.col("waited_ns").sum())
    if each.is_empty():
        return None, 0.0
    rank, waited = each.sort("waited_ns", "rank", descending=[True, False]).row(0)
    return int(rank), waited / int(each["waited_ns"].sum())


def compare(parts: Sequence[Part], paired: Paired | None = None) -> Comparison:
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
    without = without_stragglers(warm, _computed(parts), worst)
    return Comparison(tuple(parts), tuple(missing), paired, recorded, table, found, verdict, without)


def _paired(parts: Sequence[Part], recorded: pl.DataFrame, world: int | None) -> Paired:
    overlapped = [
        part.overlapped.select(pl.lit(part.facts.rank, pl.Int32).alias("rank"), *OVERLAPPED) for part in parts
    ]
    facts = [part.facts for part in parts]
    windows = {one.rank: (one.start_ns, one.start_ns + one.window_ns) for one in facts}
    hosts = {one.rank: one.host for one in facts}
    return waited(recorded, pl.concat([pl.DataFrame(schema=BUSY), *overlapped]), windows, world, hosts)


def _computed(parts: Sequence[Part]) -> pl.DataFrame:
    own = [part.computed.with_columns(pl.lit(part.facts.rank, pl.Int32).alias("rank")) for part in parts]
    return pl.concat(own) if own else pl.DataFrame(schema={**COMPUTED, "rank": pl.Int32})


def _explained(found: pl.DataFrame, parts: Sequence[Part]) -> pl.DataFrame:
    """With what its kernels say (``detail``) where a rank computed longer than its peers."""
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
    table: pl.DataFrame, found: pl.DataFrame, parts: Sequence[Part], cold: Sequence[str], lacking: bool
) -> Verdict:
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
    own = table.with_columns(unknown.alias("unknown")).filter(
        pl.lit(True) if verdict.rank is None else pl.col("rank") == verdict.rank,
        pl.col("instance").is_not_null(),
    )
    judged = steps.filter(~pl.col("name").is_in(own.filter("unknown")["step"].implode()))
    steps = judged if len(judged) else steps
    # What it computed the others did as well, if its kernels took no longer.
    late = found.filter(pl.col("cause").ne_missing(COMPUTE))
    # Part of what a stage loses is hidden in the pipeline's bubbles, and its stages need not be equal.
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
    return Verdict("unknown" if lacking or is_pipeline else "even", why=why)


def _verdict(table: pl.DataFrame, found: pl.DataFrame, time_ns: int, lacking: bool) -> Verdict:
    started = found.filter(pl.col("cause") == START)["instance"]
    firsts = table.filter(pl.col("own_ns").is_null())["instance"].drop_nulls()
    known = table.filter(
        pl.col("basis").is_in(["ranks", "some ranks"])
        & ~pl.col("instance").is_in(pl.concat([started, firsts]).unique().implode())
    )
    if known.is_empty():
        return Verdict("unknown", why="no collective of two ranks could be paired")
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
        return Verdict("unknown" if lacking else "even", why=why)
    each = (
        costs.group_by("culprit").agg(pl.col("cost").sum()).sort("cost", "culprit", descending=[True, False])
    )
    top, cost = each.row(0) if len(each) else (None, 0)
    total = max(1, waited if not lacking else max(waited, int(costs["cost"].sum())))
    if top is not None and cost >= MOST * total and cost >= NEGLIGIBLE * time_ns:
        own = costs.filter(pl.col("culprit") == top)
        by = own.group_by("cause").agg(pl.col("cost").sum(), pl.col("detail").mode().min())
        cause, _, detail = by.sort("cost", "cause", descending=[True, False]).row(0)
        return Verdict("straggler", top, min(1.0, cost / total), cause, detail)
    if sum(each["cost"]) >= MOST * total and not lacking:
        return Verdict("turns", share=min(1.0, cost / total))
    why = (
        "whom they wait for may be missing" if lacking else "what late ranks did is like what their peers did"
    )
    return Verdict("unknown", why=why)


def _attributable(partial: pl.Expr) -> pl.Expr:
    """What a culprit cost the others; in a collective that lacks ranks no more than it itself came late."""
    own = pl.min_horizontal("waited_ns", pl.col("late_ns") * (pl.col("present") - 1))
    return pl.when(partial).then(own).otherwise("waited_ns").alias("cost")
