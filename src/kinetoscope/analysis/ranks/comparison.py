"""The ranks of a run compared, from their parts: who waited for whom, why, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain as chain_of
from itertools import islice
from statistics import fmean, median
from typing import Any, NamedTuple

import msgspec
import polars as pl
from msgspec.structs import replace

from kinetoscope.analysis.collectives.pairing import Paired
from kinetoscope.analysis.collectives.recorded import COLLECTIVES, PAIR, hosts_of, members, ranges
from kinetoscope.analysis.collectives.waiting import (
    BUSY,
    RANKS_AT_ONCE,
    by_start,
    collectives_of,
    waited,
    with_exposed,
)
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.ranks.attribution import START, attributed, data_ratio, kernel_cause
from kinetoscope.analysis.ranks.excess import Excess, excess, with_usual
from kinetoscope.analysis.ranks.lateness import COMPUTE, LATENESS, OWN_WORK, with_lateness
from kinetoscope.analysis.ranks.parts import OVERLAPPED, PARTED, RankPart, part, placed
from kinetoscope.analysis.ranks.pipelines import CannotTell, chain, ends, staged
from kinetoscope.analysis.ranks.rows import LINK, TO_SHARE, IdealRow, RankVerdict
from kinetoscope.analysis.ranks.verdict import (
    CHANCE,
    Suspect,
    costliest,
    late_ranks,
    slow_links,
    stands_out,
)
from kinetoscope.analysis.ranks.without_stragglers import PutRight, WithoutStragglers, by_collectives
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.schema import whole

COLD = 3  # times as long as the median of those after it: a recording's first steps, which load and tune


def cold_steps(parts: Sequence[RankPart]) -> list[str]:
    """The first steps that took most ranks much longer than those after, and what was recorded before."""
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
        met = one.collectives["step"].unique().cast(pl.String)
        steps = one.steps.filter(pl.col("name").is_in(met.implode()))
        rank = pl.lit(one.facts.rank, pl.Int32).alias("rank")
        found.append(steps.select(rank, "name", length_ns=pl.col("end_ns") - pl.col("start_ns")))
    return pl.concat(found)


# A straggler's share of the waiting is most of it; waiting below this share of all time has no straggler.
MOST = 0.5
NEGLIGIBLE = 0.01
WORST = 3  # ranks that are replayed without their lateness


class RankComparison(msgspec.Struct, frozen=True, eq=False):
    """The ranks of a run, and what the comparison found of them."""

    # one a rank, by rank; of their collectives, which are in ``table``, the names of their steps
    parts: tuple[RankPart, ...]
    missing: tuple[int, ...]  # ranks that the run had and that are not here
    paired: Paired
    stages: Mapping[int, int]  # of a pipeline's ranks
    longer: Excess  # by how much longer each rank worked than ranks like it
    table: pl.DataFrame  # all collectives, what they waited, what their ranks did on their own (``parts``)
    attributed: pl.DataFrame  # its causes are those of ``CAUSES``, of compute what its kernels show
    verdict: RankVerdict
    ideal: IdealRow | None


@remembered
def comparison(run: LoadedRun) -> RankComparison:
    hosts = hosts_of(run)
    return compare([placed(part(trace), hosts[trace.rank]) for trace in run.traces], collectives_of(run))


def verdict_of(run: LoadedRun) -> RankVerdict:
    """The verdict of the comparison; of one rank alone it is unknown, and nothing is compared."""
    if len(run.traces) < 2:
        return RankVerdict(status="unknown", why="no other rank is here")
    return comparison(run).verdict


def culprit(run: LoadedRun) -> tuple[int | None, float]:
    """The straggler and its share of the waiting, as the verdict has them; without one, the rank that was
    waited for most, the last to come where no rank's segment took longer. (None, 0) without other ranks."""
    if len(run.traces) < 2:
        return None, 0.0
    found = comparison(run)
    if found.verdict.rank is not None:
        return found.verdict.rank, found.verdict.share_of_waiting
    whole = found.table.select("instance", "complete").filter("complete")["instance"].unique()
    known = found.attributed.filter(
        pl.col("instance").is_in(whole.implode()) & pl.col("cause").ne_missing(START), pl.col("waited_ns") > 0
    )
    each = known.group_by(pl.coalesce("culprit", "last").alias("rank")).agg(pl.col("waited_ns").sum())
    if each.is_empty():
        return None, 0.0
    rank, waited = each.sort("waited_ns", "rank", descending=[True, False]).row(0)
    return int(rank), waited / int(each["waited_ns"].sum())


