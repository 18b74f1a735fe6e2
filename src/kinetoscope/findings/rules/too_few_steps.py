"""The recording is too short to distinguish a usual step from an unusual one.

What it finds
    Recordings of one or two steps, or of none (no ``profiler.step()``).

Why it is slow
    It is not; but a single step may be an unusual one, and without steps nothing is known per step.

How it decides
    The number of ``ProfilerStep#N`` annotations. Two are enough where three steps were timed without the
    profiler: these say how steps differ.

What to do
    Call ``profiler.step()`` once per step, record three to five: ``schedule(wait=1, warmup=3, active=5)``.

Source
    The design's "a mean alone is not a result".
"""

from kinetoscope.analysis.passes.unprofiled import unprofiled_seconds
from kinetoscope.analysis.serving.steps import marks
from kinetoscope.findings.rule import *

ENOUGH = 3
OF_TIMED = 2  # of steps that were timed without the profiler too
# How each engine is asked for more of them.
OPTIONS = {
    "vLLM": "max_iterations of --profiler-config",
    "SGLang": "num_steps of /start_profile",
    "TensorRT-LLM": "TLLM_PROFILE_START_STOP=100-150",
    "ATOM": "a later /stop_profile",
    "xDiT": "--profile_active",
}


def find(view: RankView) -> Findings:
    steps = len(view.trace.steps)
    timed = len(unprofiled_seconds(view.record.steps)) if view.record else 0
    if steps >= (OF_TIMED if timed >= ENOUGH else ENOUGH) or view.trace.host_events.is_empty():
        return
    served = _served(view)
    yield Finding(
        title=f"Only {numbers.count(steps, 'step')} recorded: how steps differ is not known"
        if steps
        else "No steps are marked in the recording: all figures are for the whole of it",
        saving=savings.nothing("nothing to save"),
        at_least="info",
        evidence=evidence.of_steps(view, "the recording"),
        advice=served or "Mark steps and record three to five of them.",
        snippet=None
        if served
        else "with profile(schedule=schedule(wait=1, warmup=3, active=5)) as profiler:\n"
        "    for batch in loader:\n        train(batch)\n        profiler.step()",
    )


def _served(view: RankView) -> str:
    """The advice for a server; empty of another program."""
    table = marks(view.trace).table
    if table.is_empty():
        return ""
    if (table["phase"] == "diffusion").all():
        return f"Record several calls of the pipeline, once it is warm{asked(view, OPTIONS)}."
    return f"Record a few dozen steps once the server's traffic is steady{asked(view, OPTIONS)}."
