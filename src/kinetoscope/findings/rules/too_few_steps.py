"""The recording is too short to tell a step from an accident.

What it finds
    Recordings of one or two steps, or of none (no ``profiler.step()``).

Why it is slow
    It is not; but of one step nobody knows whether it was a usual one, and without steps nothing can be said
    per step.

How it decides
    The number of ``ProfilerStep#N`` annotations.

What to do
    Call ``profiler.step()`` once per step, record three to five: ``schedule(wait=1, warmup=3, active=5)``.

Source
    The design's "a mean alone is not a result".
"""

from kinetoscope.findings.rule import *

ENOUGH = 3


def find(view: RankView) -> Findings:
    steps = len(view.trace.steps)
    if steps >= ENOUGH or view.trace.host_events.is_empty():
        return
    yield Finding(
        title=f"Only {numbers.count(steps, 'step')} recorded: nothing can be said about how steps differ"
        if steps
        else "No steps are marked in the recording: all figures are for the whole of it",
        saving=savings.nothing("nothing to save"),
        at_least="info",
        evidence=[evidence.of(view, "the recording", view.trace.steps)],
        advice="Mark steps and record three to five of them.",
        snippet="with profile(schedule=schedule(wait=1, warmup=3, active=5)) as profiler:\n"
        "    for batch in loader:\n        train(batch)\n        profiler.step()",
    )