def slow_transfers(found: RankComparison) -> Mapping[int, float]:
    """By instance of the slow link that is named: the share of its transfer that groups like it take."""
    hosts = {part.facts.rank: part.facts.host for part in found.parts}
    named = (one for one in slow_links(found.table, hosts) if list(one.ranks) == found.verdict.ranks)
    return next((one.transfers for one in named), {})


def compare(parts: Iterable[RankPart], paired: Paired | None = None) -> RankComparison:
    """Compare ranks by their parts, one a rank, and their collectives, if those have been paired. They are
    asked for a few at a time, and what of a part is in the tables of all is let go."""
    parts, paired, world = _met(parts, paired)
    here = {part.facts.rank for part in parts}
    grouped = {rank for group in paired.table["group"].unique() for rank in members(group)}
    missing = sorted({*range(world), *grouped} - here)
    cold = cold_steps(parts)
    paired = replace(paired, table=with_lateness(paired.table))
    found = attributed(paired.table, cold)
    # What it was made of, and what is asked no more, may go.
    paired = replace(paired, table=paired.table.drop(LATENESS))
    stages = _stages(paired.table)
    longer = excess(paired.table, parts, stages)
    table = with_usual(paired.table, longer)
    paired = replace(paired, table=table)
    found = _explained(found, table, longer)
    when_cold = found.filter(pl.col("where").is_in(cold))["instance"].implode()
    is_warm = ~pl.col("step").is_in(cold), ~pl.col("instance").is_in(when_cold).fill_null(False)
    warm = table.filter(is_warm) if cold else table
    replay = _replay(warm, parts, longer)
    case = _Case(tuple(parts), warm, found, longer.without(cold), stages, cold, bool(missing), replay)
    verdict = case.verdict()
    found = _by_link(found, verdict)
    costs = found.drop_nulls("culprit").group_by("culprit").agg(pl.col("waited_ns").sum())
    worst = costs.sort("waited_ns", "culprit", descending=[True, False])["culprit"].head(WORST).to_list()
    named = [verdict.rank] if verdict.rank is not None else []
    ideal = None if replay is None else msgspec.structs.replace(
        replay.row,
        without={
            rank: replay.row.replayed_us * (1 - replay.saved(PutRight(frozenset([rank]))))
            for rank in dict.fromkeys(named + worst)
        },
    )  # fmt: skip
    return RankComparison(tuple(parts), tuple(missing), paired, stages, longer, table, found, verdict, ideal)


def _met(parts: Iterable[RankPart], paired: Paired | None) -> tuple[list[RankPart], Paired, int]:
    """The parts by rank, without their collectives; those of all ranks, paired, with what their ranks did on
    their own; and how many ranks the run had, 0 where that is not known."""
    parts, recorded, overlapped = _joined(parts)
    world = max((part.facts.world or 0 for part in parts), default=0)
    if paired is None:
        facts = [part.facts for part in parts]
        windows = {one.rank: (one.start_ns, one.start_ns + one.window_ns) for one in facts}
        hosts = {one.rank: one.host for one in facts}
        met = waited(recorded.select(list(COLLECTIVES)), world or None, hosts)
        paired = with_exposed(met, overlapped, windows)
    parts, paired = _with_equal_steps(parts, paired)
    own = by_start(recorded).select(list(OWN_WORK))  # in the order of those that were paired
    return parts, replace(paired, table=paired.table.hstack(own)), world


