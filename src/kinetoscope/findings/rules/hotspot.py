"""One kernel is most of the device's time.

What it finds
    A kernel with half or more of the busy time.

Why it is slow
    It need not be: a program that does one thing has one kernel. But nothing else is worth looking at first.

How it decides
    Its share of device time is at least 50 %. What a speed-up by k would buy is share × (1 − 1/k) of busy time; the
    saving shown is for k = 2, and only the part on the critical path.

What to do
    Look at it with ``kinetoscope bench``: its bandwidth, its FLOP/s, other configurations. Or give it less to do.

Source
    "Profiling in PyTorch", part 1: "One event dominates CUDA total"; Amdahl's law.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope.analysis.run import Run
from kinetoscope.findings.model import Finding
from kinetoscope.findings.proof import commands as proofs
from kinetoscope.findings.scene import LOW, scenes

SHARE = 0.5
BUSY = 0.5  # in a step that waits for the host, no kernel is hot


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        if scene.busy_share < BUSY:
            continue
        work = scene.work.filter(pl.col("part") != "communication")
        total = int(work["duration_ns"].sum())
        by_name = (
            work.group_by("name")
            .agg(pl.col("duration_ns").sum(), pl.len())
            .sort("duration_ns", descending=True)
        )
        if len(by_name) < 2 or (share := int(by_name["duration_ns"][0]) / max(total, 1)) < SHARE:
            continue
        name = str(by_name["name"][0])
        hot = work.filter(pl.col("name") == name)
        saving = scene.device_saving(
            hot.with_columns((pl.col("duration_ns") / 2).alias("saved_ns")),
            "what-if: this kernel twice as fast",
        )
        if saving.share < LOW:
            continue
        yield Finding(
            title=f"{scene.short(name)} is {share:.0%} of device time ({scene.per_step(len(hot)):.0f} launches a {scene.unit}): "
            f"twice as fast, the {scene.unit} would be {saving.share:.0%} shorter",
            severity="info",
            saving=saving,
            evidence=[scene.evidence(f"{len(hot)} launches", hot.sort("duration_ns", descending=True))],
            advice="Start here: see what limits it, before anything else.",
            source=scene.source(hot["op"]),
            proof=proofs.bench(scene, name),
            rank=scene.rank,
        )
