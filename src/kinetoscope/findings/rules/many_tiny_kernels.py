"""One op launches hundreds of tiny kernels.

What it finds
    An op that is called again and again in a step for work of a few microseconds each: a Python loop over parameters,
    list elements or time steps.

Why it is slow
    Each call pays for Python, the dispatcher and a launch; the device's share of it is negligible.

How it decides
    Ops with at least 50 kernels a step whose median is below 5 µs and whose host time, taken out, would shorten the
    step. Ops inside an optimizer belong to ``optimizer-not-fused``; compiled regions to ``compile-tax``.

What to do
    Do them at once: one op on a stacked tensor, ``torch._foreach_*`` on the list, or compile the loop.

Source
    "Profiling in PyTorch", part 1: "One event has a huge # of Calls".
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.run import Run
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import scenes, severity

CALLS = 50  # fewer calls are ordinary: a model of fifty layers has fifty of everything
TINY_NS = 5_000  # shorter than any launch


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        host = scene.trace.host_events
        work = scene.work
        eager = work.select("id", "op", "op_name", "duration_ns").filter(
            matching(work, "op_name", "^aten::")
            & (work["kind"] == "kernel")
            & ~matching(work, "category", "^optimizer$")
        )
        ops = (
            eager.group_by("op_name")
            .agg(
                pl.len().alias("calls"),
                pl.col("duration_ns").median().alias("median_ns"),
                pl.col("op").unique().sort(),
                pl.col("id"),
            )
            .filter((pl.col("calls") >= CALLS * scene.steps) & (pl.col("median_ns") < TINY_NS))
            .sort("calls", descending=True)
        )
        if ops.is_empty():
            continue
        calls = host.select("id", "start_ns", "duration_ns")[ops["op"].explode().sort()]
        spared = calls.select(
            (pl.col("start_ns") + pl.col("duration_ns")).alias("at"), pl.col("duration_ns").alias("saved_ns")
        ).sort("at")
        names = ops["op_name"].cast(pl.String).to_list()
        saving = scene.host_saving(spared, "the host time of these calls, were they one for each op")
        level = severity(saving, at_most="medium")
        if level is None:
            continue
        yield Finding(
            title=f"{', '.join(names[:2])}{' and others' if len(names) > 2 else ''}: {scene.per_step(int(ops['calls'].sum())):.0f} "
            f"kernels a {scene.unit} of {numbers.time(float(ops['median_ns'].median() or 0) / 1000)}",  # type: ignore[arg-type]
            severity=level,
            saving=saving,
            evidence=[
                scene.evidence(f"{row['calls']} calls of {row['op_name']}", host[row["op"]])
                for row in ops.head(4).iter_rows(named=True)
            ],
            advice="Do them at once: stack the tensors, use torch._foreach_* on the list, or compile the loop.",
            snippet="torch._foreach_mul_(tensors, 0.99)",
            source=scene.source(calls["id"]),
            rank=scene.rank,
        )