def _joined(parts: Iterable[RankPart]) -> tuple[list[RankPart], pl.DataFrame, pl.DataFrame]:
    """The parts by rank, without their collectives; those of all ranks; and when
    devices computed meanwhile, with their ranks.

    Some ranks at a time: of each part's short columns most memory is not their rows'.
    """
    left = iter(parts)
    without: list[RankPart] = []
    recorded, overlapped = [pl.DataFrame(schema=PARTED)], [pl.DataFrame(schema=BUSY)]
    while some := list(islice(left, RANKS_AT_ONCE)):
        recorded.append(pl.concat([one.collectives for one in some], rechunk=True))
        meanwhile = [
            one.overlapped.select(pl.lit(one.facts.rank, pl.Int32).alias("rank"), *OVERLAPPED) for one in some
        ]
        overlapped.append(pl.concat(meanwhile, rechunk=True))
        for one in some:  # of its collectives, the names of their steps alone
            steps = one.collectives.select(pl.col("step").unique(maintain_order=True))
            without.append(replace(one, collectives=steps, overlapped=one.overlapped.clear()))
    without.sort(key=lambda part: part.facts.rank)
    return without, pl.concat(recorded), pl.concat(overlapped)


def _with_equal_steps(parts: Sequence[RankPart], paired: Paired) -> tuple[list[RankPart], Paired]:
    """Rename the steps of ranks that number theirs differently, as after a worker was started again: to what
    the first rank calls them that they meet, if only through others."""
    names = _step_names(paired.table)
    renamed: list[RankPart] = []
    table = paired.table
    for one in parts:
        own = names.get(one.facts.rank, {})
        if all(step == other for step, other in own.items()):
            renamed.append(one)
            continue
        # A step in which it meets no other rank has a name of its own.
        own |= {step: f"{step} of rank {one.facts.rank}" for step in one.steps["name"] if step not in own}
        of_rank = pl.col("rank") == one.facts.rank
        table = table.with_columns(step=pl.when(of_rank).then(pl.col("step").replace(own)).otherwise("step"))
        named = pl.col("step").replace(own)
        renamed.append(
            replace(
                one,
                steps=one.steps.with_columns(pl.col("name").replace(own)),
                collectives=one.collectives.with_columns(named),
                kernels=one.kernels.with_columns(named),
                computed=one.computed.with_columns(named),
            )
        )
    return renamed, replace(paired, table=table)


def _step_names(table: pl.DataFrame) -> dict[int, dict[str, str]]:
    """By rank, what each of its steps is called by the first rank that meets it in it, or that meets one that
    does; empty where that is the same, or where two steps of a rank would be one."""
    met = table.filter(pl.col("instance").is_not_null(), pl.col("step") != "").select(
        "instance", "rank", "step"
    )
    if (met["step"] == met.select(pl.col("step").first().over("instance")).to_series()).all():
        return {}
    first = met.sort("rank").unique("instance", keep="first", maintain_order=True)
    edges = (
        met.join(first, on="instance", suffix="_first")
        .group_by("rank", "step", "rank_first", "step_first")
        .len()
        .sort("len", "rank", "step", "rank_first", "step_first", descending=[True, *[False] * 4])
        .unique(["rank", "step", "rank_first"], keep="first", maintain_order=True)
    )
    root = {node: node for node in met.select("rank", "step").unique().sort("rank", "step").iter_rows()}
    pairs = [((rank, step), (other, name)) for rank, step, other, name, _ in edges.iter_rows()]
    changed = True
    while changed:
        changed = False
        for one, other in pairs:
            low = min(root[one], root[other])
            changed |= root[one] != low or root[other] != low
            root[one] = root[other] = low
    found: dict[int, dict[str, str]] = {}
    for (rank, step), (_, name) in root.items():
        found.setdefault(rank, {})[step] = name
    is_one = any(len(set(own.values())) < len(own) for own in found.values())
    return {} if is_one else found


def _stages(table: pl.DataFrame) -> Mapping[int, int]:
    """The stage of each rank of a pipeline, where they make a chain."""
    if not (table["semantics"] == PAIR).any():
        return {}
    try:
        return chain(ends(table)).stage
    except CannotTell:
        return {}


def _replay(table: pl.DataFrame, parts: Sequence[RankPart], longer: Excess) -> WithoutStragglers | None:
    """The run replayed: a pipeline by its passes, where they are known, else by its collectives."""
    replay = by_collectives(table)
    if replay is None or not (table["semantics"] == PAIR).any():
        return replay
    computed = [part.computed.with_columns(rank=pl.lit(part.facts.rank, pl.Int32)) for part in parts]
    try:
        return staged(table, pl.concat(computed), longer.stays(COMPUTE))
    except CannotTell as reason:
        return replay._replace(row=msgspec.structs.replace(replay.row, why=str(reason)))


