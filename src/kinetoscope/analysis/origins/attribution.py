"""Which op, module, annotation, step and line of Python each piece of device work came from."""

from __future__ import annotations

import re
from collections.abc import Callable

import polars as pl

from kinetoscope.analysis.events.enclosing import caller, nearest
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import (
    AUTOGRAD_NODE,
    LIBRARY_FRAME,
    MODULE,
    NOT_AN_ANNOTATION,
    OPTIMIZER,
    STEP,
)
from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace

DIRECTION = pl.Enum(["forward", "backward", "optimizer"])


@remembered
def attribution(trace: Trace) -> pl.DataFrame:
    """Where each row of ``device_events`` came from, in its order.

    Columns that are a row of ``host_events``, or null where nothing of the kind was recorded around the launch (or,
    where that is missing, around the op that the work names by its id):

    - ``launch`` and ``op``, as in ``device_events`` (whose row is ``id``);
    - ``top_op``: the outermost op;
    - ``forward_op``: for work of a backward pass, the forward op whose gradient it computes. Autograd numbers the
      ops that it records, and the backward op carries the number of its forward op. Of several forward ops with one
      number the last to start is meant (as in Kineto's ``fwdbwd`` arrows);
    - ``module``: the innermost ``nn.Module`` call, where stacks or modules were recorded; of backward work, that of
      its forward op;
    - ``annotation``: the innermost ``record_function`` other than a step's. The autograd engine's threads have none
      of their own: for work of a backward pass, what was open on the thread that runs the steps;
    - ``frame``: the innermost Python function outside of torch and Python's own library; of backward work, that of
      its forward op.

    ``direction`` is ``backward`` inside the autograd engine, ``optimizer`` inside an optimizer's step, else
    ``forward``; null outside of any op (a graph's replay). ``top_op_name``, ``module_name`` (without ``nn.Module:``), ``annotation_name`` and
    ``frame_name`` are texts; where only ops carry stacks, the frame is taken from the op's.
    """
    host, device = trace.host_events, trace.device_events
    name, called_by = host["name"], caller(device)
    is_step = matching(host, "name", STEP)
    is_op = matching(host, "category", "^cpu_op$") & ~is_step
    is_frame = matching(host, "category", "^python_function$")
    is_annotation = matching(host, "category", "^user_annotation$") & ~matching(
        host, "name", NOT_AN_ANNOTATION
    )
    is_top = is_op & nearest(host, is_op).gather(host["parent"]).is_null()
    is_backward = host["forward_thread"].fill_null(0) > 0
    forward_op = _forward_op(host, is_backward, called_by)

    def around(wanted: pl.Series) -> pl.Series:
        """The innermost wanted event around each launch."""
        return nearest(host, wanted).gather(called_by) if wanted.any() else _nothing(len(device))

    def around_either(wanted: pl.Series) -> pl.Series:
        """The same, or else around its forward op."""
        if not wanted.any():
            return _nothing(len(device))
        found = nearest(host, wanted)
        here = found.gather(called_by)
        return here.zip_with(here.is_not_null(), found.gather(forward_op))

    backward = around(is_backward | matching(host, "name", AUTOGRAD_NODE)).is_not_null()
    top_op, annotation = around(is_top), around(is_annotation)
    elsewhere = _open_elsewhere(
        host, is_annotation, called_by.zip_with(backward & annotation.is_null(), _nothing(len(device)))
    )
    table = pl.DataFrame(
        {
            "id": device["id"],
            "launch": device["launch"],
            "op": device["op"],
            "top_op": top_op,
            "forward_op": forward_op,
            "module": around_either(is_frame & matching(host, "name", f"^{MODULE}")),
            "annotation": annotation.zip_with(annotation.is_not_null(), elsewhere),
            "frame": around_either(is_frame & ~matching(host, "name", LIBRARY_FRAME)),
        }
    )
    direction = (
        pl.when(backward)
        .then(pl.lit("backward"))
        .when(around(matching(host, "name", OPTIMIZER)).is_not_null())
        .then(pl.lit("optimizer"))
        .when(top_op.is_not_null())
        .then(pl.lit("forward"))
    )
    return table.with_columns(
        direction.cast(DIRECTION).alias("direction"),
        *(name.gather(table[column]).alias(f"{column}_name") for column in ("top_op", "annotation")),
        _texts(name.gather(table["module"]), lambda text: text.removeprefix(MODULE)).alias("module_name"),
        _frames(host, table).alias("frame_name"),
    )


