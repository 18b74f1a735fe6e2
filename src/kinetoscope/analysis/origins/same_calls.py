"""Calls of a model that get what an earlier call of the step got, with the same weights, by the recorder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.source import NotedLine, noted_lines
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
    """By rank whose lines were noted, the outermost calls of modules that repeat another, and those that they
    repeat (``repeats`` is null): the number of the ``call``, ``lane``, ``start_ns``, ``end_ns``, the
    ``module`` (the class) and the ``line`` that made it (``train.py:12``)."""
    records = {record.rank: record.steps.same_calls for record in run.manifest.ranks} if run.manifest else {}
    found = dict[int, pl.DataFrame]()
    for rank, noted in run.lines.items():
        repeats = {again: first for first, again in records.get(rank, ())}
        calls = list(_outermost(noted_lines(noted))) if repeats else []
        rows = [
            (number, repeats.get(number), *call)
            for number, call in enumerate(calls)
            if number in repeats or number in repeats.values()
        ]
        found[rank] = pl.DataFrame(rows, SCHEMA, orient="row")
    return found


def _outermost(rows: list[NotedLine]) -> Iterator[tuple[int, int, int, str, str]]:
    ends, line = 0, ""
    for row in rows:
        if row.start_ns < ends:
            continue
        if row.line is not None:
            line = f"{row.line.file}:{row.line.number}"
        elif row.called is not None:
            ends = row.end_ns
            yield row.lane, row.start_ns, row.end_ns, row.called, line