def _explained(found: pl.DataFrame, table: pl.DataFrame, longer: Excess) -> pl.DataFrame:
    """Add ``detail``: what the kernels show of a rank that computed longer than its peers."""
    is_computing = pl.col("cause") == COMPUTE
    asked = found.filter(is_computing).group_by("culprit", "where").agg(pl.col("excess_ns").max())
    said = {
        (rank, step): kernel_cause(longer.kernels, [rank], step, data_ratio(table, [rank], step), most)
        for rank, step, most in asked.iter_rows()
    }
    causes, details = [], []
    for rank, step, cause in found.select("culprit", "where", "cause").iter_rows():
        cause, detail = said[rank, step] if cause == COMPUTE else (cause, "")
        causes.append(cause)
        details.append(detail)
    return found.with_columns(pl.Series("cause", causes, pl.String), pl.Series("detail", details, pl.String))


def _by_link(found: pl.DataFrame, verdict: RankVerdict) -> pl.DataFrame:
    """Attribute to a slow link that the ranks behind it came late, but for the recording's start."""
    if verdict.status != LINK:
        return found
    of_link = pl.col("last").is_in(verdict.ranks) & pl.col("cause").ne_missing(START)
    is_it = of_link & (pl.col("culprit").is_null() | pl.col("culprit").is_in(verdict.ranks))
    return found.with_columns(
        culprit=pl.when(is_it).then("last").otherwise("culprit"),
        cause=pl.when(is_it).then(pl.lit(LINK)).otherwise("cause"),
        detail=pl.when(is_it).then(pl.lit("")).otherwise("detail"),
    )


