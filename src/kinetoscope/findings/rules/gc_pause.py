"""Python's garbage collector stops the step.

What it finds
    Collections of Python's cyclic garbage collector inside the steps (recorded with
    ``_ExperimentalConfig(record_python_gc_info=True)`` and stacks).

Why it is slow
    A full collection visits every container object that is alive: a model, its dataset index and a compiler's caches
    are millions of them, tens of milliseconds at a time, in which nothing is launched.

How it decides
    The time in ``Python GC`` events inside the steps that the device spent idle (all of it, without device work) is at
    least half a per cent of the step.

What to do
    ``gc.collect(); gc.freeze()`` once set-up is done; raise the threshold (``gc.set_threshold(100_000, 20, 100)``); or
    ``gc.disable()`` and collect every few hundred steps, on all ranks at the same step.

Source
    torchtitan's ``gc_freq``; CPython's gc module.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope.analysis.run import Run
from kinetoscope.analysis.time import intervals
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import scenes, severity


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        pauses = scene.inside(scene.host(r"^Python GC$"))
        if pauses.is_empty():
            continue
        paused = pauses.with_columns((pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns"))
        stopped = (
            intervals.total(intervals.intersect(paused, scene.gaps))
            if len(scene.work)
            else intervals.total(intervals.union(paused))
        )
        us = stopped / scene.steps / 1000
        saving = scene.idle_saving(us, "idle time during collections")
        level = severity(saving)
        if level is None:
            continue
        yield Finding(
            title=f"Python's garbage collector stops the {scene.unit} for {us / 1000:.1f} ms "
            f"({scene.per_step(len(pauses)):.0f} collections)",
            severity=level,
            saving=saving,
            evidence=[
                scene.evidence(f"{len(pauses)} collections", pauses.sort("duration_ns", descending=True))
            ],
            advice="Freeze what lives for ever after set-up and collect at moments of your choosing.",
            snippet="gc.collect(); gc.freeze(); gc.disable()  # then gc.collect() every few hundred steps",
            source=scene.source(pauses["parent"]),
            rank=scene.rank,
        )
