"""Part of what ran is not in the file.

What it finds
    Launches whose kernel is not in the file, and kernels whose launch is not.

Why it is slow
    It is not; but every share and every busy percentage of such a recording is wrong by what is missing.

How it decides
    At least 1 % of the launches, and at least five, have no device work, or as many device events no launch. Work that
    was launched before the recording began, and calls for memsets and copies (of no bytes they make no work), do not
    count.

What to do
    Record fewer steps; fewer streams; less beside them (``profile_memory=False``, no stacks); synchronise
    before the profiler stops. Then check ``kinetoscope report``'s health section.

Source
    Kineto issues on dropped activity buffers; the contract's health section.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope.analysis.events.unanswered import unanswered_launches
from kinetoscope.analysis.run import Run
from kinetoscope.findings.model import Finding, Saving
from kinetoscope.findings.scene import scenes

SHARE = 0.01
COUNT = 5


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        device = scene.trace.device_events
        answered = device["launch"].drop_nulls().n_unique()
        if not answered:
            continue
        # A kernel that runs while nothing has been launched yet belongs to what came before the recording.
        first = device.filter(pl.col("launch").is_not_null())["start_ns"].min()
        orphans = device.filter(pl.col("launch").is_null() & (pl.col("start_ns") > first))
        # A memset or copy of no bytes makes no device work: cuDNN calls hundreds of those.
        lost = unanswered_launches(scene.trace).filter(
            ~pl.col("name").cast(pl.String).str.contains("Memset|Memcpy")
        )
        launches = answered + len(lost)
        gone = len(lost) >= max(COUNT, SHARE * launches)
        strayed = len(orphans) >= max(COUNT, SHARE * len(device))
        if not gone and not strayed:
            continue
        said = [f"{len(lost)} of {launches} launches have no device work"] if gone else []
        said += [f"{len(orphans)} of {len(device)} device events have no launch"] if strayed else []
        yield Finding(
            title=f"The recording is incomplete: {'; '.join(said)}",
            severity="medium",
            saving=Saving(0.0, "nothing to save; what is missing is not counted anywhere", False, 0.0),
            evidence=[
                *([scene.evidence("launches without device work", lost)] if gone else []),
                *([scene.evidence("device events without a launch", orphans)] if strayed else []),
            ],
            advice="Record fewer steps and less beside them, and synchronise before the profiler stops.",
            snippet="torch.cuda.synchronize()\nprofiler.stop()",
            rank=scene.rank,
        )
