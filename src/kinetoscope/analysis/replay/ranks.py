"""Ranks that meet in collectives, replayed together: a rank that is sped up is no longer waited for."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from kinetoscope.analysis.idle.waiting import waiting
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.replay.engine import Numbers, once
from kinetoscope.analysis.replay.graph import Graph, Part, build
from kinetoscope.analysis.replay.spans import Spans, chosen, of_steps, spans
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import Run
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import whole

# Ranks that are replayed together; of more those that tell how long all take.
MOST = 16
# Clocks that meet go at one pace after some rounds, seen when ``SETTLED`` more change nothing; a circle of
# clocks may take up to ``CIRCLE``.
ROUNDS, SETTLED, CIRCLE = 30, 4, 3
ALIKE_NS = 0.5


@remembered
def together(run: Run) -> tuple[Graph, dict[int, Spans]] | None:
    """All ranks' graph with what of each is replayed; None where they meet nowhere.

    Of more than ``MOST`` the slowest, the median and those that are waited for most stand for all.
    """
    table = waiting(run).filter(
        pl.col("meeting").is_not_null() & (pl.col("transfer_ns") >= 0) & (pl.col("basis") == "ranks")
    )
    if len(run.traces) < 2 or table.is_empty():
        return None
    traces = _telling(run, table)
    table = table.filter(pl.col("rank").is_in([trace.rank for trace in traces]))
    within = _same_steps(traces)
    clocks = _clocks(table)
    parts = [Part(trace, within[trace.rank], clocks.get(trace.rank, 0)) for trace in traces]
    return build(parts, table.select("meeting", "rank", "id", "transfer_ns")), within


def pace_ns(graph: Graph, numbers: Numbers) -> float:
    """What one round takes if rounds go on for ever: ``engine.growth``, found by going on, which costs no
    square of the ranks.

    What the clock that gets latest is later by after a round is never less than that, whatever the clocks
    stood at; it is that once all that hold each other up go at one pace.
    """
    rounds = [[0.0] * (len(graph.first) + graph.streams)]
    pace, found = float("inf"), 0
    while len(rounds) <= ROUNDS and found < SETTLED:
        rounds.append(once(graph, numbers, rounds[-1]).clocks)
        later = min(
            max(new - old for new, old in zip(rounds[-1], before, strict=True)) / count
            for count, before in enumerate(rounds[-2 : -2 - CIRCLE : -1], 1)
        )
        found = 0 if later < pace - ALIKE_NS else found + 1
        pace = min(pace, later)
    return pace


def _telling(run: Run, table: pl.DataFrame) -> list[Trace]:
    if len(run.traces) <= MOST:
        return list(run.traces)
    slowest = sorted(run.traces, key=lambda trace: window(trace).length_ns, reverse=True)
    waited = table.drop_nulls("last_rank").group_by("last_rank").agg(pl.col("waiting_ns").sum())
    late = waited.sort("waiting_ns", "last_rank", descending=[True, False])["last_rank"].to_list()
    first = [slowest[0].rank, *late[:1], slowest[len(slowest) // 2].rank, *late[1:]]
    chosen = list(dict.fromkeys(first))[:MOST]
    return [trace for trace in run.traces if trace.rank in chosen]


def _same_steps(traces: Sequence[Trace]) -> dict[int, Spans]:
    """The steps that every rank would replay, by their names; each rank's own where there are none."""
    named = [
        {trace.steps["name"][step]: step for step in (chosen(trace) if len(trace.steps) else ())}
        for trace in traces
    ]
    common = set[str].intersection(*(set(names) for names in named))
    return {
        trace.rank: of_steps(trace, sorted(names[name] for name in common)) if common else spans(trace)
        for trace, names in zip(traces, named, strict=True)
    }


def _clocks(table: pl.DataFrame) -> dict[int, int]:
    """By how much each rank's clock is ahead: collectives end at one instant on all ranks."""
    ends = table.select("rank", "meeting", end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    apart = pl.col("end_ns") - pl.col("end_ns").min().over("meeting")
    medians = ends.with_columns(apart.alias("apart")).group_by("rank").agg(pl.col("apart").median())
    return {int(rank): whole(median) for rank, median in medians.iter_rows()}
