"""Calls of a model that get what an earlier call of the step got, with the same weights, by the recorder."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kinetoscope.analysis.events.enclosing import nearest, outermost
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import MODULE
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.sized_ops import sizes
from kinetoscope.analysis.origins.source import ModuleCall, NotedLine, noted_lines
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace, with_arguments

WRITES = r"^aten::\w+_$"  # add_, copy_, index_put_: into its first argument
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
    ``end_ns``, the ``module`` (the class) and the ``line`` that made it (``train.py:12``). Where the recorder
    counted no writes, only those between which no op of the step writes into what may be an input."""
    records = {record.rank: record.steps for record in run.manifest.ranks} if run.manifest else {}
    found = dict[int, pl.DataFrame]()
    for rank, noted in run.lines.items():
        record = records.get(rank)
        repeats = {again: first for first, again in record.same_calls} if record else {}
        calls = _calls(noted_lines(noted)) if repeats else []
        for again in record.uncounted_calls if record and calls else ():
            if again < len(calls) and _may_be_written(noted, calls[repeats[again]], calls[again]):
                del repeats[again]
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
            line = str(row.line)
        elif row.called is not None:
            found.append(ModuleCall(row.lane, row.start_ns, row.end_ns, row.called, line))
    return found


def _may_be_written(noted: Trace, first: ModuleCall, again: ModuleCall) -> bool:
    """Whether an op between the beginnings of two calls may write into what both get: in modules into what
    has the sizes of something that the first op of the call gets, outside of them into any tensor."""
    ops = _outermost_ops(noted).filter(pl.col("start_ns").is_between(first.start_ns, again.start_ns))
    given = sizes(next(iter(ops["input_dims"]), None) or "[]")
    for within, dims in (
        ops.filter(matching(ops, "name", WRITES)).select("in_module", "input_dims").iter_rows()
    ):
        into = (sizes(dims or "[]") or [[0]])[0]
        if into in given if within else into:
            return True
    return False


@remembered
def _outermost_ops(trace: Trace) -> pl.DataFrame:
    """Ops that no other op calls, in order: name, start_ns, input_dims, and whether they are in a module."""
    host = with_arguments(trace.host_events, trace.host_arguments, "input_dims")
    is_op = matching(host, "category", "^cpu_op$")
    is_module = matching(host, "category", "^python_function$") & matching(host, "name", f"^{MODULE}")
    ops = host.with_columns(in_module=nearest(host, is_module).is_not_null()).filter(outermost(host, is_op))
    return ops.select("name", "start_ns", pl.col("input_dims").cast(pl.String), "in_module").sort("start_ns")
