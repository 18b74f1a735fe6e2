"""One kernel is most of the device's time.

What it finds
    A kernel with half or more of the busy time.

Why it is slow
    It need not be: a program that does one thing has one kernel. But nothing else is worth looking at first.

How it decides
    Its share of device time is at least 50 %. What a speed-up by k would buy is share × (1 − 1/k) of busy
    time; the saving shown is for k = 2, and only the part on the critical path.

What to do
    Look at it with ``kinetoscope bench``: its bandwidth, its FLOP/s, other configurations. Or give it less to
    do.

Source
    "Profiling in PyTorch", part 1: "One event dominates CUDA total"; Amdahl's law.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.findings import evidence, savings
from kinetoscope.findings.model import Finding
from kinetoscope.findings.proof import commands
from kinetoscope.findings.savings import LOW
from kinetoscope.findings.scene import Scene

SHARE = 0.5
BUSY = 0.5  # in a step that waits for the host, no kernel is hot

ROLE = "symptom"


def find(scene: Scene) -> Iterable[Finding]:
    if scene.busy_share < BUSY:
        return
    work = scene.work.filter(pl.col("part") != "communication")
    total = int(work["duration_ns"].sum())
    by_name = (
        work.group_by("name").agg(pl.col("duration_ns").sum(), pl.len()).sort("duration_ns", descending=True)
    )
    if len(by_name) < 2 or (share := int(by_name["duration_ns"][0]) / max(total, 1)) < SHARE:
        return
    name = str(by_name["name"][0])
    hot = scene.known.filter(pl.col("name") == name)
    saving = savings.device(scene, hot, "what-if: this kernel twice as fast", saved=pl.col("duration_ns") / 2)
    if saving.share < LOW:
        return
    yield Finding(
        title=f"{short_name(name)} is {share:.0%} of device time ({scene.per_step(len(hot)):.0f} launches a "
        f"{scene.unit}): twice as fast, the {scene.unit} would be {saving.share:.0%} shorter",
        saving=saving,
        at_most="info",
        evidence=[evidence.of(scene, f"{len(hot)} launches", hot.sort("duration_ns", descending=True))],
        advice="Start here: see what limits it, before anything else.",
        source=evidence.source(scene, hot["op"]),
        proof=commands.bench(scene, name),
    )