class _Case(NamedTuple):
    parts: Sequence[RankPart]
    table: pl.DataFrame
    found: pl.DataFrame
    longer: Excess
    stages: Mapping[int, int]
    cold: Sequence[str]
    lacking: bool
    replay: WithoutStragglers | None

    def verdict(self) -> RankVerdict:
        """The verdict on what is no cold start, unless it may be chance."""
        found = self.found.filter(~pl.col("where").is_in(self.cold), ~pl.col("step").is_in(self.cold))
        steps = lengths(self.parts).filter(~pl.col("name").is_in(self.cold))
        started = found.filter(pl.col("cause") == START)["instance"]
        firsts = self.table.filter(pl.col("own_ns").is_null())["instance"].drop_nulls()
        known = self.table.select("instance", "waiting_ns", "basis").filter(
            pl.col("basis").is_in(["ranks", "some ranks"])
            & ~pl.col("instance").is_in(pl.concat([started, firsts]).unique().implode())
        )
        if known.is_empty():
            return RankVerdict(status="unknown", why="no collective of two ranks could be paired")
        is_pipeline = bool((self.table["semantics"] == PAIR).any())
        met = self.table.select("instance", "complete")
        partial = met.filter(pl.col("complete").is_not_null() & ~pl.col("complete"))["instance"].unique()
        lacking = self.lacking or len(partial) > 0
        # In a collective that lacks ranks a culprit caused no more waiting than it itself came late.
        own = pl.min_horizontal("waited_ns", pl.col("late_ns") * (pl.col("present") - 1))
        lacks = pl.col("instance").is_in(partial.implode())
        costs = found.filter(pl.col("culprit").is_not_null()).with_columns(
            cost=pl.when(lacks).then(own).otherwise("waited_ns")
        )
        # A pipeline's stages wait for each other, whoever is late or not.
        waited = int((costs["cost"] if is_pipeline else known["waiting_ns"]).sum())
        suspects = chain_of(late_ranks(self.longer, steps), slow_links(self.table, self.hosts))
        if (worst := costliest(suspects, self.replay)) is not None:
            share = int(costs.filter(pl.col("culprit").is_in(worst[0].ranks))["cost"].sum()) / max(1, waited)
            return self._named(*worst, min(1.0, share), steps)
        time_ns = (
            int(steps["length_ns"].sum()) if self.cold else sum(one.facts.window_ns for one in self.parts)
        )
        if waited < NEGLIGIBLE * time_ns and (costs.is_empty() or not lacking):
            why = "no longer than stages of a pipeline do" if is_pipeline else ""
            if lacking:
                why = "ranks are missing or cut short, and those here hardly wait for each other"
            return RankVerdict(status="unknown" if lacking else "even", why=why)
        if lacking and int(costs["cost"].sum()) < MOST * waited:
            return RankVerdict(status="unknown", why="whom they wait for may be missing")
        # What it computed the others did as well, if its kernels took no longer.
        late = found.filter(pl.col("cause").ne_missing(COMPUTE))
        lost = late.filter(pl.col("step").is_in(steps["name"].implode())).group_by("step").agg(
            pl.col("lost_ns").clip(0).sum()
        )["lost_ns"].to_list()  # fmt: skip
        if int(costs["cost"].sum()) >= MOST * waited and not lacking and len(lost) and stands_out(
            lost, steps, CHANCE, is_one=False
        ):  # fmt: skip
            most = costs.group_by("culprit").agg(pl.col("cost").sum())["cost"].max()
            everyone = PutRight(frozenset(part.facts.rank for part in self.parts))
            return RankVerdict(
                status="turns",
                share_of_waiting=min(1.0, whole(most) / max(1, waited)),
                **({} if self.replay is None else self._costs(self.replay.saved(everyone), steps)),
            )
        why = "no rank stands out from how much steps differ by chance"
        return RankVerdict(status="unknown" if lacking or is_pipeline else "even", why=why)

    @property
    def hosts(self) -> dict[int, str]:
        return {part.facts.rank: part.facts.host for part in self.parts}

    def _named(self, suspect: Suspect, cost: float, share: float, steps: pl.DataFrame) -> RankVerdict:
        """The verdict that names ranks or a link: where they are, why, and what it costs."""
        ranks, cause, detail = list(suspect.ranks), suspect.cause, ""
        totals = self.longer.total(cause) if cause != LINK else {}
        worst = max(ranks, key=lambda rank: (totals.get(rank, 0), -rank))
        if cause == COMPUTE:
            cause, detail = kernel_cause(self.longer.kernels, ranks, None, data_ratio(self.table, ranks))
        elif cause == LINK:
            detail = f"{1 / fmean(suspect.transfers.values()):.1f} times as long"
        devices = dict(self.table.group_by("rank").agg(pl.col("device").min()).iter_rows())
        # Ranks that each see their own device alone call it 0: where it stands in the host is not known.
        places = [(host, devices.get(rank)) for rank, host in self.hosts.items() if host]
        is_place = len(set(places)) == len(places)
        hosts = sorted({self.hosts[rank] for rank in ranks} - {""})
        paths = {part.facts.rank: part.facts.path for part in self.parts}
        like = self.longer.similar(worst)
        similar = [rank for rank in like if rank not in ranks]
        if cause in TO_SHARE:  # its peers then do more
            cost *= len(similar) / max(1, len(like))
        return RankVerdict(
            path=paths[worst],
            peer_path=paths[similar[0]] if similar else "",
            status="link" if cause == LINK else "straggler",
            rank=None if cause == LINK else worst,
            ranks=ranks,
            listed=ranges(ranks),
            scope=self._scope(ranks, is_link=cause == LINK),
            hosts=hosts,
            devices=[devices[rank] for rank in ranks] if is_place else [],
            stage=self.stages.get(worst) if len({self.stages.get(rank) for rank in ranks}) == 1 else None,
            share_of_waiting=share,
            cause=cause,
            detail=detail,
            **self._costs(cost, steps),
        )

    def _costs(self, share: float, steps: pl.DataFrame) -> dict[str, Any]:
        """The keys of the verdict that say what such a share of the time comes to."""
        assert self.replay is not None
        count = steps["name"].n_unique()
        # Of the rank whose steps take longest, at the mean: what all steps take together.
        each = steps.group_by("rank").agg(pl.col("length_ns").mean())["length_ns"]
        whole_us = whole(each.max()) / 1000 if count else self.replay.row.replayed_us
        return {"cost_us": share * whole_us, "cost_share": share, "steps": count or None}

    def _scope(self, ranks: Sequence[int], *, is_link: bool) -> str:
        if is_link or len(ranks) == 1:
            return "group" if is_link else "rank"
        hosts = self.hosts
        for scope, of in (("stage", self.stages), ("host", hosts)):
            places = {of.get(rank) for rank in ranks} - {None, ""}
            if len(places) == 1 and len(ranks) == sum(place in places for place in of.values()):
                return scope
        return "ranks"
