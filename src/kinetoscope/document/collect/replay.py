"""The replayed step, its critical path, and what would be if something changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice

import polars as pl

from kinetoscope import document
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.lines import lines_by_stack, op_lines
from kinetoscope.analysis.replay import what_if
from kinetoscope.analysis.replay.change import NOTHING, ReplayChange
from kinetoscope.analysis.replay.path import PathPart
from kinetoscope.analysis.replay.replay import StepReplay, alone, job
from kinetoscope.document.collect.rows import row
from kinetoscope.sources.run import LoadedRun

LINES = 3  # of the time between ops


@remembered
def replay(run: LoadedRun) -> document.ReplayRow | None:
    """The replay of the rank whose step takes longest, as a row; None where nothing was recorded."""
    found = longest(run)
    return None if found is None else _replay(run, found)


def longest(run: LoadedRun) -> StepReplay | None:
    """The replay of the rank whose step takes longest; of ranks that meet, the job's from there."""
    found = job(run) or max(alone(run).values(), key=lambda one: one.step_us, default=None)
    return found if found is not None and found.step_us > 0 else None


def what_if_listing(run: LoadedRun, requested: Sequence[what_if.Request]) -> document.WhatIfRow | None:
    """The step after all changes, and what each saves alone. Raises InputError where one meets nothing."""
    found = longest(run)
    if found is None:
        return None
    changes = [one(run) for one in requested]
    joined = what_if.together(changes)
    after_us = _after(found, joined)
    own = joined.get(found.rank, NOTHING)
    return document.WhatIfRow(
        replay=_replay(run, found),
        unit="step" if found.steps else "recording",
        changes=[
            row(document.ChangeRow, one, saving_us=found.step_us - _after(found, one.changes))
            for one in changes
        ],
        after_us=after_us,
        saving_us=found.step_us - after_us,
        after=_rows(run, found, found.critical_path(own, joined)),
    )


def _after(found: StepReplay, changes: Mapping[int, ReplayChange]) -> float:
    return found.after(changes.get(found.rank, NOTHING), changes)


def _replay(run: LoadedRun, found: StepReplay) -> document.ReplayRow:
    return row(document.ReplayRow, found, critical_path=_rows(run, found, found.recorded_path))


def _rows(run: LoadedRun, found: StepReplay, path: Sequence[PathPart]) -> list[document.PathRow]:
    traces = {trace.rank: trace for trace in run.traces}
    shown: dict[tuple[int, str], list[int]] = {}
    for part in path:
        shown.setdefault((part.rank, part.table), []).extend(part.ids)
    events = {
        (rank, name): iter(getattr(traces[rank], name)["event"][pl.Series(ids, dtype=pl.UInt32)].to_list())
        for (rank, name), ids in shown.items()
    }
    called = {rank: _called(run, rank) for rank in {part.rank for part in path if part.nexts}}
    elsewhere = any(part.rank != found.rank for part in path)
    return [
        document.PathRow(
            text=f"rank {part.rank}: {part.text}" if elsewhere else part.text,
            us=part.us,
            events=list(islice(events[part.rank, part.table], len(part.ids))),
            count=part.count,
            lines=_lines(called[part.rank], *part.nexts) if part.nexts else None,
        )
        for part in path
    ]


def _lines(called: pl.Series, rows: list[int], times: list[float]) -> list[document.PausedLine]:
    """The lines in which a thread was between its ops. ``called``: by host event, the line to name before it.
    ``rows``: the ops that followed; ``times``, the µs before each."""
    if called.null_count() == len(called):
        return []
    spent = defaultdict[str, float](float)
    for line, us in zip(called.gather(rows).to_list(), times, strict=True):
        if line is not None:
            spent[line] += us
    most = sorted(spent.items(), key=lambda one: -one[1])[:LINES]
    return [document.PausedLine(line=line, us=us) for line, us in most]


def _called(run: LoadedRun, rank: int) -> pl.Series:
    """By host event, where most of a long pause before it passed, else the line that called it."""
    if (known := op_lines(run).get(rank)) is not None:
        return pl.select(pl.coalesce(known.rows["before"], known.texts["line"])).to_series()
    return lines_by_stack(next(trace for trace in run.traces if trace.rank == rank))
