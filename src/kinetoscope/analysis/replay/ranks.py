"""Ranks that meet in collectives, replayed together: a rank that is sped up is no longer waited for.

What makes a rank late is a change of its recorded steps: where it computed longer than others it computes
less, where its host took longer it launches sooner (see ``ranks.lateness``).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import polars as pl

from kinetoscope.analysis.collectives.waiting import waiting
from kinetoscope.analysis.idle.gaps import gaps
from kinetoscope.analysis.idle.launches import launching_lanes
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.passes.as_it_runs import loaders_of, slowest
from kinetoscope.analysis.ranks.comparison import comparison, verdict_of
from kinetoscope.analysis.ranks.excess import excess, slow_hosts, stages_of_slow_hosts
from kinetoscope.analysis.ranks.lateness import CAUSES, COMPUTE, Usual, lower_median, mean
from kinetoscope.analysis.ranks.parts import part
from kinetoscope.analysis.ranks.rows import RankVerdict
from kinetoscope.analysis.replay.change import (
    NOTHING,
    Changes,
    ReplayChange,
    faster_loader,
    shorten,
    without_host,
    without_idle,
)
from kinetoscope.analysis.replay.engine import Numbers, once
from kinetoscope.analysis.replay.graph import RankSpans, ReplayGraph, build
from kinetoscope.analysis.replay.spans import Spans, chosen, of_steps, spans
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import whole

# Ranks that are replayed together; of more those that tell how long all take.
MOST = 16
# Clocks that meet go at one pace after some rounds, seen when ``SETTLED`` more change nothing; a circle of
# clocks may take up to ``CIRCLE``.
ROUNDS, SETTLED, CIRCLE = 30, 4, 3
EQUAL_NS = 0.5


@remembered
def together(run: LoadedRun) -> tuple[ReplayGraph, dict[int, Spans]] | None:
    """All ranks' graph with what of each is replayed; None where they meet nowhere.

    Of more than ``MOST`` the slowest, the median and those that are waited for most stand for all.
    """
    table = waiting(run).filter(
        pl.col("instance").is_not_null() & (pl.col("transfer_ns") >= 0) & (pl.col("basis") == "ranks")
    )
    if len(run.traces) < 2 or table.is_empty():
        return None
    traces = _telling(run, table)
    table = table.filter(pl.col("rank").is_in([trace.rank for trace in traces]))
    within = _same_steps(run, traces)
    ahead = table.drop_nulls("clock_ns").group_by("rank").agg(pl.col("clock_ns").median())
    clocks = {int(rank): whole(median) for rank, median in ahead.iter_rows()}
    handover = {rank: 1000 * own.handover_us for rank, own in loaders_of(run).items()}
    parts = [
        RankSpans(trace, within[trace.rank], clocks.get(trace.rank, 0), handover.get(trace.rank))
        for trace in traces
    ]
    return build(parts, table.select("instance", "rank", "id", "transfer_ns")), within


def pace_ns(graph: ReplayGraph, numbers: Numbers) -> float:
    """The time of one round if rounds go on for ever, ns: ``engine.growth``, found by going on, which costs
    no square of the ranks. What the clock that gets latest is later by after a round is never less, and is
    that once all that hold each other up go at one pace."""
    rounds = [[0.0] * (len(graph.first) + graph.streams)]
    pace, found = float("inf"), 0
    while len(rounds) <= ROUNDS and found < SETTLED:
        rounds.append(once(graph, numbers, rounds[-1]).clocks)
        later = min(
            max(new - old for new, old in zip(rounds[-1], before, strict=True)) / count
            for count, before in enumerate(rounds[-2 : -2 - CIRCLE : -1], 1)
        )
        found = 0 if later < pace - EQUAL_NS else found + 1
        pace = min(pace, later)
    return pace


def _telling(run: LoadedRun, table: pl.DataFrame) -> list[Trace]:
    if len(run.traces) <= MOST:
        return list(run.traces)
    slowest = sorted(run.traces, key=lambda trace: window(trace).length_ns, reverse=True)
    waited = table.drop_nulls("last_rank").group_by("last_rank").agg(pl.col("waiting_ns").sum())
    late = waited.sort("waiting_ns", "last_rank", descending=[True, False])["last_rank"].to_list()
    first = [slowest[0].rank, *late[:1], slowest[len(slowest) // 2].rank, *late[1:]]
    chosen = list(dict.fromkeys(first))[:MOST]
    return [trace for trace in run.traces if trace.rank in chosen]


def _same_steps(run: LoadedRun, traces: Sequence[Trace]) -> dict[int, Spans]:
    """The steps that every rank would replay; each rank's own where there are none."""
    named = [
        {names["name"][step]: step for step in (chosen(trace) if len(trace.steps) else ())}
        for trace, names in ((trace, _steps(run, trace)) for trace in traces)
    ]
    common = set[str].intersection(*(set(names) for names in named))
    return {
        trace.rank: of_steps(trace, sorted(names[name] for name in common)) if common else spans(trace)
        for trace, names in zip(traces, named, strict=True)
    }


