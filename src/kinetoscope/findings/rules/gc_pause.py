"""Python's garbage collector stops the step.

What it finds
    Collections of Python's cyclic garbage collector inside the steps: as recorded (with
    ``_ExperimentalConfig(record_python_gc_info=True)`` and stacks), else as measured in the steps that were
    timed without the profiler.

Why it is slow
    A full collection visits every container object that is alive: a model, its dataset index and a compiler's
    caches are millions of them, tens of milliseconds at a time, in which nothing is launched.

How it decides
    The time in ``Python GC`` events inside the steps that the device spent idle (all of it, without device
    work) is at least half a per cent of the step. Where it was measured, the median of a step: what the
    device is not busy with of a step, and no more, can be saved.

What to do
    No ``gc.collect()`` in the loop. ``gc.collect(); gc.freeze()`` once set-up is done; raise the threshold
    (``gc.set_threshold(100_000, 20, 100)``); or ``gc.disable()`` and collect every few hundred steps, on all
    ranks at the same step.

Source
    torchtitan's ``gc_freq``; CPython's gc module.
"""

from kinetoscope.analysis.events.torch_names import GARBAGE_COLLECTION
from kinetoscope.findings.rule import *


def find(view: RankView) -> Findings:
    pauses = view.inside(view.host(GARBAGE_COLLECTION))
    if pauses.is_empty():
        yield from _measured(view)
        return
    stopped = view.idle_during(pauses) if len(view.work) else intervals.union(spans(pauses))
    us = view.us(intervals.total(stopped))
    longest = pauses.sort("duration_ns", descending=True)
    yield Finding(
        title=f"Python's garbage collector stops the {view.unit} "
        f"({view.per_step(len(pauses)):,.0f} collections)",
        affected_us=us,
        saving=savings.host(view, pauses, "the collections' time"),
        evidence=[evidence.of(view, f"{len(pauses)} collections", longest)],
        advice="Freeze what lives for ever after set-up and collect at moments of your choosing.",
        snippet="gc.collect(); gc.freeze(); gc.disable()  # then gc.collect() every few hundred steps",
        source=evidence.source(view, pauses["parent"]),
    )


def _measured(view: RankView) -> Findings:
    """The collections as timed without the profiler, since the trace has none."""
    own = view.as_it_runs
    if own is None or own.timed.waiting is None or own.timed.waiting.gc_us < LOW * own.step_us:
        return
    us = own.timed.waiting.gc_us
    line = view.record.steps.collects_at if view.record else None
    shown_us = min(us, own.step_us - (own.busy_us or 0.0))
    yield Finding(
        title=f"Python's garbage collector takes {numbers.time(us)} of a {view.unit} "
        f"({us / own.step_us:.0%} of it)",
        affected_us=us,
        saving=savings.unreplayed(view, shown_us, "the collector's time, measured without the profiler"),
        evidence=evidence.of_steps(view, f"timed in {own.timed.step.n} steps"),
        advice="Leave gc.collect() out of the loop; where collections come by themselves, freeze what lives "
        "for ever after set-up.",
        snippet="gc.collect(); gc.freeze()  # once, before the loop",
        source=line,
    )
