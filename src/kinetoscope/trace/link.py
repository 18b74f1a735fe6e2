"""Joins inside a trace: the tree of host events, launches to device work, steps."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from kinetoscope.trace import schema
from kinetoscope.trace.model import Trace

LAUNCHING = ["cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "mtia_runtime", "privateuse1_runtime"]
STEP = r"^ProfilerStep(#|\*)"


def link(trace: Trace) -> Trace:
    """The trace with ``parent``, ``depth``, ``self_ns``, ``launch``, ``op`` and ``step`` filled in and rows numbered."""
    host = _tree(trace.host_events)
    steps = (
        host.filter(
            (pl.col("category").cast(pl.String) == "user_annotation")
            & pl.col("name").cast(pl.String).str.contains(STEP)
        )
        .sort("start_ns")
        .select(
            "event",
            pl.col("name").cast(pl.String),
            pl.col("id").alias("host_event"),
            "start_ns",
            "duration_ns",
        )
        .with_row_index("id")
    )
    launches = (
        host.filter(pl.col("correlation").is_not_null() & pl.col("category").cast(pl.String).is_in(LAUNCHING))
        .select(pl.col("correlation"), pl.col("id").alias("launch"), pl.col("start_ns").alias("launch_ns"))
        .unique("correlation", keep="first")
    )
    device = (
        trace.device_events.drop("launch", "op", "step")
        .sort("device", "start_ns", maintain_order=True)
        .join(launches, on="correlation", how="left", maintain_order="left")
        .drop("id")
        .with_row_index("id")
    )
    op_of = _enclosing_op(host)
    device = device.with_columns(
        pl.col("launch").replace_strict(op_of, default=None, return_dtype=pl.UInt32).alias("op")
        if op_of
        else pl.lit(None, pl.UInt32).alias("op")
    )
    device = device.with_columns(pl.coalesce("launch_ns", "start_ns").alias("at")).sort(
        "at", maintain_order=True
    )
    if len(steps):
        device = device.join_asof(
            steps.select(
                pl.col("start_ns").alias("step_start"),
                (pl.col("start_ns") + pl.col("duration_ns")).alias("step_end"),
                pl.col("id").alias("step"),
            ),
            left_on="at",
            right_on="step_start",
        ).with_columns(pl.when(pl.col("at") < pl.col("step_end")).then(pl.col("step")).alias("step"))
    return replace(
        trace,
        host_events=schema.conform(host, schema.HOST_EVENTS),
        device_events=schema.conform(device.sort("id"), schema.DEVICE_EVENTS),
        steps=schema.conform(steps, schema.STEPS),
    )


def _tree(host: pl.DataFrame) -> pl.DataFrame:
    host = (
        host.sort(["lane", "start_ns", "duration_ns", "event"], descending=[False, False, True, False])
        .drop("id")
        .with_row_index("id")
    )
    parents: list[int | None] = []
    depths: list[int] = []
    stack: list[tuple[int, int]] = []
    current = -1
    children = [0] * len(host)
    for row, lane, start, duration in host.select("id", "lane", "start_ns", "duration_ns").iter_rows():
        if lane != current:
            stack, current = [], lane
        while stack and stack[-1][1] <= start and not (duration == 0 and stack[-1][1] == start):
            stack.pop()
        parents.append(stack[-1][0] if stack else None)
        depths.append(len(stack))
        if stack:
            children[stack[-1][0]] += duration
        stack.append((row, start + duration))
    return host.with_columns(
        pl.Series("parent", parents, pl.UInt32),
        pl.Series("depth", depths, pl.UInt16),
        (pl.col("duration_ns") - pl.Series("children", children, pl.Int64)).alias("self_ns"),
    )


def _enclosing_op(host: pl.DataFrame) -> dict[int, int | None]:
    categories = host["category"].cast(pl.String).to_list()
    parents = host["parent"].to_list()
    result: dict[int, int | None] = {}
    for row, category in enumerate(categories):
        if category in LAUNCHING:
            up = parents[row]
            while up is not None and categories[up] not in ("cpu_op", "user_annotation"):
                up = parents[up]
            result[row] = up
    return result
