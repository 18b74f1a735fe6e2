"""The ranks of a run compared, from their parts: who waited for whom, why, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.compared.chance import CHANCE, beyond_pace, cold_steps, lengths, stands_out
from kinetoscope.analysis.compared.parts import PARTED, STRETCHES, Part, part, placed
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.ranks.blame import START, blamed
from kinetoscope.analysis.ranks.collectives import PAIR, hosts_of, members
from kinetoscope.analysis.ranks.ideal import Ideal, without_stragglers
from kinetoscope.analysis.ranks.kernels import EVEN_COMPUTE, data_ratio, kernel_cause
from kinetoscope.analysis.ranks.pairing import Paired, paired
from kinetoscope.analysis.ranks.stretches import COMPUTED
from kinetoscope.analysis.ranks.waits import waits
from kinetoscope.sources.run import Run

# Why a rank was late: what its device did, or was idle for, that those of its peers did not.
COMPUTE, SYNC, COMPILE, ALLOCATOR = "compute", "synchronization", "recompilation", "allocator"
HOST = "host"
CAUSES = {
    COMPUTE: ["busy"],
    HOST: ["launch-bound", "host-op", "unexplained"],
    "data loader": ["data-loading"],
    SYNC: ["synchronization"],
    COMPILE: ["compilation"],
    ALLOCATOR: ["allocator"],
}
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
    collectives and cold steps left out), the ``cause`` (null: cannot be told) and what more is known of it.
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
    table: all collectives with what they waited, exposed waiting and exposed transfer among it.
    blamed: see there; its causes are those of ``CAUSES``, of compute what its kernels say.
    """

    parts: tuple[Part, ...]
    missing: tuple[int, ...]
    paired: Paired
    table: pl.DataFrame
    blamed: pl.DataFrame
    verdict: Verdict
    ideal: Ideal | None


@remembered
def comparison(run: Run) -> Comparison:
    """The ranks of a run that is in memory."""
    hosts = hosts_of(run)
    return compare([placed(part(trace), hosts[trace.rank]) for trace in run.traces])


def culprit(run: Run) -> tuple[int | None, float]:
    """The straggler and its share of the waiting, as the verdict has them; where nobody is one, who was
    waited for most, the last one where nobody's way took longer. (None, 0) without other ranks.
    """
    found = comparison(run)
    if found.verdict.rank is not None:
        return found.verdict.rank, found.verdict.share
    whole = found.table.filter("complete")["meeting"].unique()
    known = found.blamed.filter(
        pl.col("meeting").is_in(whole.implode()) & pl.col("cause").ne_missing(START), pl.col("waited_ns") > 0
    )
    each = known.group_by(pl.coalesce("culprit", "last").alias("rank")).agg(pl.col("waited_ns").sum())
    if each.is_empty():
        return None, 0.0
    rank, waited = each.sort("waited_ns", "rank", descending=[True, False]).row(0)
    return int(rank), waited / int(each["waited_ns"].sum())


def compare(parts: Sequence[Part]) -> Comparison:
    """Compare ranks by their parts, one a rank."""
    parts = sorted(parts, key=lambda part: part.facts.rank)
    here = {part.facts.rank for part in parts}
    world = max((part.facts.world or 0 for part in parts), default=0)
    table = pl.concat([pl.DataFrame(schema=PARTED), *(part.collectives for part in parts)])
    grouped = {rank for group in table["group"].unique() for rank in members(group)}
    missing = sorted({*range(world), *grouped} - here)
    met = paired(table, world or None, {part.facts.rank: part.facts.host for part in parts})
    table = _exposed(waits(met.table, met.residuals))
    for cause, columns in CAUSES.items():
        table = table.with_columns(pl.sum_horizontal(columns).alias(cause))
    cold = cold_steps(parts)
    found = _explained(blamed(table, list(CAUSES), [COMPUTE, SYNC], cold), parts)
    chilled = found.filter(pl.col("where").is_in(cold))["meeting"].implode()
    warm = table.filter(~pl.col("step").is_in(cold), ~pl.col("meeting").is_in(chilled).fill_null(False))
    verdict = _standing_out(warm, found, parts, cold, bool(missing))
    costs = found.drop_nulls("culprit").group_by("culprit").agg(pl.col("waited_ns").sum())
    worst = costs.top_k(WORST, by="waited_ns")["culprit"].to_list()
    without = without_stragglers(warm, _computed(parts), [COMPUTE, SYNC], worst)
    return Comparison(tuple(parts), tuple(missing), met, table, found, verdict, without)