def _nothing(length: int) -> pl.Series:
    return pl.repeat(None, length, dtype=pl.UInt32, eager=True)


def _forward_op(host: pl.DataFrame, is_backward: pl.Series, launch: pl.Series) -> pl.Series:
    """For each launch inside a backward op, the forward op of the same sequence number."""
    if not is_backward.any():
        return _nothing(len(launch))
    numbered = host.select("id", "start_ns", "sequence", "forward_thread").filter(pl.col("sequence") >= 0)
    is_forward = pl.col("forward_thread").fill_null(0) == 0
    forward = numbered.filter(is_forward).sort("start_ns").select("sequence", "start_ns", forward_op="id")
    backward = numbered.filter(~is_forward).sort("start_ns").select("sequence", "start_ns", around="id")
    pairs = backward.join_asof(forward, on="start_ns", by="sequence", check_sortedness=False).drop_nulls(
        "forward_op"
    )
    around = pl.DataFrame({"around": nearest(host, is_backward).gather(launch)})
    return around.join(pairs, on="around", how="left", maintain_order="left")["forward_op"]


def _open_elsewhere(host: pl.DataFrame, is_annotation: pl.Series, launch: pl.Series) -> pl.Series:
    """The innermost annotation that is open on the thread with most of them when each launch is made."""
    marks = host.select(
        "id", "lane", "start_ns", "parent", end_ns=pl.col("start_ns") + pl.col("duration_ns")
    ).filter(is_annotation)
    if marks.is_empty() or launch.null_count() == len(launch):
        return _nothing(len(launch))
    main = marks["lane"].mode().min()
    marks = marks.filter(pl.col("lane") == main).sort("start_ns", "end_ns", descending=[False, True])
    outer = nearest(host, is_annotation).gather(marks["parent"])
    tree = marks.select("id", "end_ns").with_columns(outer.alias("outer"))
    calls = (
        pl.DataFrame({"at": host["start_ns"].gather(launch)})
        .with_row_index("row")
        .drop_nulls("at")
        .sort("at")
    )
    found = calls.join_asof(marks.select("id", "start_ns"), left_on="at", right_on="start_ns").select(
        "row", "at", "id"
    )
    while True:
        known = found.join(tree, on="id", how="left", maintain_order="left")
        ended = (known["end_ns"] <= known["at"]).fill_null(False)
        if not ended.any():
            break
        found = known.select("row", "at", pl.when(ended).then("outer").otherwise("id").alias("id"))
    rows = pl.DataFrame({"row": range(len(launch))}, schema={"row": pl.UInt32})
    return rows.join(found.select("row", "id"), on="row", how="left", maintain_order="left")["id"]


def _frames(host: pl.DataFrame, table: pl.DataFrame) -> pl.Series:
    """The name of each row's frame, or else the first of its op's stack (or its forward op's) that is the user's."""
    names = host["name"].gather(table["frame"])
    if not host["call_stack"].is_not_null().any():
        return names
    is_stacked = host["call_stack"].is_not_null()
    stacked = nearest(host, is_stacked)
    stack = host["call_stack"].gather(
        stacked.gather(caller(table)).zip_with(
            table["forward_op"].is_null(), stacked.gather(table["forward_op"])
        )
    )
    first = _texts(stack, _first_of_user)
    return names.zip_with(names.is_not_null(), first)


def _first_of_user(stack: str) -> str | None:
    frames = [frame for frame in stack.replace(";", "\n").splitlines() if frame]
    return next((frame for frame in frames if not re.search(LIBRARY_FRAME, frame)), None)


def _texts(names: pl.Series, rewrite: Callable[[str], str | None]) -> pl.Series:
    """Each name rewritten, once for each distinct one."""
    distinct = names.drop_nulls().unique()
    if distinct.is_empty():
        return names
    rewritten = [rewrite(text) for text in distinct.cast(pl.String)]
    table = pl.DataFrame(
        {"name": distinct, "text": pl.Series(rewritten, dtype=pl.String).cast(pl.Categorical)}
    )
    return names.to_frame("name").join(table, on="name", how="left", maintain_order="left")["text"]
