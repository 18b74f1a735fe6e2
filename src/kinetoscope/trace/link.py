"""Joins inside a trace: launches to device work, device work to ops and steps."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from kinetoscope.trace import schema
from kinetoscope.trace.events import CALLS
from kinetoscope.trace.model import Trace

LAUNCHING = sorted(CALLS)
STEP = r"^ProfilerStep(#|\*)"
_OPS = ["cpu_op", "user_annotation"]
_NO_ROW = pl.lit(None, pl.UInt32)


def link(trace: Trace) -> Trace:
    """The trace with ``steps``, and with ``launch``, ``op`` and ``step`` of its device events filled in.

    ``launch``: the call with the device event's correlation id; where there is none, the call that a flow comes
    from. ``op``: the innermost op or annotation around the launch; where there is none, the op that the launch or
    the device event names by External id. ``step``: by the time of the launch, or of the event itself.
    """
    host = trace.host_events
    category = host["category"].cast(pl.String)
    is_op = category.is_in(_OPS)
    calls = host.select(
        launch="id", correlation="correlation", lane="lane", launch_ns="start_ns", call_external="external_id"
    ).filter(category.is_in(LAUNCHING))
    steps = _steps(host, is_op)
    device = _with_launch(trace.device_events.drop("launch", "op", "step"), calls, trace.flows)
    device = _with_op(device, host, is_op, calls)
    device = device.with_columns(_step_of(device, host, steps))
    return replace(
        trace,
        device_events=schema.conform(device, schema.DEVICE_EVENTS),
        steps=schema.conform(steps, schema.STEPS),
    )


def _steps(host: pl.DataFrame, is_op: pl.Series) -> pl.DataFrame:
    names = host["name"].unique()
    named = names.filter(names.cast(pl.String).str.contains(STEP))
    rows = host.filter(is_op & host["name"].is_in(named.implode())) if len(named) else host.head(0)
    return (
        rows.sort("start_ns")
        .select("event", pl.col("name").cast(pl.String), "start_ns", "duration_ns", host_event="id")
        .with_row_index("id")
    )


def _with_launch(device: pl.DataFrame, calls: pl.DataFrame, flows: pl.DataFrame) -> pl.DataFrame:
    numbered = calls.filter(pl.col("correlation") != 0)
    if numbered["correlation"].is_duplicated().any():
        launch = _nearest_call(device, numbered)
    else:
        launch = device.select("correlation").join(
            numbered.select("correlation", "launch"), on="correlation", how="left", maintain_order="left"
        )["launch"]
    device = device.with_columns(launch.alias("launch"))
    if launch.null_count() and len(flows):
        device = device.with_columns(pl.coalesce("launch", _launch_by_flow(device, calls, flows)))
    return device


def _nearest_call(device: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """Several processes in one file use the same ids: the last call of that id before the work, else the first."""
    calls = calls.sort("launch_ns")
    before = (
        device.select("id", "correlation", "start_ns")
        .sort("start_ns")
        .join_asof(
            calls.select("correlation", "launch", "launch_ns"),
            left_on="start_ns",
            right_on="launch_ns",
            by="correlation",
            check_sortedness=False,
        )
        .select("id", before="launch")
    )
    first = calls.unique("correlation", keep="first", maintain_order=True)
    return (
        device.select("id", "correlation")
        .join(before, on="id", how="left", maintain_order="left")
        .join(first.select("correlation", "launch"), on="correlation", how="left", maintain_order="left")
        .select(pl.coalesce("before", "launch"))
        .to_series()
    )


def _launch_by_flow(device: pl.DataFrame, calls: pl.DataFrame, flows: pl.DataFrame) -> pl.Series:
    flows = flows.filter(pl.col("category").cast(pl.String) == "ac2g")
    at = ["lane", "start_ns"]
    begins = flows.filter("is_start").join(calls.rename({"launch_ns": "start_ns"}), on=at)
    ends = flows.filter(~pl.col("is_start")).join(begins.select("flow", "launch").unique("flow"), on="flow")
    found = device.select(*at).join(
        ends.select(*at, "launch").unique(at), on=at, how="left", maintain_order="left"
    )
    return found["launch"]


def _with_op(device: pl.DataFrame, host: pl.DataFrame, is_op: pl.Series, calls: pl.DataFrame) -> pl.DataFrame:
    around = pl.DataFrame({"parent": host["parent"], "is_op": is_op})
    op = around["parent"].gather(device["launch"])
    while True:  # up the tree, a level a round: python functions and the like may stand between
        through = ~around["is_op"].gather(op)
        if not through.any():
            break
        op = op.zip_with(~through.fill_null(False), around["parent"].gather(op))
    device = device.with_columns(op.alias("op"))
    if op.null_count() == 0:
        return device
    named = host.filter(is_op).select(op_named="id", external_id="external_id").drop_nulls()
    named = named.filter((pl.col("external_id") != 0) & ~pl.col("external_id").is_duplicated())
    call = pl.DataFrame({"launch": device["launch"]}).join(
        calls.select("launch", "call_external"), on="launch", how="left", maintain_order="left"
    )
    external = device.select(external_id=pl.coalesce(call["call_external"], pl.col("external_id")))
    by_id = external.join(named, on="external_id", how="left", maintain_order="left")["op_named"]
    return device.with_columns(pl.coalesce("op", by_id))


def _step_of(device: pl.DataFrame, host: pl.DataFrame, steps: pl.DataFrame) -> pl.Expr | pl.Series:
    if not len(steps):
        return _NO_ROW.alias("step")
    at = pl.select(pl.coalesce(host["start_ns"].gather(device["launch"]), device["start_ns"])).to_series()
    row = steps["start_ns"].search_sorted(at, side="right").cast(pl.Int64) - 1
    row = row.set(row < 0, None)
    ends = (steps["start_ns"] + steps["duration_ns"]).gather(row)
    return steps["id"].gather(row).set((at >= ends).fill_null(True), None).alias("step")
