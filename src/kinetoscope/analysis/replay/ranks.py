"""Ranks that meet in collectives, replayed together: a rank that is sped up is no longer waited for."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.aggregates import whole
from kinetoscope.analysis.idle.waiting import waiting
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.replay.graph import Graph, Part, build
from kinetoscope.analysis.replay.spans import Spans, chosen, of_steps, spans
from kinetoscope.analysis.run import Run


@remembered
def together(run: Run) -> tuple[Graph, dict[int, Spans]] | None:
    """All ranks' graph with what of each is replayed; None where they meet nowhere."""
    table = waiting(run).filter(
        pl.col("meeting").is_not_null() & (pl.col("transfer_ns") >= 0) & (pl.col("basis") == "ranks")
    )
    if len(run.traces) < 2 or table.is_empty():
        return None
    within = _same_steps(run)
    clocks = _clocks(table)
    parts = [Part(trace, within[trace.rank], clocks.get(trace.rank, 0)) for trace in run.traces]
    return build(parts, table.select("meeting", "rank", "id", "transfer_ns")), within


def _same_steps(run: Run) -> dict[int, Spans]:
    """The steps that every rank would replay, by their names; each rank's own where there are none."""
    named = [
        {trace.steps["name"][step]: step for step in (chosen(trace) if len(trace.steps) else ())}
        for trace in run.traces
    ]
    common = set[str].intersection(*(set(names) for names in named))
    return {
        trace.rank: of_steps(trace, sorted(names[name] for name in common)) if common else spans(trace)
        for trace, names in zip(run.traces, named, strict=True)
    }


def _clocks(table: pl.DataFrame) -> dict[int, int]:
    """By how much each rank's clock is ahead: collectives end at one instant on all ranks."""
    ends = table.select("rank", "meeting", end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    apart = pl.col("end_ns") - pl.col("end_ns").min().over("meeting")
    medians = ends.with_columns(apart.alias("apart")).group_by("rank").agg(pl.col("apart").median())
    return {int(rank): whole(median) for rank, median in medians.iter_rows()}
