"""Calls of a model that get what an earlier call of the step got, with the same weights, by the recorder."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.source import ModuleCall, NotedLine, noted_lines
from kinetoscope.sources.run import LoadedRun

SCHEMA = {
    "call": pl.UInt32,
    "repeats": pl.UInt32,
    "lane": pl.UInt32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "module": pl.String,
    "line": pl.String,
}


@remembered
def same_calls(run: LoadedRun) -> Mapping[int, pl.DataFrame]:
    """By rank whose lines were noted, the calls of modules that repeat another, outside of such calls, and
    those that they repeat (``repeats`` is null): the number of the ``call``, ``lane``, ``start_ns``,
    ``end_ns``, the ``module`` (the class) and the ``line`` that made it (``train.py:12``)."""
    records = {record.rank: record.steps.same_calls for record in run.manifest.ranks} if run.manifest else {}
    found = dict[int, pl.DataFrame]()
    for rank, noted in run.lines.items():
        repeats = {again: first for first, again in records.get(rank, ())}
        calls = _calls(noted_lines(noted)) if repeats else []
        rows, ends = list[tuple[int | None, ...]](), 0
        for number in sorted(repeats):
            if number < len(calls) and calls[number].start_ns >= ends:
                ends = calls[number].end_ns
                rows += [
                    (number, repeats[number], *calls[number]),
                    (repeats[number], None, *calls[repeats[number]]),
                ]
        found[rank] = pl.DataFrame(rows, SCHEMA, orient="row").unique(maintain_order=True)
    return found


def _calls(rows: list[NotedLine]) -> list[ModuleCall]:
    found, line = list[ModuleCall](), ""
    for row in sorted(rows, key=lambda row: (row.start_ns, row.line is None, -row.end_ns)):
        if row.line is not None:
            line = f"{row.line.file}:{row.line.number}"
        elif row.called is not None:
            found.append(ModuleCall(row.lane, row.start_ns, row.end_ns, row.called, line))
    return found