def _computed(parts: Sequence[Part]) -> pl.DataFrame:
    own = [part.computed.with_columns(pl.lit(part.facts.rank, pl.Int32).alias("rank")) for part in parts]
    return pl.concat(own) if own else pl.DataFrame(schema={**COMPUTED, "rank": pl.Int32})


def _exposed(table: pl.DataFrame) -> pl.DataFrame:
    """Adds ``exposed_waiting_ns`` and ``exposed_transfer_ns``: what the device computed or copied beside is
    taken out, to a part of ``STRETCHES`` exactly."""
    share = pl.col("waiting_ns") / pl.col("duration_ns").clip(1) * STRETCHES
    beside = [
        pl.col("beside_ns").list.get(k, null_on_oob=True).fill_null(0) * (share - k).clip(0, 1)
        for k in range(STRETCHES)
    ]
    hidden = pl.sum_horizontal(beside).round().cast(pl.Int64)
    whole = pl.col("duration_ns") - pl.col("beside_ns").list.sum()
    exposed = (pl.col("waiting_ns") - hidden).clip(0)
    return table.with_columns(exposed.alias("exposed_waiting_ns")).with_columns(
        (whole - pl.col("exposed_waiting_ns")).clip(0).alias("exposed_transfer_ns")
    )


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
    if verdict.rank is None:
        return verdict
    chance = 0.0 if verdict.cause in UNLIKE else CHANCE
    # Into a rank's first collective its way is not known: of the steps that hold one nothing can be told.
    started = found.filter(pl.col("cause") == START)["meeting"].implode()
    untold = pl.col("own_ns").is_null().any().over("meeting") | pl.col("meeting").is_in(started)
    own = table.with_columns(untold.alias("untold")).filter(
        pl.col("rank") == verdict.rank, pl.col("meeting").is_not_null()
    )
    judged = steps.filter(~pl.col("name").is_in(own.filter("untold")["step"].implode()))
    steps = judged if len(judged) else steps
    # What it computed in its way the others did beside their waiting, if its kernels took no longer.
    late = found.filter(pl.col("last") == verdict.rank, pl.col("cause").ne_missing(COMPUTE))
    if stands_out(beyond_pace(late, table, verdict.rank, HOST), steps, chance, after_cold=bool(cold)):
        return verdict
    why = "no rank stands out from how much steps differ by chance"
    # Part of what a stage loses is hidden in the pipeline's bubbles.
    is_hidden = bool((table["law"] == PAIR).any())
    return Verdict("unknown" if lacking or is_hidden else "even", why=why)


def _verdict(table: pl.DataFrame, found: pl.DataFrame, time_ns: int, lacking: bool) -> Verdict:
    started = found.filter(pl.col("cause") == START)["meeting"]
    firsts = table.filter(pl.col("own_ns").is_null())["meeting"].drop_nulls()
    known = table.filter(
        pl.col("basis").is_in(["ranks", "some ranks"])
        & ~pl.col("meeting").is_in(pl.concat([started, firsts]).unique().implode())
    )
    if known.is_empty():
        return Verdict("unknown", why="no collective of two ranks could be paired")
    is_pipeline = bool((known["law"] == PAIR).any())
    partial = table.filter(pl.col("complete").is_not_null() & ~pl.col("complete"))["meeting"].unique()
    lacking = lacking or len(partial) > 0
    costs = found.filter(pl.col("culprit").is_not_null()).with_columns(
        _attributable(pl.col("meeting").is_in(partial.implode()))
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
        by = own.group_by("cause").agg(pl.col("cost").sum(), pl.col("detail").mode().first())
        cause, _, detail = by.sort("cost", "cause", descending=[True, False]).row(0)
        return Verdict("straggler", top, min(1.0, cost / total), cause, detail)
    if sum(each["cost"]) >= MOST * total and not lacking:
        return Verdict("turns", share=min(1.0, cost / total))
    why = (
        "whom they wait for may be missing" if lacking else "what late ranks did is like what their peers did"
    )
    return Verdict("unknown", why=why)


def _attributable(partial: pl.Expr) -> pl.Expr:
    """What a culprit cost the others; in a meeting that lacks ranks no more than it itself came late."""
    own = pl.min_horizontal("waited_ns", pl.col("late_ns") * (pl.col("present") - 1))
    return pl.when(partial).then(own).otherwise("waited_ns").alias("cost")
