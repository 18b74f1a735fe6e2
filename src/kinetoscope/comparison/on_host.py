"""The host's own step, where no device worked: its ops, and the program's functions outside of them."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import LIBRARY_FRAME
from kinetoscope.trace.model import Trace

WHOLE = 0  # the step that all work is of where none were recorded

FRAME = r"^(.*\.py)\(\d+\): (.*)$"  # the line moves with every edit above it: names leave it out


def host_ops(trace: Trace, steps: pl.Series) -> pl.DataFrame:
    """The ops of the steps' own threads, each with the time that is in no op below it."""
    host = trace.host_events
    name = pl.col("name").cast(pl.String)
    found = _inside(trace, steps, host.filter(matching(host, "category", "^cpu_op$")))
    return found.sort("step", "start_ns", "id").select(
        "id", "step", pl.col("start_ns").alias("at_ns"), name.alias("name"), pl.col("id").alias("op"),
        name.alias("op_name"), pl.lit("host").alias("category"), pl.lit("no module").alias("module"),
        pl.lit("eager").alias("graph"), pl.col("input_dims").cast(pl.String).fill_null("").alias("shape"),
        pl.col("self_ns").alias("own_ns"), "duration_ns",
    )  # fmt: skip


def functions(trace: Trace, steps: pl.Series) -> pl.DataFrame:
    """The same threads' time outside of ops by the innermost of the program's own functions: ``who`` (""
    where none is known), ``host_event`` (one of its frames) and ``ns``. Empty without Python stacks."""
    host = trace.host_events
    is_frame = matching(host, "category", "^python_function$") & matching(host, "name", FRAME)
    own = nearest(host, is_frame & ~matching(host, "name", LIBRARY_FRAME))
    outside = host.with_columns(own.alias("own")).filter(~matching(host, "category", "^cpu_op$"))
    found = _inside(trace, steps, outside)
    frames = host["name"].gather(found["own"]).cast(pl.String)
    return (
        found.with_columns(frames.str.replace(FRAME, "$2 ($1)").fill_null("").alias("who"))
        .group_by("who", maintain_order=True)
        .agg(pl.col("own").drop_nulls().first().alias("host_event"), pl.col("self_ns").sum().alias("ns"))
        .filter(pl.lit(is_frame.any()), pl.col("ns") > 0)
    )


def _inside(trace: Trace, steps: pl.Series, events: pl.DataFrame) -> pl.DataFrame:
    """Those that begin in one of the steps, on its thread, with the ``step``; of all steps where there are
    none, on the thread with most of them."""
    if not len(trace.steps):
        return events.filter(pl.col("lane") == events["lane"].mode().min()).with_columns(
            step=pl.lit(WHOLE, pl.UInt32)
        )
    marks = trace.steps.filter(pl.col("id").is_in(steps.implode())).select(
        pl.col("id").alias("step"),
        pl.col("start_ns").alias("from_ns"),
        until=pl.col("start_ns") + pl.col("duration_ns"),
        lane=trace.host_events["lane"].gather(trace.steps["host_event"]).gather(steps),
    )
    begun = events.sort("start_ns").join_asof(
        marks.sort("from_ns"), left_on="start_ns", right_on="from_ns", by="lane", check_sortedness=False
    )
    return begun.filter(pl.col("start_ns") < pl.col("until"))
