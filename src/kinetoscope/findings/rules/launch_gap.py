"""Stretches of the step where the device waits for launches.

What it finds
    A device that is busy most of the time, and yet runs dry at places where the host falls behind.

Why it is slow
    While a long kernel runs, the host can launch ahead. A run of short kernels uses that lead up, and from then on
    the device waits for each launch.

How it decides
    Busy at least half of the time (below that it is ``overhead-bound``) and launch-bound idle time of at least 3 % of
    the step. The places with the longest gaps are named by the op that was launched too late.

What to do
    Fuse the short ops (``torch.compile`` the region), batch them (``torch._foreach_*``), or take the region into a
    CUDA graph. Ops whose result nobody needs at once can be moved to where the queue is long.

Source
    "Profiling in PyTorch", part 1: gaps between kernels in a step.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.run import Run
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.findings.model import Finding
from kinetoscope.findings.proof import commands as proofs
from kinetoscope.findings.rules.overhead_bound import BUSY
from kinetoscope.findings.scene import MEDIUM, scenes, severity


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        # The device is empty when a recording begins: the way to the first launch is not a gap of the program's.
        late = scene.gaps.filter(
            (pl.col("cause") == "launch-bound") & (pl.col("start_ns") > scene.first_work_ns)
        )
        waiting = int(late["idle_ns"].sum()) / scene.steps / 1000
        if scene.busy_share < BUSY or waiting < MEDIUM * scene.step_us:
            continue
        saving = scene.idle_saving(waiting, "the idle time that ends with a late launch, all of it")
        level = severity(saving)
        if level is None:
            continue
        longest = late.sort("idle_ns", descending=True).head(4)
        yield Finding(
            title=f"The device runs dry {scene.per_step(len(late)):.0f} times a {scene.unit} for want of a launch: "
            f"{numbers.time(waiting)}, {waiting / scene.step_us:.0%} of the {scene.unit}",
            severity=level,
            saving=saving,
            evidence=[scene.gap_evidence(row) for row in longest.iter_rows(named=True)],
            advice="Compile, batch or graph-capture the run of short ops around these gaps.",
            source=scene.source(longest["host_event"]),
            proof=proofs.tune(scene, Setting(mode="reduce-overhead")),
            rank=scene.rank,
        )
