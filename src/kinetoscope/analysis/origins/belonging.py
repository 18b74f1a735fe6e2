"""What each device event belongs to, by name: op, step, compiled graph, annotation, module."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.compiled.calls import graph_of_work
from kinetoscope.analysis.events.enclosing import caller
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.attribution import attribution
from kinetoscope.analysis.time.phases import phase_of_work
from kinetoscope.sources.run import Run
from kinetoscope.trace.model import Trace

UNATTRIBUTED = "unattributed"
# Where the caller is known, and belongs to nothing of the kind.
OUTSIDE = {
    "op_name": "no op",
    "step_name": "no step",
    "phase": "no phase",
    "graph": "eager",
    "annotation": "no annotation",
    "module": "no module",
}


@remembered
def belonging(run: Run) -> pl.DataFrame:
    """``work`` of every rank, with the Categorical columns

    - ``op_name``: the innermost op (or annotation) around the launch;
    - ``step_name``;
    - ``phase``: what its step is, or which part of a request (see ``phases``);
    - ``graph``: the compiled graph that launched it (see ``graphs``);
    - ``annotation``: the innermost ``record_function`` range around the launch;
    - ``module``: the innermost ``nn.Module`` whose forward or backward launched it, in recordings made with
      Python stacks (see ``attribution``).

    Where the recording tells who launched it and that belongs to none, the value is that of ``OUTSIDE``;
    where it does not tell, "unattributed".
    """
    return pl.concat([_belonging(trace) for trace in run.traces])


def _belonging(trace: Trace) -> pl.DataFrame:
    host, device, origin = trace.host_events, trace.device_events, attribution(trace)
    names = {
        "op_name": host["name"].gather(device["op"]),
        "step_name": trace.steps["name"].cast(pl.Categorical).gather(device["step"]),
        "phase": phase_of_work(trace),
        "graph": graph_of_work(trace),
        "annotation": origin["annotation_name"],
        "module": origin["module_name"],
    }
    known = caller(device).is_not_null()
    return (
        work(trace)
        .with_columns(known.alias("known"), *(series.alias(column) for column, series in names.items()))
        .with_columns(
            pl.coalesce(column, pl.when("known").then(_name(outside)).otherwise(_name(UNATTRIBUTED))).alias(
                column
            )
            for column, outside in OUTSIDE.items()
        )
        .drop("known")
    )


def _name(text: str) -> pl.Expr:
    return pl.lit(text, pl.Categorical)
