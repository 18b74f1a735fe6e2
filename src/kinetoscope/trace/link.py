"""Joins inside a trace: launches to device work, device work to ops and steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import reduce
from operator import or_

import polars as pl
from msgspec.structs import replace

from kinetoscope.trace import schema
from kinetoscope.trace.decoding.events import CALLS
from kinetoscope.trace.engines import FAMILIES, STEP, engine_step
from kinetoscope.trace.model import Trace
from kinetoscope.trace.tree import innermost

LAUNCHING = sorted(CALLS)
_OPS = ["cpu_op", "user_annotation"]
_NO_ROW = pl.lit(None, pl.UInt32)


def link(trace: Trace, recurring: Collection[str] = ()) -> Trace:
    """The trace with ``steps``, and with ``launch``, ``op`` and ``step`` of its device events filled in.

    ``launch``: the call with the device event's correlation id; where there is none, the call that a flow
    comes from. ``op``: the innermost op or annotation around the launch, but for steps; where there is none,
    the op that the launch or the device event names by External id, unless those are correlation ids
    throughout. ``step``: by the time of the launch, or of the event itself. ``recurring``: names of
    annotations that are the steps where neither the profiler nor an engine marks any.
    """
    host = trace.host_events
    is_op = _in_category(host, _OPS)
    steps = _steps(host, is_op, recurring)
    is_op &= ~_named_as_steps(host, recurring)  # a step is the op of nothing
    is_call = _in_category(host, LAUNCHING)
    device = _with_launch(trace.device_events.drop("launch", "op", "step"), host, is_call, trace.flows)
    device = _with_op(device, host, is_op)
    device = device.with_columns(_step_of(device, host, steps))
    return replace(
        trace,
        device_events=schema.conform(device, schema.HELD["device_events"]),
        steps=schema.conform(steps, schema.STEPS),
    )


def _in_category(host: pl.DataFrame, categories: list[str]) -> pl.Series:
    seen = host["category"].unique()
    return host["category"].is_in(seen.filter(seen.cast(pl.String).is_in(categories)).implode())


def _steps(host: pl.DataFrame, is_op: pl.Series, recurring: Collection[str]) -> pl.DataFrame:
    """The profiler's steps; where there are none, those that an engine marks, else those that recur."""
    names = host["name"].filter(is_op).unique()
    texts = names.cast(pl.String)
    named = next((names.filter(of) for of in _families(texts, recurring) if of.any()), names.head(0))
    rows = host.filter(is_op & host["name"].is_in(named.implode())) if len(named) else host.head(0)
    return (
        rows.sort("start_ns")
        .select("event", pl.col("name").cast(pl.String), "start_ns", "duration_ns", host_event="id")
        .with_row_index("id")
    )


def _named_as_steps(host: pl.DataFrame, recurring: Collection[str]) -> pl.Series:
    names = host["name"].unique()
    wanted = names.filter(reduce(or_, _families(names.cast(pl.String), recurring)))
    return host["name"].is_in(wanted.implode())


def _families(names: pl.Series, recurring: Collection[str]) -> Iterator[pl.Series]:
    """Which of the names are steps, by each of the ways in which programs mark them."""
    yield names.str.contains(STEP)
    for family in FAMILIES:
        if wanted := [name for name in names.filter(names.str.contains(family)) if engine_step(name)]:
            yield names.is_in(wanted)
    if recurring:
        yield names.is_in(list(recurring))


def _with_launch(
    device: pl.DataFrame, host: pl.DataFrame, is_call: pl.Series, flows: pl.DataFrame
) -> pl.DataFrame:
    calls = host.select("correlation", launch="id").filter(is_call & (host["correlation"] != 0))
    if calls["correlation"].is_duplicated().any():
        launch = _nearest_call(device, calls, host["start_ns"])
    else:
        launch = device.select("correlation").join(
            calls, on="correlation", how="left", maintain_order="left"
        )["launch"]
    device = device.with_columns(launch.alias("launch"))
    if launch.null_count() and len(flows):
        calls = host.select("id", "lane", "start_ns").filter(is_call)
        device = device.with_columns(pl.coalesce("launch", _launch_by_flow(device, calls, flows)))
    return device


def _nearest_call(device: pl.DataFrame, calls: pl.DataFrame, host_starts: pl.Series) -> pl.Series:
    """Several processes in a file use the same ids: the last call of that id before the work, else the first.
    A search in calls ordered by id and time, as one number: an as-of join takes three times the memory."""
    calls = calls.with_columns(launch_ns=host_starts.gather(calls["launch"])).sort("correlation", "launch_ns")
    ids = calls["correlation"].unique().sort()
    wanted = device["correlation"]
    place = ids.search_sorted(wanted, side="left").cast(pl.Int64).clip(0, len(ids) - 1)
    known = (ids.gather(place) == wanted).fill_null(False)
    first, last = calls.select(first=pl.col("launch_ns").min(), last=pl.col("launch_ns").max()).row(0)
    coarse = max(1, (last - first + 2) * len(ids) >> 62)  # nanoseconds, unless the numbers would not fit
    width = (last - first) // coarse + 2
    times = (calls["launch_ns"] - first) // coarse + 1
    starts = (device["start_ns"] - first).clip(-coarse, last - first) // coarse + 1
    ordered = calls["correlation"].rle_id().cast(pl.Int64) * width + times
    row = ordered.search_sorted(place * width + starts, side="right").cast(pl.Int64) - 1
    before = (calls["correlation"].gather(row.clip(0)) == wanted).fill_null(False) & (row >= 0)
    row = row.zip_with(before | ~known, row + 1)
    return calls["launch"].gather(row.clip(0, len(calls) - 1)).set(~known, None)


def _launch_by_flow(device: pl.DataFrame, calls: pl.DataFrame, flows: pl.DataFrame) -> pl.Series:
    flows = flows.filter(pl.col("category").cast(pl.String) == "ac2g")
    at = ["lane", "start_ns"]
    begins = flows.filter("is_start").join(calls.select(*at, launch="id"), on=at)
    ends = flows.filter(~pl.col("is_start")).join(begins.select("flow", "launch").unique("flow"), on="flow")
    found = device.select(*at).join(
        ends.select(*at, "launch").unique(at), on=at, how="left", maintain_order="left"
    )
    return found["launch"]


def _with_op(device: pl.DataFrame, host: pl.DataFrame, is_op: pl.Series) -> pl.DataFrame:
    op = innermost(host, is_op, device["launch"])
    device = device.with_columns(op.alias("op"))
    ids = device.select("external_id", "correlation").filter(pl.col("external_id") != 0)
    # Kineto of 2021 and before wrote a device event's correlation id there: it names no op.
    if op.null_count() == 0 or (ids["external_id"] == ids["correlation"]).all():
        return device
    named = host.select(op_named="id", external_id="external_id").filter(is_op).drop_nulls()
    named = named.filter((pl.col("external_id") != 0) & ~pl.col("external_id").is_duplicated())
    of_call = host["external_id"].gather(device["launch"])
    external = device.select(external_id=pl.coalesce(of_call, pl.col("external_id")))
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