def _steps(run: LoadedRun, trace: Trace) -> pl.DataFrame:
    """``id`` and ``name`` of a rank's steps, called as the comparison of ranks calls them."""
    (found,) = (one for one in comparison(run).parts if one.facts.rank == trace.rank)
    called = dict(zip(part(trace).steps["name"], found.steps["name"], strict=True))
    return trace.steps.select("id", pl.col("name").cast(pl.String).replace(called))


def verdict_as_it_runs(run: LoadedRun) -> RankVerdict:
    """The verdict of the comparison of ranks, its cost of the step without the profiler where timed."""
    found, own = verdict_of(run), slowest(run)
    if own is None or found.cost_share is None or found.steps is None:
        return found
    return msgspec.structs.replace(found, cost_us=found.cost_share * own.step_us)


@remembered
def without_lateness(run: LoadedRun) -> Changes:
    """No rank takes longer for its own work than the lower median of the ranks that it meets."""
    return _no_longer(run, lower_median)


@remembered
def evenly_loaded(run: LoadedRun) -> Changes:
    """None takes longer than the mean of all ranks; what stages of a pipeline have to do cannot be shared."""
    return _no_longer(run, mean) if comparison(run).longer.is_even else {}


def _no_longer(run: LoadedRun, usual: Usual) -> Changes:
    found = comparison(run)
    longer = found.longer if usual is lower_median else excess(found.table, found.parts, found.stages, usual)
    hosts = [cause for cause in CAUSES if cause != COMPUTE]
    idle = pl.sum_horizontal(pl.col(f"{cause}_longer").clip(0) for cause in hosts)
    shares = longer.steps.select(
        "rank",
        "is_known",
        step=pl.col("step").cast(pl.String),
        computing=(pl.col(f"{COMPUTE}_longer") / pl.col(COMPUTE)).fill_nan(0).clip(0, 1),
        idling=(idle / pl.sum_horizontal(hosts)).fill_nan(0).clip(0, 1),
        # Of a host that is slower at most of what it does, what keeps no device waiting is too long as well.
        # Those of a whole stage are slower than other stages'.
        hosting=pl.when(pl.col("rank").is_in(list(slow_hosts(longer))))
        .then(1 - lower_median("launch_ns").over("like", "step") / pl.col("launch_ns"))
        .when(pl.col("rank").is_in(list(stages_of_slow_hosts(longer))))
        .then(1 - lower_median("launch_ns").over("step") / pl.col("launch_ns")),
    )
    # By how much longer a rank was idle until its first collective is not known, and nothing of steps that
    # lack some: as much as in other steps.
    every = [_steps(run, one).select(rank=pl.lit(one.rank, pl.Int32), step="name") for one in run.traces]
    shares = (
        pl.concat(every)
        .unique(maintain_order=True)
        .join(shares, on=["rank", "step"], how="left", maintain_order="left")
    )
    known = pl.col("idling").filter("is_known").mean().over("rank")
    shares = shares.with_columns(
        idling=pl.when("is_known").then("idling").otherwise(known).fill_null(0),
        hosting=pl.coalesce("hosting", pl.col("hosting").mean().over("rank"), 0.0),
        computing=pl.coalesce("computing", pl.col("computing").mean().over("rank"), 0.0),
    )
    paces = [own.pace_us for own in loaders_of(run).values()]
    paces += [0.0] * (len(run.traces) - len(paces))
    pace_us = float(pl.DataFrame({"us": paces}).select(usual("us")).item() or 0)
    return {
        trace.rank: _shorter(run, trace, shares.filter(rank=trace.rank)) | _batches_each(run, trace, pace_us)
        for trace in run.traces
    }


def _batches_each(run: LoadedRun, trace: Trace, pace_us: float) -> ReplayChange:
    """A rank whose data loader is slower gets a batch each ``pace_us``."""
    own = loaders_of(run).get(trace.rank)
    return faster_loader(pace_us / own.pace_us) if own is not None and own.pace_us > pace_us else NOTHING


def _shorter(run: LoadedRun, trace: Trace, shares: pl.DataFrame) -> ReplayChange:
    """The shares ``computing``, ``idling`` and ``hosting`` of what a rank did in each ``step`` go away."""
    if shares.is_empty():
        return NOTHING
    names = _steps(run, trace).select(step="id", named="name")
    each = work(trace).join(names, on="step", how="left", maintain_order="left").select(
        "id", "part", "duration_ns", step=pl.col("named").fill_null("")
    ).join(shares, on="step", maintain_order="left")  # fmt: skip
    # A device is idle for the sake of the step whose work comes next.
    idle = gaps(run).filter(rank=trace.rank).join(each, left_on="next", right_on="id", maintain_order="left")
    computed = each.filter(pl.col("part") != "communication")
    shorter = shorten(computed["id"], computed["duration_ns"] * computed["computing"])
    shorter |= without_idle(trace, idle.with_columns(share="idling"))
    if not (shares["hosting"] > 0).any():
        return shorter
    steps = trace.steps.join(names, left_on="id", right_on="step").join(
        shares, left_on="named", right_on="step"
    )
    threads = launching_lanes(trace).to_frame()
    hosted = threads.join(steps.select("start_ns", "duration_ns", share="hosting"), how="cross")
    return shorter | without_host(hosted)
