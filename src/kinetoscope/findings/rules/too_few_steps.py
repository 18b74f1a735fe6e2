"""The recording is too short to tell a step from an accident.

What it finds
    Recordings of one or two steps, or of none (no ``profiler.step()``).

Why it is slow
    It is not; but of one step nobody knows whether it was a usual one, and without steps nothing can be said per step.

How it decides
    The number of ``ProfilerStep#N`` annotations.

What to do
    Call ``profiler.step()`` once a step, and record three to five: ``schedule(wait=1, warmup=3, active=5)``.

Source
    The design's "a mean alone is not a result".
"""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope.analysis.run import Run
from kinetoscope.findings.model import Finding, Saving
from kinetoscope.findings.scene import scenes

ENOUGH = 3


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        steps = len(scene.trace.steps)
        if steps >= ENOUGH or scene.trace.host_events.is_empty():
            continue
        yield Finding(
            title=f"Only {steps} step{'s' if steps != 1 else ''} recorded: nothing can be said about how steps differ"
            if steps
            else "No steps are marked in the recording: all figures are for the whole of it",
            severity="info",
            saving=Saving(0.0, "nothing to save", False, 0.0),
            evidence=[scene.evidence("the recording", scene.trace.steps)],
            advice="Mark steps and record three to five of them.",
            snippet="with profile(schedule=schedule(wait=1, warmup=3, active=5)) as profiler:\n    for batch in loader:\n"
            "        train(batch)\n        profiler.step()",
            rank=scene.rank,
        )
