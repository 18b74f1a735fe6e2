"""Memory is taken from and given back to the driver in the steady state.

What it finds
    ``cudaMalloc``, ``cudaFree`` and their kin in every step: ``torch.cuda.empty_cache()`` in the loop, shapes that
    never repeat, memory so tight that the allocator must flush and retry, or a library with an allocator of its own.

Why it is slow
    Each call takes up to a millisecond, and ``cudaFree`` waits for the device to finish all it has.

How it decides
    Such calls in at least two steps, in half of the steps or more (once in a recording without steps is warm-up: ten
    there). The saving is the time that the device idles during the calls and as long
    again behind them.

What to do
    Remove ``empty_cache()``; ``PYTORCH_ALLOC_CONF=expandable_segments:True`` against fragmentation; pad to a few
    shapes; leave some memory free.

Source
    PyTorch CUDA semantics, "Memory management".
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.events.torch_names import ALLOCATION
from kinetoscope.analysis.run import Run
from kinetoscope.analysis.time import intervals
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import scenes, severity

BEHIND_NS = 20_000  # what the next launch takes to arrive
WITHOUT_STEPS = 10  # calls: a warm-up makes a handful


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        calls = scene.inside(scene.host(ALLOCATION))
        if calls.is_empty():
            continue
        if scene.unit == "step":
            at = calls.sort("start_ns").join_asof(
                scene.trace.steps.select("start_ns", pl.col("id").alias("in_step")), on="start_ns"
            )
            if at["in_step"].n_unique() < max(2, scene.steps / 2):
                continue
        elif len(calls) < WITHOUT_STEPS:
            continue
        within = calls.with_columns((pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns"))
        # cudaFree has emptied the queue: the launches behind a call come late as well.
        within = within.with_columns(pl.col("end_ns") + pl.col("duration_ns") + BEHIND_NS)
        idle = intervals.total(intervals.intersect(within, scene.gaps))
        us = idle / scene.steps / 1000
        saving = scene.idle_saving(us, "the device's idle time during the calls")
        level = severity(saving)
        if level is None:
            continue
        yield Finding(
            title=f"{scene.per_step(len(calls)):.0f} driver allocations and frees a {scene.unit} leave the device idle "
            f"for {numbers.time(us)}",
            severity=level,
            saving=saving,
            evidence=[
                scene.evidence("the longest calls", calls.sort("duration_ns", descending=True).head(8))
            ],
            advice="Let the caching allocator keep its memory: no empty_cache() in the loop, few distinct shapes.",
            snippet="PYTORCH_ALLOC_CONF=expandable_segments:True",
            source=scene.source(calls["parent"]),
            rank=scene.rank,
        )
