"""Which forward op, module and annotation each piece of device work came from."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.compiled.regions import graph_of_work
from kinetoscope.analysis.events.backward import names_forward
from kinetoscope.analysis.events.enclosing import caller, nearest, running
from kinetoscope.analysis.events.rows import constant, matching
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE, MODULE, NOT_AN_ANNOTATION, TORCH_FRAME
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.lines import FRAME, OpLines, op_lines, texts_of_frames
from kinetoscope.analysis.time.phases import phase_of_work
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

CAPTURED = "^captured_"  # of what was recorded while a graph was captured (see ``trace.captures``)


@remembered
def attribution(trace: Trace) -> pl.DataFrame:
    """Where each row of ``device_events`` came from, in its order.

    Columns that are a row of ``host_events``, or null where nothing of the kind was recorded around the
    launch (or, where that is missing, around the op that the work names by its id):

    - ``forward_op``: for work of a backward pass, the forward op whose gradient it computes. Autograd numbers
      the ops that it records, and the backward op carries the number of its forward op. Of several forward
      ops with one number the last to start is meant (as in Kineto's ``fwdbwd`` arrows);
    - ``module``: the innermost ``nn.Module`` call, where stacks or modules were recorded; of backward work,
      that of its forward op;
    - ``annotation``: the innermost ``record_function`` other than a step's. The autograd engine's threads
      have none of their own: for work of a backward pass, what was open on the thread that runs the steps.

    ``module_name`` (without ``nn.Module:``) and ``annotation_name`` are texts (Categorical).
    """
    host, device = trace.host_events, trace.device_events
    captured = matching(host, "category", CAPTURED)[device["op"]].fill_null(False)
    return origins(trace, device["op"].zip_with(captured, caller(device)))


def origins(trace: Trace, called_by: pl.Series) -> pl.DataFrame:
    """``attribution`` of any rows of ``host_events``."""
    host = trace.host_events
    is_module = matching(host, "category", f"^python_function$|{CAPTURED}")
    is_module &= matching(host, "name", f"^{MODULE}")
    is_annotation = matching(host, "category", "^user_annotation$")
    is_annotation &= ~matching(host, "name", NOT_AN_ANNOTATION)
    is_backward = names_forward(trace)
    forward_op = _forward_op(host, is_backward, called_by)
    in_backward = nearest(host, is_backward | matching(host, "name", AUTOGRAD_NODE))[called_by]
    annotation = nearest(host, is_annotation)[called_by]
    unannotated = called_by.set(annotation.is_not_null() | in_backward.is_null(), None)
    module = nearest(host, is_module)
    table = pl.DataFrame({"forward_op": forward_op}).with_columns(
        module=pl.coalesce(module[called_by], module[forward_op]),
        annotation=pl.coalesce(annotation, _open_elsewhere(host, is_annotation, unannotated)),
    )
    module_name = host["name"][table["module"]].cast(pl.String).str.strip_prefix(MODULE)
    table = table.with_columns(
        annotation_name=host["name"][table["annotation"]], module_name=module_name.cast(pl.Categorical)
    )
    # It is remembered, and one value for all rows takes no memory.
    unknown = [column for column in table if column.null_count() == len(table)]
    return table.with_columns(pl.lit(None, column.dtype).alias(column.name) for column in unknown)


def _forward_op(host: pl.DataFrame, is_backward: pl.Series, launch: pl.Series) -> pl.Series:
    """For each launch inside a backward op, the forward op of the same sequence number."""
    if not is_backward.any():
        return constant(None, len(launch), pl.UInt32)
    numbered = host.select("id", "start_ns", "sequence", is_backward).filter(pl.col("sequence") >= 0)
    is_forward = ~pl.col(is_backward.name)
    forward = numbered.filter(is_forward).sort("start_ns").select("sequence", "start_ns", forward_op="id")
    backward = numbered.filter(~is_forward).sort("start_ns").select("sequence", "start_ns", around="id")
    pairs = backward.join_asof(forward, on="start_ns", by="sequence", check_sortedness=False).drop_nulls(
        "forward_op"
    )
    around = pl.DataFrame({"around": nearest(host, is_backward)[launch]})
    return around.join(pairs, on="around", how="left", maintain_order="left")["forward_op"]


def _open_elsewhere(host: pl.DataFrame, is_annotation: pl.Series, launch: pl.Series) -> pl.Series:
    """The innermost annotation that is open on the thread with most of them when each launch is made."""
    marks = host.filter(is_annotation)
    if marks.is_empty() or launch.null_count() == len(launch):
        return constant(None, len(launch), pl.UInt32)
    outer = nearest(host, is_annotation)[marks["parent"]]
    main = marks["lane"].mode().min()
    marks = marks.with_columns(parent=outer).filter(pl.col("lane") == main)
    calls = host.select("start_ns")[launch].with_columns(lane=pl.lit(main, marks.schema["lane"]))
    return running(marks, calls)


UNATTRIBUTED = "unattributed"
# Where the caller is known, and belongs to nothing of the kind.
OUTSIDE = {
    "op_name": "no op",
    "step_name": "no step",
    "phase": "no phase",
    "graph": "eager",
    "annotation": "no annotation",
    "module": "no module",
    "line": "no line of the program",
}


@remembered
def belonging(run: LoadedRun) -> pl.DataFrame:
    """``work`` of every rank, with the Categorical columns

    - ``op_name``: the innermost op (or annotation) around the launch;
    - ``step_name``;
    - ``phase``: what its step is, or which part of a request (see ``phases``);
    - ``graph``: the compiled graph that launched it (see ``graphs``);
    - ``annotation``: the innermost ``record_function`` range around the launch;
    - ``module``: the innermost ``nn.Module`` whose forward or backward launched it, where Python's functions
      were recorded with the ops (see ``attribution``) or in a step of their own (see ``lines``);
    - ``line``: the innermost line of the program that called it.

    Where the recording tells who launched it and that belongs to none, the value is that of ``OUTSIDE``;
    where it does not tell, "unattributed".
    """
    return pl.concat([_belonging(trace, op_lines(run).get(trace.rank)) for trace in run.traces])


def lines_of_work(trace: Trace, lines: OpLines | None) -> pl.DataFrame:
    """``line``, ``module`` and ``modules`` (Categorical) of each row of ``device_events``: of backward work,
    those of its forward op; in a replayed graph, the line that put it there; null where not known."""
    known = _first_known(lines, attribution(trace)["forward_op"], caller(trace.device_events))
    host, op = trace.host_events, trace.device_events["op"]
    is_line = matching(host, "category", "^captured_frame$") & matching(host, "name", FRAME)
    is_line &= ~matching(host, "name", TORCH_FRAME)
    if not is_line.any():
        return known
    captured = matching(host, "category", CAPTURED).gather(op).fill_null(False)
    put_there = texts_of_frames(host["name"].gather(nearest(host, is_line).gather(op)))
    line = put_there.cast(pl.Categorical).zip_with(captured, known["line"])
    return known.with_columns(line=line)


def lines_of_ops(trace: Trace, lines: OpLines | None) -> pl.DataFrame:
    """The same of each row of ``host_events``."""
    host = trace.host_events
    return _first_known(lines, origins(trace, host["id"])["forward_op"], host["id"])


def calling_lines(run: LoadedRun) -> dict[str, str]:
    """By name of an op the line whose calls took most of its time; of backward work its forward op's."""
    known = [
        lines_of_ops(trace, lines)
        .select(pl.col("line").cast(pl.String))
        .with_columns(trace.host_events["name", "duration_ns"])
        for trace in run.traces
        if (lines := op_lines(run).get(trace.rank)) is not None
    ]
    if not known:
        return {}
    ops = pl.concat(known).drop_nulls("line").with_columns(pl.col("name").cast(pl.String))
    return dict(with_most_time(ops, "name", "line").iter_rows())


def with_most_time(table: pl.DataFrame, key: str, of: str) -> pl.DataFrame:
    """The value of column ``of`` that has most of each key's time (``duration_ns``)."""
    return (
        table.group_by(key, of)
        .agg(pl.col("duration_ns").sum())
        .sort("duration_ns", pl.col(of).cast(pl.String), descending=[True, False])
        .unique(key, keep="first", maintain_order=True)
        .drop("duration_ns")
    )


def _first_known(lines: OpLines | None, *rows: pl.Series) -> pl.DataFrame:
    if lines is None:
        nothing = pl.repeat(None, len(rows[0]), dtype=pl.Categorical, eager=True)
        return pl.DataFrame({"line": nothing, "module": nothing, "modules": nothing})
    return pl.select(
        pl.coalesce(lines.texts[column].gather(row) for row in rows).cast(pl.Categorical).alias(column)
        for column in lines.texts.columns
    )


def _belonging(trace: Trace, lines: OpLines | None) -> pl.DataFrame:
    host, device, origin = trace.host_events, trace.device_events, attribution(trace)
    known_lines = lines_of_work(trace, lines)
    names = {
        "op_name": host["name"][device["op"]],
        "step_name": trace.steps["name"].cast(pl.Categorical)[device["step"]],
        "phase": phase_of_work(trace),
        "graph": graph_of_work(trace),
        "annotation": origin["annotation_name"],
        "module": pl.select(pl.coalesce(origin["module_name"], known_lines["module"])).to_series(),
        "line": known_lines["line"],
    }
    known, unknown = caller(device).is_not_null(), pl.lit(UNATTRIBUTED, pl.Categorical)
    return (
        work(trace)
        .with_columns(known.alias("known"), *(series.alias(column) for column, series in names.items()))
        .with_columns(
            pl.coalesce(
                column, pl.when("known").then(pl.lit(outside, pl.Categorical)).otherwise(unknown)
            ).alias(column)
            for column, outside in OUTSIDE.items()
        )
        .drop("known")
    )
